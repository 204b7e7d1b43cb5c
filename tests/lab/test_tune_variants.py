"""Which engines may be chosen: what memory they need, and what receipts say of precisions."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tiny
from farthing.core import DoesNotFitError, KVDtype, RequestError
from farthing.files.checkpoint import open_checkpoint
from farthing.files.receipt import Estimate, tensors_digest
from farthing.lab.tune_gate import Gate, Reference, gate
from farthing.lab.tune_points import Load, batches
from farthing.lab.tune_variants import (
    Variant,
    grouped,
    make_variants,
    needed_tokens,
    require_context,
)
from native_steps import model_at
from receipts import RECEIPT, folder_with_receipt

if TYPE_CHECKING:
    from pathlib import Path

LOAD = Load(8, ((200, 50), (100, 10)))
PLENTY = 1 << 40


@pytest.fixture(scope="module")
def variant() -> Variant:
    model = model_at(tiny.shared("llama", "gguf", "Q4_0"))
    return Variant("one", "model", model, KVDtype.BF16, 1, None)


def test_memory_bounds_the_slots_exactly(variant: Variant) -> None:
    assert variant.most_slots(LOAD, PLENTY) == 8
    room = variant.served(LOAD, 5).needed_bytes
    assert variant.most_slots(LOAD, room) == 5
    assert variant.most_slots(LOAD, room - 1) == 4
    assert variant.most_slots(LOAD, 1) == 0


def test_the_cache_is_one_whole_context_where_that_fits_else_what_the_load_needs(
    variant: Variant,
) -> None:
    small = Load(1, ((20, 10),))
    assert variant.cache_tokens(small, 1, PLENTY) == 1024
    room = variant.served(small, 1).needed_bytes
    assert variant.cache_tokens(small, 1, room) == needed_tokens(small, 1) == 64
    assert variant.cache_tokens(LOAD, 8, PLENTY) == needed_tokens(LOAD, 8) > 1024


def test_the_cache_has_room_for_every_text_and_a_block_more_for_each() -> None:
    same = Load(4, ((200, 50),))
    assert needed_tokens(same, 4) <= 4 * (256 + 32)
    assert needed_tokens(same, 1) == 256 + 32


def test_what_is_measured_fits_and_is_smaller_where_memory_is_short(variant: Variant) -> None:
    plan, steps = variant.fitted(LOAD, batches(8), PLENTY)
    assert max(each.decoding for each in steps) == 16
    assert max(each.blocks for each in steps) * 32 <= plan.cache_tokens
    assert max(each.shape.rows for each in steps) <= plan.step_rows
    assert max(each.shape.tokens for each in steps) <= plan.step_tokens
    room = variant.measured(LOAD, 4)[0].needed_bytes
    plan, steps = variant.fitted(LOAD, batches(8), room)
    assert max(each.decoding for each in steps) == 4
    with pytest.raises(DoesNotFitError, match="available"):
        variant.fitted(LOAD, batches(8), 1000)


def test_variants_are_all_combinations_named_by_what_differs(variant: Variant) -> None:
    made = make_variants([("a", variant.model)], [KVDtype.BF16, KVDtype.INT8], [1, 2], None)
    assert [each.name for each in made] == [
        "bf16 cache, 1 thread",
        "bf16 cache, 2 threads",
        "int8 cache, 1 thread",
        "int8 cache, 2 threads",
    ]
    two = make_variants([("a", variant.model), ("b", variant.model)], [KVDtype.BF16], [1], None)
    assert [each.name for each in two] == ["a, bf16 cache, 1 thread", "b, bf16 cache, 1 thread"]
    with pytest.raises(RequestError, match="17 engines would be measured, and 16 at most"):
        make_variants([("a", variant.model)], [KVDtype.BF16], range(1, 18), None)


def test_texts_longer_than_the_context_are_refused() -> None:
    require_context(LOAD, 250)
    with pytest.raises(RequestError, match="the longest request has 250 tokens"):
        require_context(LOAD, 249)


@given(st.lists(st.integers(1, 100), max_size=10), st.integers(1, 120))
def test_groups_hold_all_in_order_and_as_many_as_there_is_room_for(
    sizes: list[int], room: int
) -> None:
    needed = [(str(at), size) for at, size in enumerate(sizes)]
    groups = grouped(needed, room)
    assert [name for group in groups for name in group] == [name for name, _ in needed]
    for at, group in enumerate(groups):
        taken = sum(sizes[int(name)] for name in group)
        assert taken <= room or len(group) == 1
        if at + 1 < len(groups):
            assert taken + sizes[int(groups[at + 1][0])] > room


def test_a_gate_is_read_and_counts_the_worse_end_of_each_interval() -> None:
    assert gate("perplexity=1.02") == Gate(perplexity=1.02)
    assert gate("kl=1e-2, agreement=95%") == Gate(kl=0.01, agreement=0.95)
    assert Gate(perplexity=1.079).failure(RECEIPT) == ""
    assert "perplexity may be x 1.079" in Gate(perplexity=1.07).failure(RECEIPT)
    assert Gate(kl=0.055, agreement=0.9).failure(RECEIPT) == ""
    assert "KL may be 0.055" in Gate(kl=0.05).failure(RECEIPT)
    assert "agreement may be 90.0%" in Gate(agreement=0.91).failure(RECEIPT)


@pytest.mark.parametrize(
    "text", ["", "perplexity", "kl=", "kl=-1", "kl=1,kl=2", "speed=3", "perplexity=0.5", "kl=nan"]
)
def test_a_gate_that_is_none_is_explained(text: str) -> None:
    with pytest.raises(RequestError, match="--quality"):
        gate(text)


def test_a_candidate_needs_a_receipt_against_the_same_model_that_shows_little_loss(
    tmp_path: Path,
) -> None:
    base = tiny.shared("llama", "safetensors", "BF16")
    with open_checkpoint(base) as checkpoint:
        reference = Reference(checkpoint)
        own = tensors_digest(checkpoint)
        assert "has no receipt" in reference.refusal(checkpoint, Gate())
    facts = replace(RECEIPT.reference, tensors=own)
    good = folder_with_receipt(tmp_path / "good", reference=facts)
    with open_checkpoint(good) as checkpoint:
        assert reference.refusal(checkpoint, Gate(perplexity=1.08)) == ""
        assert "perplexity may be" in reference.refusal(checkpoint, gate("perplexity=1.02"))
        # It may be MODEL itself: what it was measured against is what others have to be, too.
        assert Reference(checkpoint).refusal(checkpoint, Gate()) == ""
    other = folder_with_receipt(tmp_path / "other")
    with open_checkpoint(other) as checkpoint:
        assert "is against a-model, which has other" in reference.refusal(checkpoint, Gate())
    broken = folder_with_receipt(tmp_path / "broken", tensors="0" * 32)
    with open_checkpoint(broken) as checkpoint:
        assert "its receipt is refused" in reference.refusal(checkpoint, Gate())
    better = folder_with_receipt(
        tmp_path / "better", reference=facts, perplexity_ratio=Estimate(1.0, 0.99, 1.01)
    )
    with open_checkpoint(better) as checkpoint:
        assert reference.refusal(checkpoint, gate("perplexity=1.02")) == ""
