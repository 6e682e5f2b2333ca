"""From text to token ids, without holding up the event loop."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypedDict, TypeVar

from ..core.errors import ContextLengthError, RequestError
from ..engine.async_llm import AsyncLLM
from ..engine.tokenizer import Tokenizer

T = TypeVar("T")

# About 2 ms of tokenizing: below this the hop to a thread costs more than it saves the other requests.
LARGE_TEXT = 8192


class TokensPrompt(TypedDict):
    """A prompt as token ids, with the text that they came from where there is one."""

    prompt_token_ids: list[int]
    prompt: str | None


class PromptEncoder:
    """Encodes prompts; large ones in a thread, and those that cannot fit the context not at all.

    A token stands for a limited number of characters, so a text of more than the context times that is over the
    context whatever its tokens are: 3 MB of text are refused in microseconds instead of seconds.
    """

    def __init__(self, engine: AsyncLLM) -> None:
        self._engine = engine
        self._threads = ThreadPoolExecutor(max_workers=2, thread_name_prefix="encode")

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer. Raises ``RequestError`` if the server runs without one."""
        tokenizer = self._engine.tokenizer
        if tokenizer is None:
            raise RequestError("this server runs without a tokenizer (--skip-tokenizer-init): send token ids as prompt")
        return tokenizer

    async def off_loop(self, size: int, work: Callable[[], T]) -> T:
        """``work()``: here if it handles a text of few characters, in a thread if of many."""
        if size < LARGE_TEXT:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    async def encode(self, text: str, add_special_tokens: bool, param: str, bounded: bool = True) -> list[int]:
        """Token ids of a text. Raises ``RequestError``; if ``bounded``, ``ContextLengthError`` where it cannot fit."""
        return (await self.encode_all([text], add_special_tokens, param, bounded))[0]

    async def encode_all(
        self, texts: list[str], add_special_tokens: bool, param: str, bounded: bool = True
    ) -> list[list[int]]:
        """Token ids of each text. Raises as ``encode`` does."""
        tokenizer = self.tokenizer
        if bounded:
            self.check_texts(texts, param)
        limit = self._engine.config.scheduler.max_model_len

        def encode() -> list[list[int]]:
            for text in texts if bounded else ():
                least = tokenizer.least_tokens(text, limit)
                if least > limit:
                    raise _too_long(text, limit, least, param)
            return [tokenizer.encode(text, add_special_tokens=add_special_tokens) for text in texts]

        return await self.off_loop(sum(map(len, texts)), encode)

    def check_texts(self, texts: list[str], param: str) -> None:
        """Raises ``ContextLengthError`` for a text that cannot fit the context whatever its tokens are."""
        limit = self._engine.config.scheduler.max_model_len
        longest = self.tokenizer.max_token_characters
        for text in texts:
            if len(text) > limit * longest:
                raise _too_long(text, limit, -(-len(text) // longest), param)

    def check_length(self, parts: Sequence[object], param: str, kind: str = "tokens") -> None:
        """Raises ``ContextLengthError`` for more tokens, or messages, of which each has some, than the context holds.

        That is before anyone looks at each of them.
        """
        limit = self._engine.config.scheduler.max_model_len
        if len(parts) > limit:
            raise ContextLengthError.over(limit, f"the prompt is too long: it has {len(parts)} {kind}", param)

    def close(self) -> None:
        """Ends the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _too_long(text: str, limit: int, least: int, param: str) -> ContextLengthError:
    told = f"the prompt is too long: {len(text)} characters are at least {least} tokens"
    return ContextLengthError.over(limit, told, param)
