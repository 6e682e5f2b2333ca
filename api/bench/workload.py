"""Descriptions of work: how many requests, how long their prompts and outputs, and the prompts themselves."""

import random
from dataclasses import dataclass

from ..config_file import UsageError

# Ids below this are special tokens in most vocabularies.
FIRST_PLAIN_TOKEN = 256


@dataclass(frozen=True, slots=True)
class Work:
    """Named work; request i has ``prompt_lens[i]`` prompt tokens and shall give exactly ``output_lens[i]`` tokens."""

    name: str
    prompt_lens: tuple[int, ...]
    output_lens: tuple[int, ...]

    @property
    def num_requests(self) -> int:
        return len(self.prompt_lens)

    @property
    def prompt_tokens(self) -> int:
        return sum(self.prompt_lens)

    @property
    def output_tokens(self) -> int:
        return sum(self.output_lens)

    @property
    def longest(self) -> int:
        """Tokens of the longest request, prompt and output together."""
        return max(p + o for p, o in zip(self.prompt_lens, self.output_lens, strict=True))

    def prompts(self, vocab_size: int, seed: int) -> list[list[int]]:
        """Random token ids, the same for the same seed; no two prompts share a beginning, so no cache helps."""
        draw = random.Random(f"{seed} {self.name}")
        low = min(FIRST_PLAIN_TOKEN, vocab_size // 2)
        return [[draw.randrange(low, vocab_size) for _ in range(length)] for length in self.prompt_lens]


def fixed_work(num_requests: int, prompt_len: int, output_len: int) -> Work:
    """``num_requests`` requests of equal lengths."""
    name = f"fixed:{num_requests}:{prompt_len}:{output_len}"
    return Work(name, (prompt_len,) * num_requests, (output_len,) * num_requests)


def parse_work(spec: str, seed: int = 0) -> Work:
    """The work that a ``--work`` value describes.

    ``fixed:N:IN:OUT`` is N requests of IN prompt and OUT output tokens; ``ragged:N:LOW-HIGH:LOW-HIGH`` draws each
    length evenly from its range (the same draws for the same seed). Raises ``UsageError``.
    """
    kind, *fields = spec.split(":")
    try:
        if kind == "fixed" and len(fields) == 3:
            num, prompt_len, output_len = (_count(field) for field in fields)
            return fixed_work(num, prompt_len, output_len)
        if kind == "ragged" and len(fields) == 3:
            return draw_lengths(_count(fields[0]), fields[1], fields[2], seed)
    except ValueError as error:
        raise UsageError(f"--work {spec!r}: {error}") from error
    raise UsageError(f"--work {spec!r} is neither fixed:N:IN:OUT nor ragged:N:LOW-HIGH:LOW-HIGH")


def draw_lengths(num_requests: int, prompt_len: str, output_len: str, seed: int) -> Work:
    """Requests whose lengths are drawn evenly from LOW-HIGH (or are a plain number). Raises ``UsageError``."""
    try:
        prompt_span, output_span = _span(prompt_len), _span(output_len)
    except ValueError as error:
        raise UsageError(f"the lengths {prompt_len!r} and {output_len!r} must be like 64 or 16-128: {error}") from error
    name = f"ragged:{num_requests}:{prompt_len}:{output_len}"
    draw = random.Random(f"{seed} {name}")
    lens = [(draw.randint(*prompt_span), draw.randint(*output_span)) for _ in range(num_requests)]
    return Work(name, tuple(p for p, _ in lens), tuple(o for _, o in lens))


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(f"{text} must be at least 1")
    return number


def _span(text: str) -> tuple[int, int]:
    low, _, high = text.partition("-")
    span = _count(low), _count(high or low)
    if span[0] > span[1]:
        raise ValueError(f"the range {text} is empty")
    return span
