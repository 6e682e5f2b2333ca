"""Answers kept in memory, bounded in number and in bytes; the one used least recently goes first."""

from collections import OrderedDict
from dataclasses import dataclass

from ...core.errors import RequestError, UnsupportedFieldError
from ..dialect import encode_json
from .items import decode_items, output_as_input
from .protocol import InputItem, ResponseObject


class UnknownResponseError(RequestError):
    """No such response is kept here: 404 where the path names it, 400 where a body goes on from it."""

    status = 404
    code = "response_not_found"

    def __init__(self, message: str, param: str) -> None:
        super().__init__(message, param)
        if param == "previous_response_id":
            self.status, self.code = 400, "previous_response_not_found"


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """One kept answer, as JSON: that is compact, and its size is known."""

    body: bytes
    """The answer, a ``ResponseObject``."""
    context: bytes
    """The items before it: its own input behind those of the responses that it goes on from."""
    own_items: int
    """How many of them, at the end, are its own input."""
    output: bytes
    """What it said, as items."""

    @classmethod
    def of(cls, answer: ResponseObject, context: list[InputItem], own_items: int) -> "StoredResponse":
        """From an answer and the items that it answers."""
        return cls(encode_json(answer), encode_json(context), own_items, encode_json(output_as_input(answer.output)))

    @property
    def size(self) -> int:
        """Bytes."""
        return len(self.body) + len(self.context) + len(self.output)

    @property
    def input_items(self) -> list[InputItem]:
        """Its own input."""
        context = decode_items(self.context)
        return context[len(context) - self.own_items :]

    @property
    def conversation(self) -> list[InputItem]:
        """Everything up to its end: what a response goes on from."""
        return [*decode_items(self.context), *decode_items(self.output)]


class ResponseStore:
    """The kept answers of one server. At most ``max_count`` and ``max_bytes``; a count of 0 keeps none.

    They are in one process's memory: of several API processes (``alone`` false), none keeps any.
    """

    def __init__(self, max_count: int, max_bytes: int, alone: bool = True) -> None:
        self._max_count = max_count if alone else 0
        self._alone = alone
        self._max_bytes = max_bytes
        self._kept: OrderedDict[str, StoredResponse] = OrderedDict()
        self.num_bytes = 0
        """Of all kept answers."""

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def enabled(self) -> bool:
        """False: nothing is ever kept."""
        return self._max_count > 0

    def put(self, response_id: str, stored: StoredResponse) -> None:
        """Keep an answer. One that alone is over the limit in bytes is not kept."""
        if stored.size > self._max_bytes or not self.enabled:
            return
        self._kept[response_id] = stored
        self.num_bytes += stored.size
        while len(self._kept) > self._max_count or self.num_bytes > self._max_bytes:
            _, oldest = self._kept.popitem(last=False)
            self.num_bytes -= oldest.size

    def get(self, response_id: str, param: str) -> StoredResponse:
        """A kept answer, which counts as used. Raises ``UnknownResponseError``, or says that none can be kept."""
        stored = self._kept.get(response_id)
        if stored is None:
            raise self._unknown(response_id, param)
        self._kept.move_to_end(response_id)
        return stored

    def delete(self, response_id: str) -> None:
        """Forget an answer. Raises ``UnknownResponseError``."""
        stored = self._kept.pop(response_id, None)
        if stored is None:
            raise self._unknown(response_id, "response_id")
        self.num_bytes -= stored.size

    def _unknown(self, response_id: str, param: str) -> RequestError:
        if not self._alone:
            return UnsupportedFieldError(
                "this server keeps no responses, since it has several API processes: they need --api-server-count 1; "
                "send the whole conversation as input instead",
                param,
            )
        why = (
            f"it keeps the last {self._max_count} in memory (--responses-store-size)"
            if self.enabled
            else "it runs with --responses-store-size 0"
        )
        return UnknownResponseError(f"no response {response_id[:128]!r} is kept by this server: {why}", param)
