"""Drawing one token per row of logits: the torch reference.

The Triton kernels give the same tokens, except where the noise or a threshold falls on a border between two tokens
within float32's rounding: devices differ in ``exp``, and weights there are relative to the best token. Every row is
computed as if it were alone. Three things make that hold on any device and for any batch:

- *Noise* is a counter-based hash of (seed, position), in wrapping 64-bit integer arithmetic.
- *Sums* of probabilities are integer sums. A float32 probability p becomes the integer ``floor(p * 2**50)``; integer
  addition is associative, so no order of summation, block size or candidate count can change a result. A total stays
  below 2**52 and is exact in float64 too. A token whose probability is below 2**-50 (9e-16) has weight 0 and is never
  drawn; every other weight is off by less than 9e-16 beside float32's own rounding of p.
- *Order* between tokens is total: by logit, highest first, then by id, lowest first. Top-k keeps exactly k tokens and
  top-p the shortest prefix of that order, whatever the ties.

What remains is elementwise arithmetic, comparisons and softmax, which works row by row.

Shapes: S rows, V vocabulary. Logits are float32; masked tokens are ``-inf``. A row without one finite logit (all
masked, or NaN) gives token 0, except that a greedy row with a NaN gives the first NaN's id.
"""

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

CANDIDATES = 256
"""How many best tokens top-k and top-p look at first."""

MAX_LOGIT = 1e30
"""Penalties cannot raise a logit above this, so that no infinity reaches softmax."""

_MORE_CANDIDATES = 4096
_GREEDY_PART = 1024
_GREEDY_LEAST_PART = 64
_FEW = 64
_WEIGHT_SCALE = 2.0**50
_CPU_ELEMENTS = 400_000
_DEVICE_ELEMENTS = 32_000_000
_GOLDEN = 0x9E3779B97F4A7C15 - 2**64  # the constants of splitmix64 (Steele et al., 2014), as signed integers
_MIX_1 = 0xBF58476D1CE4E5B9 - 2**64
_MIX_2 = 0x94D049BB133111EB - 2**64


def rows_at_once(vocab_size: int, device: torch.device) -> int:
    """How many rows of logits to draw from, or take log probabilities of, in one call.

    On the CPU temporaries of few rows stay in its cache and in memory already mapped, which halves the time at 32 rows
    of 49152. Elsewhere the number only bounds the memory taken (256 MB for each 64-bit temporary).
    """
    elements = _CPU_ELEMENTS if device.type == "cpu" else _DEVICE_ELEMENTS
    return max(1, elements // vocab_size)


def uniform(seeds: Tensor, positions: Tensor) -> Tensor:
    """One number in [0, 1) per row, float64 [S], a pure function of its int64 seed and position.

    Two rounds of the splitmix64 finalizer, the position entering between them; the top 53 bits are the number.
    """
    keys = _mix(seeds + _GOLDEN)
    bits = _mix(keys + positions * _GOLDEN)
    return _shift_right(bits, 11).to(torch.float64) * 2.0**-53


def greedy(logits: Tensor) -> Tensor:
    """The best token of each row, int64 [S]; the lowest id wins a tie, and a NaN beats every number."""
    rows, vocab = logits.shape
    part = math.gcd(vocab, _GREEDY_PART)
    if logits.device.type != "cpu" or part < _GREEDY_LEAST_PART:
        return logits.argmax(dim=-1)
    # A CPU finds the largest value with vector instructions, its place one element after another: the place is looked
    # for only in the part that holds it. 32 rows of 49152 take 0.09 ms instead of 0.45.
    parts = logits.view(rows, -1, part)
    best = parts.amax(dim=-1).argmax(dim=-1)
    inside = parts[torch.arange(rows), best].argmax(dim=-1)
    return best * part + inside


def draw_plain(scaled: Tensor, noise: Tensor, min_p: Tensor | None) -> Tensor:
    """Draws from softmax of the whole row, int64 [S].

    ``scaled``: logits over temperature, float32 [S, V]. ``noise``: float64 [S]. ``min_p``: float32 [S], 0 for rows
    without, or None when no row has one.
    """
    probs = torch.softmax(scaled, dim=-1)
    return _settle(draw(token_weights(probs, min_p), noise), probs)


def draw_filtered(
    scaled: Tensor, noise: Tensor, min_p: Tensor | None, top_k: Tensor, top_p: Tensor, width: int | None
) -> Tensor:
    """Draws after min_p, then top-k, then top-p, int64 [S].

    ``top_k``: int64 [S], between 1 and V (V keeps all). ``top_p``: float64 [S], above 0. ``width``: a number of best
    tokens that no row's top_k exceeds, or None if some row's set has no such bound. It changes the speed, never a
    result. Without it, rows on the CPU try a few best tokens, then more, and those left are sorted whole. Elsewhere
    asking whether a row needs more would wait for the device, so all rows are sorted at once.
    """
    probs = torch.softmax(scaled, dim=-1)
    vocab = scaled.shape[1]
    rows = _FilteredRows(scaled, probs, noise, min_p, top_k, top_p, None)
    if width is not None:
        return _settle(_draw_best(rows, min(width, vocab))[0], probs)
    rows = rows._replace(totals=token_weights(probs, min_p).sum(dim=-1))
    if scaled.device.type != "cpu":
        return _settle(_draw_best(rows, vocab)[0], probs)
    tokens, enough = _draw_best(rows, min(CANDIDATES, vocab))
    for width in (min(_MORE_CANDIDATES, vocab), vocab):
        left = (~enough).nonzero()[:, 0]
        if len(left):
            tokens[left], enough[left] = _draw_best(rows.take(left), width)
    return _settle(tokens, probs)


def token_weights(probs: Tensor, min_p: Tensor | None = None) -> Tensor:
    """Probabilities as integers, int64 [S, N], those below ``min_p`` times the row's best as 0.

    ``probs``: float32 [S, N], the row's best among them.
    """
    if min_p is not None:
        floor = min_p * probs.amax(dim=-1)
        probs = probs.masked_fill(probs < floor[:, None], 0.0)
    return (probs * _WEIGHT_SCALE).to(torch.int64)  # scaling by a power of two is exact


def draw(weights: Tensor, noise: Tensor) -> Tensor:
    """Inverse CDF: the first index whose cumulative weight exceeds ``noise`` times the total, int64 [S].

    ``weights``: int64 [S, N]. An index of weight 0 cannot be drawn: the sum does not rise there. Rows whose total is
    0 give index N - 1; callers replace it. ``noise``: float64 [S], of ``uniform``.
    """
    sums = weights.cumsum(dim=-1)
    totals = sums[:, -1]
    # Noise is at most 1 - 2**-53, so that the product, rounded to float64, is still below its exact total.
    targets = (noise * totals).to(torch.int64)
    indices = torch.searchsorted(sums, targets[:, None], right=True)
    return indices[:, 0].clamp(max=weights.shape[1] - 1)


def token_keys(logits: Tensor) -> Tensor:
    """One integer per token, int64 [S, V], distinct in its row: lower for a higher logit, then for a lower id.

    With it any algorithm that selects or sorts gives the same tokens in the same order.
    """
    bits = (logits + 0.0).view(torch.int32)  # adding 0 turns -0.0 into 0.0, its equal
    # As integers, positive floats ascend and negative ones descend with their value. All shall descend: every bit of
    # the former is flipped, of the latter only the sign.
    flips = (bits >> 31).bitwise_and_(0x7FFFFFFF).bitwise_not_()
    ids = torch.arange(logits.shape[1], device=logits.device)
    return flips.bitwise_xor_(bits).to(torch.int64).bitwise_left_shift_(32).bitwise_or_(ids)


def best_tokens(keys: Tensor, count: int) -> Tensor:
    """Ids of the ``count`` best tokens of each row of ``token_keys``, int64 [S, count], best first."""
    if keys.device.type == "cpu" and count > _FEW:
        # numpy's vectorised partition and sort take a fraction of torch's time, except for few of many.
        array = keys.numpy()
        part = np.partition(array, count - 1, axis=-1)[:, :count] if count < keys.shape[1] else array
        best = torch.from_numpy(np.sort(part, axis=-1))
    elif count < keys.shape[1]:
        best = keys.topk(count, dim=-1, largest=False).values
    else:
        best = keys.sort(dim=-1).values
    return best & 0xFFFFFFFF


def token_logprobs(logits: Tensor, tokens: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Log probabilities of given tokens and of the best ones.

    ``logits``: float32 [S, V]; ``tokens``: int64 [S]. Returns the tokens' log probabilities float32 [S], their ranks
    int64 [S] (1 is the best, in the order of ``token_keys``), the ``count`` best ids int64 [S, count] and their log
    probabilities float32 [S, count].
    """
    logprobs = torch.log_softmax(logits, dim=-1)
    keys = token_keys(logits)
    ranks = (keys <= keys.gather(1, tokens[:, None])).sum(dim=-1)
    best = best_tokens(keys, count) if count else tokens.new_empty((len(tokens), 0))
    return logprobs.gather(1, tokens[:, None])[:, 0], ranks, best, logprobs.gather(1, best)


def apply_penalties(
    logits: Tensor,
    rows: Tensor,
    pool_rows: Tensor,
    width: int,
    tokens: Tensor,
    counts: Tensor,
    in_prompt: Tensor,
    repetition: Tensor,
    frequency: Tensor,
    presence: Tensor,
) -> None:
    """Applies the three penalties in place, touching only tokens that were seen: cost grows with the context, not V.

    ``rows`` [P] of ``logits`` have their past in ``pool_rows`` [P] of ``tokens`` [pool, L] (prompt, then output; every
    seen token is among the first ``width`` columns), ``counts`` [pool, V] (in the output) and ``in_prompt`` bool
    [pool, V]. The penalties are float32 [P]. First repetition (prompt and output): positive logits are divided,
    others multiplied; then frequency and presence (output only) are subtracted.

    Columns past a row's end may hold any id: what is written depends on the id alone, and for an unseen one it is the
    logit as it was. For the same reason it is no harm that an id occurs many times.
    """
    seen = tokens[pool_rows, :width].to(torch.int64)
    values = logits[rows[:, None], seen]
    count = counts[pool_rows[:, None], seen]
    in_output = count > 0
    factor = repetition[:, None]
    repeated = torch.where(values > 0, values / factor, values * factor).clamp(max=MAX_LOGIT)
    values = torch.where(in_output | in_prompt[pool_rows[:, None], seen], repeated, values)
    values = values - frequency[:, None] * count - presence[:, None] * in_output
    logits[rows[:, None], seen] = values


def mask_bad_words(
    logits: Tensor,
    rows: Tensor,
    last: Tensor,
    prefixes: Tensor,
    prefix_lengths: Tensor,
    pool_rows: Tensor,
    tokens: Tensor,
    positions: Tensor,
    output_starts: Tensor,
) -> None:
    """Masks, in place, the last token of each word whose other tokens end the row's output.

    N words: ``rows`` [N] of ``logits``, ``last`` [N]; ``prefixes`` [N, M] holds the other tokens, *last of them first*,
    of which ``prefix_lengths`` [N] count. ``tokens[pool_rows[n], positions[n] - 1]`` is the newest token of the row,
    and its output begins at column ``output_starts[n]``.
    """
    back = torch.arange(prefixes.shape[1], device=logits.device)
    columns = positions[:, None] - 1 - back
    past = tokens[pool_rows[:, None], columns.clamp(min=0)]
    equal = (past == prefixes) & (columns >= output_starts[:, None])
    matches = (equal | (back >= prefix_lengths[:, None])).all(dim=-1)
    mask_where(logits, rows, last, matches)


def mask_where(logits: Tensor, rows: Tensor, tokens: Tensor, condition: Tensor) -> None:
    """Sets ``logits[rows[n], tokens[n]]`` to -inf, in place, for each n where ``condition`` [N] holds.

    A pair may occur several times with different conditions; one that holds is enough. Adding gives that whatever
    the order, which a plain assignment would not.
    """
    amounts = torch.zeros(len(rows), dtype=logits.dtype, device=logits.device).masked_fill(condition, -torch.inf)
    logits.index_put_((rows, tokens), amounts, accumulate=True)


def keep_bits(logits: Tensor, rows: Tensor, bits: Tensor) -> None:
    """Masks, in place, what a bit mask does not allow.

    ``logits``: float32 [S, V]. ``rows``: int64 [G], distinct. ``bits``: int32 [G, ceil(V / 32)]; token t may come if
    bit t % 32 of word t // 32 is set.
    """
    vocab = logits.shape[1]
    if logits.device.type == "cpu":
        # Row by row in the cache, a fifth of the time of whole matrices.
        values = logits.numpy()
        for row, words in zip(rows.tolist(), bits.numpy(), strict=True):
            forbidden = np.unpackbits(np.bitwise_not(words).view(np.uint8), count=vocab, bitorder="little")
            np.copyto(values[row], -np.inf, where=forbidden.view(np.bool_))
        return
    ids = torch.arange(vocab, device=logits.device)
    allowed = (bits[:, ids >> 5] >> (ids & 31).to(torch.int32)).bitwise_and_(1)
    logits[rows] = logits[rows].masked_fill_(allowed.eq(0), -torch.inf)


class _FilteredRows(NamedTuple):
    """What ``draw_filtered`` knows about each row. ``totals`` int64 [S]: the weights of whole rows, if needed."""

    scaled: Tensor
    probs: Tensor
    noise: Tensor
    min_p: Tensor | None
    top_k: Tensor
    top_p: Tensor
    totals: Tensor | None

    def take(self, rows: Tensor) -> "_FilteredRows":
        """Some of the rows."""
        min_p = None if self.min_p is None else self.min_p[rows]
        totals = None if self.totals is None else self.totals[rows]
        filters = (self.top_k[rows], self.top_p[rows])
        return _FilteredRows(self.scaled[rows], self.probs[rows], self.noise[rows], min_p, *filters, totals)


def _draw_best(rows: _FilteredRows, width: int) -> tuple[Tensor, Tensor]:
    """Draws among the ``width`` best tokens; also whether those were enough to know what is kept, bool [S].

    ``rows.totals`` can be None if no top_k is above ``width``.
    """
    best = best_tokens(token_keys(rows.scaled), width)
    weights = token_weights(rows.probs.gather(1, best), rows.min_p)
    places = torch.arange(width, device=best.device)
    weights = weights.masked_fill(places >= rows.top_k[:, None], 0)
    sums = weights.cumsum(dim=-1)
    inside = sums[:, -1]
    bounded = rows.top_k <= width
    totals = inside if rows.totals is None else torch.where(bounded, inside, rows.totals)
    targets = torch.minimum((rows.top_p * totals).ceil().to(torch.int64), totals)
    enough = bounded | ((rows.top_k >= rows.scaled.shape[1]) & (inside >= targets))
    # A token stays while those before it do not reach the target: the shortest prefix that does.
    weights = weights.masked_fill(sums - weights >= targets[:, None], 0)
    if width <= CANDIDATES:
        ids, order = best.sort(dim=-1)
        return ids.gather(1, draw(weights.gather(1, order), rows.noise)[:, None])[:, 0], enough
    by_id = torch.zeros_like(rows.scaled, dtype=torch.int64).scatter_(1, best, weights)
    return draw(by_id, rows.noise), enough


def _settle(tokens: Tensor, probs: Tensor) -> Tensor:
    """Token 0 for rows whose softmax is NaN, which is NaN in every column: no finite logit, or a broken model."""
    return tokens.masked_fill(probs[:, 0].isnan(), 0)


def _mix(value: Tensor) -> Tensor:
    """The finalizer of splitmix64 on int64 that wraps around."""
    value = (value ^ _shift_right(value, 30)) * _MIX_1
    value = (value ^ _shift_right(value, 27)) * _MIX_2
    return value ^ _shift_right(value, 31)


def _shift_right(value: Tensor, bits: int) -> Tensor:
    """Logical shift: zeros come in from the left, also for negative values."""
    return (value >> bits) & ((1 << (64 - bits)) - 1)
