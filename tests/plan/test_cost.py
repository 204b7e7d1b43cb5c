"""What a step multiplies and reads, against numbers counted by hand and one position at a time."""

from __future__ import annotations

from pathlib import Path

import pytest

import tiny
from farthing.core import ActivationMode, KVDtype
from farthing.models.load import Model
from farthing.plan.cost import Cost, decode_costs, prompt_costs, stage_costs, total
from farthing.plan.memory import MemoryPlan, bytes_per_token, plan_memory
from farthing.plan.stages import AttendStage, EmbedStage
from native_steps import model_at

INT8, BF16, FP32 = ActivationMode.INT8, ActivationMode.BF16, ActivationMode.FP32

# The tiny llama: 2 layers of width 64, 4 heads and as many KV heads of 16, 128 in the middle.
BODY = 2 * (4 * 64 * 64 + 3 * 64 * 128)
HEAD = tiny.VOCABULARY * 64
ATTENTION = 2 * 2 * 4 * 16  # a pair of query and key: two layers, a score and a weighted sum


def tiny_llama(**settings: object) -> tuple[Model, MemoryPlan]:
    model = model_at(tiny.shared("llama", "gguf", "Q4_0"))
    return model, plan_memory(model, **settings)  # type: ignore[arg-type]


def decode_cost(model: Model, plan: MemoryPlan, *contexts: int) -> Cost:
    return total(decode_costs(model.program, plan, contexts))


def test_the_default_model_multiplies_what_a_hand_count_says(smollm2_path: Path) -> None:
    model = model_at(smollm2_path)
    plan = plan_memory(model)
    body, head = 106_168_320, 28_311_552
    # 30 layers of 9 heads of 64 dimensions: a score and a weighted sum for each position.
    attention = 30 * 9 * 64 * 2
    cost = decode_cost(model, plan, 1000)
    assert cost.products == {INT8: body + head, BF16: attention * 1000}
    assert cost.cache_bytes == 1000 * 23_040
    # Q4_1 is 20 bytes for 32 weights and Q8_0 34; 61 norms of 576 floats; the embedding is the head
    # as well, and the token's row of it is read besides.
    norms = 61 * 576 * 4
    assert cost.weight_bytes == body // 32 * 20 + head // 32 * 34 + norms + 576 // 32 * 34


def test_one_token_of_the_tiny_model() -> None:
    model, plan = tiny_llama()
    cost = decode_cost(model, plan, 7)
    assert cost.products == {INT8: BODY + HEAD, BF16: 7 * ATTENTION}
    assert cost.total_products == BODY + HEAD + 7 * ATTENTION
    assert cost.cache_bytes == 7 * bytes_per_token(model.program, KVDtype.BF16)
    unread = plan.weights["embedding.weight"].bytes
    row = unread // tiny.VOCABULARY
    read = sum(place.bytes for place in plan.weights.values()) - unread + row
    assert cost.weight_bytes == read


def test_sequences_of_a_batch_share_the_weights_and_nothing_else() -> None:
    model, plan = tiny_llama()
    alone = [decode_cost(model, plan, context) for context in (5, 300, 17)]
    together = decode_cost(model, plan, 5, 300, 17)
    assert together.total_products == sum(cost.total_products for cost in alone)
    assert together.cache_bytes == sum(cost.cache_bytes for cost in alone)
    rows = 2 * (plan.weights["embedding.weight"].bytes // tiny.VOCABULARY)
    assert together.weight_bytes == alone[0].weight_bytes + rows


def test_a_prompt_sees_the_causal_triangle_and_wants_one_row() -> None:
    model, plan = tiny_llama()
    cost = total(prompt_costs(model.program, plan, 100))
    assert cost.products == {INT8: 100 * BODY + HEAD, BF16: ATTENTION * 100 * 101 // 2}
    assert cost.cache_bytes == 100 * bytes_per_token(model.program, KVDtype.BF16)


def test_a_prompt_in_chunks_reads_weights_and_earlier_keys_again() -> None:
    model, plan = tiny_llama(step_tokens=40)
    whole = total(prompt_costs(model.program, plan_memory(model), 100))
    chunked = prompt_costs(model.program, plan, 100)
    assert len(chunked) == len(plan.stages)
    assert total(chunked).products == whole.products
    token = bytes_per_token(model.program, KVDtype.BF16)
    assert total(chunked).cache_bytes == (40 + 80 + 100) * token
    body = {
        index: cost.weight_bytes
        for index, cost in enumerate(prompt_costs(model.program, plan, 40))
        if not isinstance(plan.stages[index], EmbedStage) and "head" not in repr(plan.stages[index])
    }
    assert all(chunked[index].weight_bytes == 3 * size for index, size in body.items())


def test_without_a_wanted_row_the_head_is_not_read() -> None:
    model, plan = tiny_llama()
    costs = stage_costs(model.program, plan, [(0, 8)], rows=0)
    assert total(costs).products[INT8] == 8 * BODY
    wanted = stage_costs(model.program, plan, [(0, 8)], rows=1)
    assert total(wanted).weight_bytes - total(costs).weight_bytes >= (
        plan.weights["head.weight"].bytes
    )


@pytest.mark.parametrize("family", ["mistral", "gemma3"])
@pytest.mark.parametrize("span", [(0, 1), (0, 30), (3, 20), (40, 1)])
def test_a_window_limits_what_is_seen_and_read(family: str, span: tuple[int, int]) -> None:
    model = model_at(tiny.shared(family))
    plan = plan_memory(model)
    first, count = span
    for stage, cost in zip(
        plan.stages, stage_costs(model.program, plan, [span], rows=1), strict=True
    ):
        if not isinstance(stage, AttendStage):
            assert cost.cache_bytes == 0
            continue
        attributes = stage.ops[0].attributes
        window = attributes["window"] or 10**9
        pairs = [
            (query, key)
            for query in range(first, first + count)
            for key in range(query + 1)
            if query - key < window
        ]
        assert cost.products == {
            BF16: 2 * attributes["heads"] * attributes["head_dim"] * len(pairs)
        }
        each = attributes["kv_heads"] * 2 * attributes["head_dim"] * 2
        assert cost.cache_bytes == each * len({key for _, key in pairs})


@pytest.mark.parametrize(
    ("stored", "activations", "mode"),
    [("Q4_0", None, INT8), ("BF16", None, BF16), ("Q8_0", BF16, BF16), ("Q4_1", FP32, FP32)],
)
def test_products_count_in_the_mode_they_run_in(
    stored: str, activations: ActivationMode | None, mode: ActivationMode
) -> None:
    model = model_at(tiny.shared("llama", "gguf", stored))
    plan = plan_memory(model, activations=activations)
    cost = decode_cost(model, plan, 1)
    assert cost.products[mode] == BODY + HEAD + (ATTENTION if mode is BF16 else 0)
    assert cost.products[BF16] >= ATTENTION
    assert cost.total_products == BODY + HEAD + ATTENTION


@pytest.mark.parametrize("kv_dtype", list(KVDtype))
@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_every_family_is_counted_for_every_cache(family: str, kv_dtype: KVDtype) -> None:
    model = model_at(tiny.shared(family))
    plan = plan_memory(model, kv_dtype=kv_dtype)
    matrices = sum(
        shape[0] * shape[1]
        for name, weight in model.program.weights.items()
        if len(shape := weight.shape) == 2 and not name.startswith("embedding")
    )
    tied = "head.weight" not in model.program.weights
    vocabulary, width = model.program.weights["embedding.weight"].shape
    cost = decode_cost(model, plan, 3)
    attention = sum(
        2 * op.attributes["heads"] * op.attributes["head_dim"] * 3
        for op in model.program.ops
        if op.kind == "attend"
    )
    assert cost.products[BF16 if kv_dtype is KVDtype.BF16 else FP32] >= attention
    assert cost.total_products == matrices + tied * vocabulary * width + attention
    assert cost.cache_bytes == 3 * bytes_per_token(model.program, kv_dtype)


def test_costs_become_seconds_at_the_ceilings() -> None:
    cost = Cost({INT8: 600, FP32: 40}, weight_bytes=1000, cache_bytes=500)
    assert cost.memory_seconds(100.0) == 15.0
    assert cost.arithmetic_seconds({INT8: 300.0, FP32: 10.0, BF16: 1.0}) == 6.0
    twice = cost + Cost({INT8: 1}, 1, 2)
    assert (twice.products, twice.weight_bytes, twice.cache_bytes) == (
        {INT8: 601, FP32: 40},
        1001,
        502,
    )
