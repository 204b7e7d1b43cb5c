"""Bytes of cache: every figure of arithmetic, and what two allocators really take."""

from __future__ import annotations

import pytest

import half_billion
import tiny
from farthing.backends.native import NativeBackend
from farthing.core import KVDtype
from farthing.lab import kv
from farthing.lab.kv import (
    LARGE,
    SAME_TOKENS,
    SHAPES,
    allocated,
    cache_alone,
    contiguous_bytes,
    large_model,
    layouts,
    measure,
    waste,
)
from farthing.plan.memory import bytes_per_token, plan_memory
from lab_subject import subject_at

FP16 = KVDtype.FP16
BY_NAME = {shape.name: shape.bytes_per_token(FP16) for shape in SHAPES}


def test_a_token_of_24_layers_with_2_heads_of_64_takes_12_288_bytes() -> None:
    assert bytes_per_token(half_billion.model().program, FP16) == 12_288
    assert BY_NAME["0.5B, 14 query heads share 2"] == 12_288


def test_with_14_heads_it_is_86_016_bytes_seven_times_as_much() -> None:
    assert BY_NAME["0.5B, a KV head for each of 14"] == 86_016 == 7 * 12_288


def test_a_token_of_32_layers_with_8_heads_of_128_takes_128_kib() -> None:
    assert LARGE.bytes_per_token(FP16) == 131_072 == 128 * 1024
    assert BY_NAME["13B, a KV head for each of 40"] == 800 * 1024


def test_295_tokens_are_3_624_960_bytes_contiguous_and_3_932_160_in_blocks() -> None:
    model = half_billion.narrow_model()
    assert contiguous_bytes(model.program.cache, FP16, 295) == 3_624_960 == 295 * 12_288
    plan = plan_memory(model, context_length=295, kv_dtype=FP16, threads=1)
    backend = NativeBackend(model, plan)
    try:
        assert backend.cache_bytes().nbytes == 3_932_160 == 320 * 12_288
    finally:
        backend.close()


@pytest.mark.parametrize(("users", "context"), SAME_TOKENS)
def test_65_536_resident_tokens_take_768_mib_whoever_they_belong_to(
    users: int, context: int
) -> None:
    assert users * context == 65_536
    assert users * context * 12_288 == 768 * 1024 * 1024


def test_the_table_of_layouts_has_these_figures() -> None:
    table = layouts(half_billion.model().program.cache)
    assert table.rows[0][1:] == (12_288, 768, 768, 768)
    assert table.rows[1][1:] == (12_288, 768, 768, 768)
    assert "86,016 bytes a token become 12,288, 7 times less" in table.finding
    assert table.expectation is not None
    assert table.expectation.met


def test_one_users_cache_at_128_000_tokens_exceeds_13_gib_of_weights() -> None:
    table = large_model()
    context, grouped, _, weights = table.rows[-1]
    assert context == 128_000
    assert isinstance(grouped, float)
    assert isinstance(weights, float)
    assert (round(grouped, 3), round(weights, 1)) == (15.625, 13.0)
    assert table.rows[0][1] == pytest.approx(1000 * 131_072 / 2**30)


def test_a_cache_alone_takes_what_the_whole_model_allocates() -> None:
    subject = subject_at(tiny.shared("gemma3", "gguf", "F16"))
    with subject.native(295) as whole, subject.native(295, model=cache_alone(subject.model)) as own:
        assert own.cache_bytes().nbytes == whole.cache_bytes().nbytes
        assert own.plan.weight_bytes < whole.plan.weight_bytes


def test_a_type_that_cannot_hold_the_heads_is_skipped_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kv, "kv_dtypes", lambda program: (KVDtype.FP16, KVDtype.BF16))
    table = allocated(subject_at(tiny.shared("llama", "gguf", "F16")))
    assert [row[0] for row in table.rows] == ["fp16", "bf16"]
    assert "skipped: int4-keys, which cannot hold heads of this size" in table.notes


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_the_engine_allocates_what_the_formula_says_in_every_type(family: str) -> None:
    table = allocated(subject_at(tiny.shared(family, "gguf", "F16")))
    assert [row[0] for row in table.rows] == [each.value for each in KVDtype]
    for row in table.rows:
        assert row[4] == 320 * row[1]  # type: ignore[operator]
    plain = [row for row in table.rows if row[0] in ("fp32", "fp16", "bf16")]
    assert len(plain) == 3
    assert all(row[3] == row[2] == 295 * row[1] and row[5] == row[4] for row in plain)  # type: ignore[operator]


def test_waste_is_counted_in_bytes_against_what_texts_use() -> None:
    table = waste(context_length=4096, bytes_of_token=100, seed=0)
    used = 64 * 64 + 1874
    reserved = {str(row[0]): row[1] for row in table.rows}
    assert reserved["the model's context"] == 64 * 4096
    assert reserved["2,048 tokens"] == 64 * 2048
    assert used <= reserved["blocks"] <= used + 64 * 31  # type: ignore[operator]
    assert reserved["blocks"] % 32 == 0  # type: ignore[operator]
    assert table.rows[-1][4] == pytest.approx(100 * used / (64 * 4096))
    assert table.rows[-1][3] == pytest.approx((64 * 4096 - used) * 100 / 2**20)


@pytest.mark.parametrize("context", [512, 2048])
def test_no_row_of_what_is_reserved_claims_a_context_that_the_model_has_not(context: int) -> None:
    table = waste(context_length=context, bytes_of_token=100, seed=0)
    reserved = {str(row[0]): row[1] for row in table.rows}
    assert reserved["the model's context"] == 64 * context
    assert "2,048 tokens" not in reserved


def test_all_its_tables_are_measured_in_the_subjects_cache_type() -> None:
    subject = subject_at(tiny.shared("llama", "gguf", "F16"), kv_dtype=KVDtype.INT8)
    keys = [table.key for table in measure(subject)]
    assert keys == ["allocated", "layouts", "large", "waste"]
