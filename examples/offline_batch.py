"""Many prompts at once, without a server: ``python examples/offline_batch.py [MODEL]``."""

import sys

from octavo import LLM, SamplingParams

PROMPTS = [
    "The capital of France is",
    "Water boils at a temperature of",
    "A haiku about a folded sheet of paper:\n",
    "Once upon a time there was a small engine that",
]


def main() -> None:
    """Continues each prompt and prints both. The embedded default model answers if none is named."""
    with LLM(sys.argv[1] if len(sys.argv) > 1 else None, max_model_len=1024) as llm:
        for output in llm.generate(PROMPTS, SamplingParams(temperature=0.0, max_tokens=40)):
            print(f"{output.prompt!r}\n    -> {output.outputs[0].text!r}")


# The engine runs in a process of its own that imports this file anew: only the first may start one.
if __name__ == "__main__":
    main()
