"""Mistral's formats."""

import re
import secrets
import string

from .json_calls import JsonCallParser
from .text_machine import NotACall, Steps
from .tool_parser import MAX_NAME

_OPENING, _CALL_ID, _ARGS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"
_NAME_CHARACTER = re.compile(r"[-.\w]")
_ALPHABET = string.ascii_letters + string.digits


class MistralParser(JsonCallParser):
    """``[TOOL_CALLS][{"name": "f", "arguments": {...}}]``, and since tokenizer v11 ``[TOOL_CALLS]f[ARGS]{...}``.

    Ids have nine letters and digits: Mistral's templates take no other.
    """

    markers = (_OPENING, _CALL_ID, _ARGS)
    template_signs = ((_OPENING,),)

    def new_id(self) -> str:
        """See ``ToolParser``."""
        return "".join(secrets.choice(_ALPHABET) for _ in range(9))

    def run(self) -> Steps[None]:
        """See ``TextMachine``."""
        yield from self._calls_behind((_OPENING,), self._call)

    def _call(self) -> Steps[None]:
        yield from self._skip(_OPENING)
        first = yield from self._skip_space()
        if first in ("[", "{"):
            yield from self._call_or_list()
            return
        name = yield from self._word(_NAME_CHARACTER, MAX_NAME)
        if (yield from self._skip(_CALL_ID)) is not None:
            yield from self._word(_NAME_CHARACTER, MAX_NAME)  # the answer's own id is as good
        yield from self._skip(_ARGS)
        if (yield from self._skip_space()) != "{":
            raise NotACall
        self._start(name)
        yield from self._streamed_arguments()
