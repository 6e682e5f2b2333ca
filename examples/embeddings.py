"""Vectors of texts, and which of them fit a question: ``python examples/embeddings.py [MODEL]``.

Any model makes vectors; those of an embedding model, like a sentence-transformers folder, mean most.
"""

import sys

from octavo import LLM

QUESTION = "What is the capital of France?"
TEXTS = [
    "Bananas are yellow and grow in the tropics.",
    "Paris has been the capital of France for a thousand years.",
    "The train to Lyon leaves at noon.",
]


def main() -> None:
    """Prints the size of a vector, then the texts, the one that fits the question best first."""
    with LLM(sys.argv[1] if len(sys.argv) > 1 else None, max_model_len=256) as llm:
        vectors = [output.embedding for output in llm.embed(TEXTS)]
        print(f"{len(vectors)} vectors of {len(vectors[0])} numbers")
        for score, text in sorted(zip(llm.score(QUESTION, TEXTS), TEXTS, strict=True), reverse=True):
            print(f"{score:6.3f}  {text}")


# The engine runs in a process of its own that imports this file anew: only the first may start one.
if __name__ == "__main__":
    main()
