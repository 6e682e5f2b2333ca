"""Masks of the rows that have a grammar: right tokens, ends held back, replay, failures, and nothing for the others."""

from typing import Any

import numpy as np
import pytest
import torch
from random_schemas import END, byte_vocabulary

from octavo.core.grammar import LARK, REGEX, GrammarSpec
from octavo.core.sampling_params import SamplingParams
from octavo.core.step import NewRequest
from octavo.kernels.sampling import keep_bits
from octavo.worker.grammar_cache import GrammarCache
from octavo.worker.grammar_rows import RowGrammars, RowMasks

VOCABULARY = byte_vocabulary()
VOCAB = len(VOCABULARY.token_bytes)
ID = {text: token for token, text in enumerate(VOCABULARY.token_bytes) if text}


@pytest.fixture(scope="module")
def cache() -> GrammarCache:
    cache = GrammarCache()
    cache.provide(VOCABULARY)
    return cache


@pytest.fixture
def rows(cache: GrammarCache) -> RowGrammars:
    return RowGrammars(cache, 8, VOCAB, torch.device("cpu"))


def _new(cache: GrammarCache, slot: int, spec: GrammarSpec | None, output: bytes = b"", **params: Any) -> NewRequest:
    if spec is not None:
        cache.start(spec)
    tokens = [1, 2, 3, *(ID[bytes([byte])] for byte in output)]
    return NewRequest(slot, "r", np.array(tokens, np.int32), 3, 0, [], SamplingParams(**params), 0, [END], [], spec)


def _allowed(masks: RowMasks | None, place: int) -> set[bytes]:
    assert masks is not None
    bits = np.unpackbits(masks.bits.numpy()[place].view(np.uint8), bitorder="little")[:VOCAB]
    return {VOCABULARY.token_bytes[token] for token in np.flatnonzero(bits)}


def _draw(rows: RowGrammars, slots: list[int], drawn: list[bytes]) -> None:
    rows.keep_drawn(np.array(slots), torch.tensor([ID[text] for text in drawn]))


def test_masks_are_for_the_rows_with_a_grammar_and_follow_what_is_drawn(cache: GrammarCache, rows: RowGrammars) -> None:
    assert not rows.active
    rows.add(_new(cache, 5, None))
    assert not rows.active
    rows.add(_new(cache, 2, GrammarSpec(REGEX, "ab|cd")))
    rows.add(_new(cache, 7, GrammarSpec(REGEX, "[xy]z")))
    slots = np.array([5, 7, 1, 2])
    masks = rows.masks(slots)
    assert masks is not None and masks.rows.tolist() == [1, 3] and not masks.failures
    assert (_allowed(masks, 0), _allowed(masks, 1)) == ({b"x", b"y"}, {b"a", b"c"})
    _draw(rows, [5, 7, 1, 2], [b"q", b"y", b"q", b"c"])
    masks = rows.masks(np.array([2, 7]))
    assert (_allowed(masks, 0), _allowed(masks, 1)) == ({b"d"}, {b"z"})
    _draw(rows, [2, 7], [b"d", b"z"])
    masks = rows.masks(np.array([7]))
    assert _allowed(masks, 0) == {b"<end>"}
    rows.remove(2)
    rows.remove(7)
    assert not rows.active and rows.masks(np.array([2, 7])) is None


def test_tokens_drawn_for_a_slot_that_changed_hands_do_not_reach_the_new_owner(
    cache: GrammarCache, rows: RowGrammars
) -> None:
    rows.add(_new(cache, 2, GrammarSpec(REGEX, "ab")))
    assert rows.masks(np.array([2])) is not None
    _draw(rows, [2], [b"a"])
    rows.remove(2)
    rows.add(_new(cache, 2, GrammarSpec(REGEX, "xy")))
    assert _allowed(rows.masks(np.array([2])), 0) == {b"x"}


def test_a_request_that_comes_back_goes_on_where_its_output_ended(cache: GrammarCache, rows: RowGrammars) -> None:
    rows.add(_new(cache, 0, GrammarSpec(REGEX, "abc[de]"), output=b"abc"))
    assert _allowed(rows.masks(np.array([0])), 0) == {b"d", b"e"}
    rows.add(_new(cache, 1, GrammarSpec(REGEX, "[ab]{2,9}"), output=b"ab", min_tokens=3))
    assert _allowed(rows.masks(np.array([1])), 0) == {b"a", b"b"}
    _draw(rows, [1], [b"a"])
    assert _allowed(rows.masks(np.array([1])), 0) == {b"a", b"b", b"<end>"}


@pytest.mark.parametrize("params", [{"min_tokens": 5}, {"ignore_eos": True}])
def test_an_end_is_held_back_while_anything_else_may_come(
    cache: GrammarCache, rows: RowGrammars, params: dict[str, Any]
) -> None:
    rows.add(_new(cache, 0, GrammarSpec(REGEX, "a?"), **params))
    assert _allowed(rows.masks(np.array([0])), 0) == {b"a"}
    _draw(rows, [0], [b"a"])
    assert _allowed(rows.masks(np.array([0])), 0) == {b"<end>"}


def test_many_rows_get_the_masks_that_each_gets_alone(cache: GrammarCache) -> None:
    many = RowGrammars(cache, 64, VOCAB, torch.device("cpu"))
    one = RowGrammars(cache, 64, VOCAB, torch.device("cpu"))
    for slot in range(64):
        new = _new(cache, slot, GrammarSpec(LARK, f'start: "{slot}" "x" | /[a-z]/ "{slot % 7}"'))
        many.add(new)
        one.add(new)
    masks = many.masks(np.arange(64))
    for slot in range(64):
        assert _allowed(masks, slot) == _allowed(one.masks(np.array([slot])), 0)


def test_a_row_that_cannot_go_on_says_why_and_harms_nobody(cache: GrammarCache, rows: RowGrammars) -> None:
    rows.add(_new(cache, 0, GrammarSpec(REGEX, "ab")))
    rows.add(_new(cache, 1, GrammarSpec(REGEX, "xy")))
    rows.add(_new(cache, 2, GrammarSpec(REGEX, "(")))
    masks = rows.masks(np.array([0, 1, 2]))
    assert masks is not None and set(masks.failures) == {2} and "unclosed group" in masks.failures[2]
    _draw(rows, [0, 1, 2], [b"q", b"x", b"q"])
    masks = rows.masks(np.array([0, 1]))
    assert masks is not None and set(masks.failures) == {0} and "cannot be followed" in masks.failures[0]
    assert _allowed(masks, 1) == {b"y"}


def test_keep_bits_masks_exactly_what_is_not_set() -> None:
    generator = np.random.default_rng(0)
    for vocab in (1, 31, 32, 33, 100, 259):
        logits = torch.from_numpy(generator.normal(size=(5, vocab)).astype(np.float32))
        flags = generator.random((2, vocab)) < 0.5
        padded = np.zeros((2, -(-vocab // 32) * 32), np.uint8)
        padded[:, :vocab] = flags
        bits = torch.from_numpy(np.packbits(padded, axis=1, bitorder="little").view(np.int32).copy())
        masked = logits.clone()
        keep_bits(masked, torch.tensor([3, 1]), bits)
        for row in range(5):
            wanted = logits[row].clone()
            if row in (3, 1):
                wanted[torch.from_numpy(~flags[0 if row == 3 else 1])] = -torch.inf
            assert torch.equal(masked[row], wanted)


@pytest.mark.gpu
def test_keep_bits_is_the_same_on_a_gpu() -> None:
    generator = np.random.default_rng(0)
    logits = torch.from_numpy(generator.normal(size=(4, 1000)).astype(np.float32))
    bits = torch.from_numpy(generator.integers(-(2**31), 2**31, (3, 32)).astype(np.int32))
    on_gpu = logits.cuda()
    keep_bits(logits, torch.tensor([0, 2, 3]), bits)
    keep_bits(on_gpu, torch.tensor([0, 2, 3]).cuda(), bits.cuda())
    assert torch.equal(logits, on_gpu.cpu())
