"""Whether tokens are the ones that greedy decoding with Transformers gives, step by step.

Instead of generating, the reference looks at prompt and answer in one forward pass: if at each place of the answer the
best token, given what stands before it, is the one that stands there, then generating would have given this answer.
Where the two best logits lie closer than ``margin`` either is right.
"""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

MARGIN = 1e-4

TEXTS = (
    "The capital of France is",
    "def fibonacci(n):\n    ",
    "Once upon a time, in a village by the sea, there lived",
    "Water boils at 100 degrees because",
)
LENGTHS = [1, 2, 3, 5, 8, 13, 15, 16, 17, 21, 31, 32, 33, 48, 64, 65, 100, 127, 128, 200, 256, 384, 555, 900]


def prompts_of(tokenizer: Any) -> list[list[int]]:
    """One prompt of each length, of real words."""
    ids: list[int] = []
    while len(ids) < max(LENGTHS):
        for number, text in enumerate(TEXTS):
            ids += tokenizer.encode(f"{text} {len(ids) + number}. ")
    return [ids[7 * place : 7 * place + length] for place, length in enumerate(LENGTHS)]


class GreedyTruth:
    """A model loaded by Transformers in float32."""

    def __init__(self, folder: Path) -> None:
        self.model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
        self.model.eval()
        self._known: dict[tuple[int, ...], list[str]] = {}

    def complaints(self, prompt: list[int], answer: list[int]) -> list[str]:
        """What is wrong with an answer; empty if nothing is."""
        key = (*prompt, -1, *answer)
        if key not in self._known:
            self._known[key] = self._check(prompt, answer)
        return self._known[key]

    @torch.inference_mode()
    def _check(self, prompt: list[int], answer: list[int]) -> list[str]:
        ids = torch.tensor([prompt + answer[:-1]])
        logits = self.model(ids, logits_to_keep=len(answer)).logits[0].float()
        best = logits.max(dim=-1)
        given = logits.gather(1, torch.tensor(answer)[:, None])[:, 0]
        gaps = (best.values - given).tolist()
        return [
            f"token {place} is {answer[place]}, {gap:.2e} below the best, {int(best.indices[place])}"
            for place, gap in enumerate(gaps)
            if gap >= MARGIN
        ]
