"""The sampler on a CUDA GPU: masks and penalties by torch's operators where a row asks for them, the draw by one family
of Triton kernels that read the logits in the model's own dtype."""

from torch import Tensor

from ..kernels.triton.sampling import SamplingRows, sample
from .sampler import Sampler
from .sampling_batch import SamplingBatch


class FusedSampler(Sampler):
    """Draws without a sort, and without widening the logits unless something else needs that."""

    def _draw(self, logits: Tensor, batch: SamplingBatch, positions: Tensor) -> Tensor:
        rows = batch.row_parameters
        parameters = SamplingRows(rows.temperature, rows.top_k, rows.top_p, rows.min_p, batch.seeds, positions)
        draws = batch.num_greedy < batch.num_rows
        confined = any(group.filters or group.min_p is not None for group in batch.draws)
        return sample(logits, parameters, draws=draws, filters=confined)
