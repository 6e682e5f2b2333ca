"""Who takes part in a throughput benchmark: Octavo's ``LLM``, and Transformers' ``generate`` as the reference."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from ...core.engine_args import EngineArgs
from ...core.errors import ConfigurationError
from ...core.sampling_params import RequestOutputKind, SamplingParams


class Contestant(Protocol):
    """Generates a given number of tokens for each of some prompts, as fast as it can."""

    name: str

    def generate(self, prompts: list[list[int]], output_lens: Sequence[int]) -> int:
        """Runs all requests to their end; the number of tokens that were asked for and came."""
        ...

    def close(self) -> None:
        """Frees the model."""


class OctavoContestant:
    """The offline ``LLM`` class, all requests handed over at once."""

    name = "octavo"

    def __init__(self, engine: EngineArgs) -> None:
        from ..llm import LLM

        self._llm = LLM(**asdict(engine))

    def generate(self, prompts: list[list[int]], output_lens: Sequence[int]) -> int:
        """One ``LLM.generate`` call with greedy requests that ignore end tokens."""
        parameters = [
            SamplingParams(temperature=0.0, max_tokens=n, ignore_eos=True, output_kind=RequestOutputKind.FINAL_ONLY)
            for n in output_lens
        ]
        outputs = self._llm.generate([{"prompt_token_ids": ids} for ids in prompts], parameters, use_tqdm=False)
        return sum(len(completion.token_ids) for output in outputs for completion in output.outputs)

    def close(self) -> None:
        """Ends the engine."""
        self._llm.close()


class TransformersContestant:
    """``AutoModelForCausalLM.generate`` on left-padded batches, in the same dtype and with as many threads.

    A padded batch runs until its longest output is done; only the tokens that each request asked for count.
    """

    name = "transformers"

    def __init__(self, folder: Path, engine: EngineArgs, batch_size: int | None = None) -> None:
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM
        from transformers.utils import logging

        logging.disable_progress_bar()
        logging.set_verbosity_error()
        config = engine.build(folder)
        if engine.num_threads is not None:
            torch.set_num_threads(engine.num_threads)
        self._torch = torch
        self._batch_size = batch_size
        self._device = config.device.device
        dtype = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[config.model.dtype]
        try:
            if engine.load_format == "dummy":
                model: Any = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=dtype)
            else:
                model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"Transformers cannot load {folder}: {error}") from error
        self._model: Any = model.to(self._device).eval()

    def generate(self, prompts: list[list[int]], output_lens: Sequence[int]) -> int:
        """Runs the requests in batches of ``batch_size`` (all in one without it), in the order given."""
        size = self._batch_size or len(prompts)
        return sum(
            self._generate_batch(prompts[start : start + size], output_lens[start : start + size])
            for start in range(0, len(prompts), size)
        )

    def close(self) -> None:
        """Drops the model."""
        self._model = None

    def _generate_batch(self, prompts: list[list[int]], output_lens: Sequence[int]) -> int:
        torch = self._torch
        width = max(map(len, prompts))
        input_ids = torch.zeros((len(prompts), width), dtype=torch.int64)  # [requests, width]
        mask = torch.zeros_like(input_ids)
        for row, ids in enumerate(prompts):
            input_ids[row, width - len(ids) :] = torch.tensor(ids)
            mask[row, width - len(ids) :] = 1
        longest = max(output_lens)
        with torch.inference_mode():
            output = self._model.generate(
                input_ids=input_ids.to(self._device),
                attention_mask=mask.to(self._device),
                max_new_tokens=longest,
                min_new_tokens=longest,
                do_sample=False,
                use_cache=True,
                pad_token_id=0,
            )
        generated = output.shape[1] - width
        return sum(min(n, generated) for n in output_lens)
