"""How one request wants the vector of its prompt."""

from typing import Any

import msgspec
import numpy as np

from .errors import RequestError


class PoolingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How one request wants its vector. Checked on construction; a bad value raises ``RequestError``."""

    dimensions: int | None = None
    """Only the first so many numbers, for models that allow it."""
    normalize: bool | None = None
    """Bring the vector to length 1. None: as the model's files say."""
    truncate_prompt_tokens: int | None = None
    """Cut a longer prompt to so many tokens, special ones included; -1: to what the model takes. None: refuse it."""
    second_text_at: int | None = None
    """For a pair of texts as one prompt: where the second one's tokens begin."""
    priority: int = 0
    """Lower is served first under the priority policy."""

    def __post_init__(self) -> None:
        limits = (
            ("dimensions", 1, 2**31 - 1),
            ("truncate_prompt_tokens", -1, 2**31 - 1),
            ("second_text_at", 0, 2**31 - 1),
            ("priority", -(2**31), 2**31 - 1),
        )
        for name, low, high in limits:
            value = getattr(self, name)
            if value is None and name != "priority":
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
                raise RequestError.at(name, f"must be an integer between {low} and {high}, not {value!r}")
        if self.truncate_prompt_tokens == 0:
            raise RequestError.at("truncate_prompt_tokens", "must be at least 1, or -1 for the model's limit")
        if self.normalize is not None and not isinstance(self.normalize, bool):
            raise RequestError.at("normalize", f"must be true or false, not {self.normalize!r}")

    def replace(self, **changes: Any) -> "PoolingParams":
        """A copy with some fields changed; checked again."""
        return msgspec.structs.replace(self, **changes)

    def cut_to(self, longest: int) -> int | None:
        """Tokens that the prompt is to be cut to, for a model that takes so many; None: it is not to be cut."""
        return longest if self.truncate_prompt_tokens == -1 else self.truncate_prompt_tokens

    def finish(self, pooled: bytes) -> np.ndarray:
        """The vector, float32 [D], of what the worker pooled: cut, then brought to length 1."""
        vector = np.frombuffer(pooled, dtype=np.float32)[: self.dimensions]
        return vector / np.float32(max(float(np.linalg.norm(vector)), 1e-12)) if self.normalize else vector
