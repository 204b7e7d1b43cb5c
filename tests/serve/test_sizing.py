"""Sizes that nobody gave: by the rule, in absolute numbers, and never against what was asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import tiny
from farthing.core import DoesNotFitError, KVDtype
from farthing.files.checkpoint import open_checkpoint
from farthing.models.load import load_model
from farthing.plan.memory import require_room
from farthing.serve.sizing import LEAST_CACHE_TOKENS, SLOTS, TOKENS_PER_SLOT, choose_sizes

if TYPE_CHECKING:
    from farthing.models.load import Model

PLENTY = 1 << 40


@pytest.fixture(scope="module")
def model() -> Model:
    """Made for 1,024 positions."""
    return load_model(open_checkpoint(tiny.shared("llama")))


def test_there_is_room_for_the_usual_number_of_tokens_in_every_slot(model: Model) -> None:
    sizes = choose_sizes(model, room=PLENTY)
    assert sizes.plan.slots == SLOTS
    assert sizes.plan.cache_tokens == SLOTS * TOKENS_PER_SLOT
    assert sizes.fits
    assert choose_sizes(model, slots=3, room=PLENTY).plan.cache_tokens == 3 * TOKENS_PER_SLOT


def test_one_whole_context_fits_into_the_cache_whatever_the_slots(model: Model) -> None:
    assert choose_sizes(model, slots=1, room=PLENTY).plan.cache_tokens == 1024
    sizes = choose_sizes(model, slots=1, context_length=640, room=PLENTY)
    assert sizes.plan.cache_tokens == 640
    assert "one whole context" in sizes.why


def test_where_memory_is_short_the_cache_is_halved_until_it_fits_and_that_is_told(
    model: Model,
) -> None:
    usual = choose_sizes(model, room=PLENTY)
    growing = usual.plan.total_blocks * usual.plan.block_bytes_in_all
    room = usual.needed - growing + growing // 3
    sizes = choose_sizes(model, room=room)
    assert sizes.fits
    assert sizes.plan.cache_tokens == usual.plan.cache_tokens // 4
    assert sizes.plan.slots == SLOTS
    assert f"the usual {usual.plan.cache_tokens:,} would take" in sizes.why


def test_a_cache_is_not_halved_below_the_least_but_refused(model: Model) -> None:
    sizes = choose_sizes(model, room=0)
    assert sizes.plan.cache_tokens == LEAST_CACHE_TOKENS
    assert not sizes.fits
    with pytest.raises(DoesNotFitError, match="no cache fits"):
        require_room(sizes.plan, sizes.room)


def test_what_is_asked_for_is_never_changed(model: Model) -> None:
    sizes = choose_sizes(model, cache_tokens=1 << 20, slots=7, kv_dtype=KVDtype.INT8, room=1 << 28)
    assert (sizes.plan.cache_tokens, sizes.plan.slots) == (1 << 20, 7)
    assert sizes.plan.kv_dtype is KVDtype.INT8
    assert not sizes.fits
    assert sizes.why == "7 slots as asked, 1,048,576 tokens as asked"


def test_the_same_question_has_the_same_answer_wherever_there_is_room(model: Model) -> None:
    usual = choose_sizes(model, room=PLENTY)
    just = choose_sizes(model, room=usual.needed)
    assert just.plan == usual.plan
    assert just.why == usual.why
