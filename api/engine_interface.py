"""What the HTTP doors ask of an engine. ``AsyncLLM`` is one; the tests have another, which plays given tokens."""

from collections.abc import AsyncGenerator, Sequence
from typing import TYPE_CHECKING, Protocol, TypedDict

from ..core.config import EngineConfig
from ..core.engine_output import EngineReady
from ..core.errors import EngineError
from ..core.outputs import RequestOutput
from ..core.sampling_params import SamplingParams

if TYPE_CHECKING:
    # Only for the types: their libraries must not hold up the start.
    from ..core.pooling_params import PoolingParams
    from ..engine.input_processor import PreparedRequest
    from ..engine.tokenizer import Tokenizer
    from ..engine.transport import EngineSeat


class TokensPrompt(TypedDict):
    """A prompt as token ids, with the text that they came from where there is one."""

    prompt_token_ids: list[int]
    prompt: str | None


class EngineInterface(Protocol):
    """An engine that generates, and says how it is."""

    @property
    def config(self) -> EngineConfig: ...

    @property
    def tokenizer(self) -> "Tokenizer | None": ...

    @property
    def status(self) -> str:
        """``loading``, ``ready`` or ``dead``."""
        ...

    @property
    def seats(self) -> "Sequence[EngineSeat]":
        """Where other processes join the engine."""
        ...

    @property
    def dead_error(self) -> EngineError | None:
        """Why the engine is gone; None while it is not."""
        ...

    @property
    def engine_info(self) -> EngineReady | None:
        """What the engine said of itself when it was ready; None until then."""
        ...

    async def prepare(
        self,
        prompt: TokensPrompt,
        sampling_params: "SamplingParams | PoolingParams",
        *,
        cache_salt: str | None = None,
    ) -> "PreparedRequest":
        """All checks of a request without running it. Raises ``RequestError``."""
        ...

    def generate(
        self, prompt: "PreparedRequest", *, request_id: str | None = None
    ) -> AsyncGenerator[RequestOutput, None]:
        """Yields outputs until all ``n`` completions are done. Closing the generator aborts the request."""
        ...

    async def wait_ready(self) -> None:
        """Returns once requests can be served. Raises ``EngineStartError``."""
        ...

    async def wait_dead(self) -> EngineError:
        """Returns, with the cause, when the engine is gone."""
        ...

    def fail(self, cause: str) -> None:
        """Gives the engine up, for a cause that it does not know of. Any thread may call this."""
        ...

    async def shutdown(self, drain_seconds: float = 0.0) -> None:
        """Ends the engine and its processes."""
        ...
