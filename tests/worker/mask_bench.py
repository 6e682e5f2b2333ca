"""What masks of grammars cost in each step, on the default model.

    python3 tests/worker/mask_bench.py [REQUESTS ...]

All requests of a run follow one JSON schema. *fill* is the time in ``RowGrammars.masks`` (telling the grammars what was
drawn, computing the masks), *draw* all that follows the logits (masks, sampling); *plain draw* is that of as many
requests without a grammar.
"""

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from octavo import LLM, SamplingParams, StructuredOutputs
from octavo.worker.grammar_rows import RowGrammars
from octavo.worker.model_runner import ModelRunner

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 60},
        "kind": {"enum": ["river", "town", "mountain"]},
        "numbers": {"type": "array", "items": {"type": "integer"}, "minItems": 40},
        "place": {"type": "object", "properties": {"north": {"type": "number"}, "east": {"type": "number"}}},
    },
    "required": ["name", "kind", "numbers", "place"],
    "additionalProperties": False,
}
TIMES: dict[str, list[float]] = {"masks": [], "_draw": []}


def timed(kind: type, name: str) -> None:
    """Let a method note its seconds."""
    inner: Callable[..., Any] = vars(kind)[name]

    def outer(*arguments: Any) -> Any:
        began = time.perf_counter()
        result = inner(*arguments)
        TIMES[name].append(time.perf_counter() - began)
        return result

    setattr(kind, name, outer)


def median_ms(llm: LLM, count: int, structured: StructuredOutputs | None) -> dict[str, float]:
    """Median milliseconds of each timed method over the steps of ``count`` requests."""
    params = SamplingParams(temperature=1.0, seed=1, max_tokens=48, structured_outputs=structured)
    llm.generate(["Describe a place:"], params, use_tqdm=False)  # compiles the grammar
    for times in TIMES.values():
        times.clear()
    llm.generate([f"Describe place {n}:" for n in range(count)], params, use_tqdm=False)
    return {name: statistics.median(times) * 1e3 if times else 0.0 for name, times in TIMES.items()}


def main() -> None:
    """Prints a line for each number of requests."""
    timed(RowGrammars, "masks")
    timed(ModelRunner, "_draw")
    with LLM(multiprocess=False, max_model_len=512) as llm:
        print("requests   fill ms   draw ms   plain draw ms")
        for count in [int(text) for text in sys.argv[1:]] or [1, 8, 64]:
            with_grammar = median_ms(llm, count, StructuredOutputs(json=SCHEMA))
            plain = median_ms(llm, count, None)
            print(f"{count:8} {with_grammar['masks']:9.2f} {with_grammar['_draw']:9.2f} {plain['_draw']:15.2f}")


if __name__ == "__main__":
    main()
