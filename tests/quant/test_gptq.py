"""GPTQ against the paper's algorithm in plain steps, and against torchao's implementation."""

from __future__ import annotations

import ast
import inspect
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torchao.prototype.gptq.api as torchao_gptq
from torchao.quantization import Int8Tensor, Int8WeightOnlyConfig
from torchao.quantization.granularity import PerRow

from farthing.core import FarthingError, FileFormatError, UnsupportedModelError
from farthing.quant import gptq
from farthing.quant.formats import encode
from farthing.quant.gptq import encode_gptq
from farthing.quant.hessian import output_error
from farthing.quant.nf4 import NF4_LEVELS
from farthing.quant.rounding import ROUNDED_FORMATS
from quant.calibrated import error_of, hessian_of, random_inputs, stored
from quant.rows import ASYMMETRIC, NF4, SYMMETRIC, random_weights, take_apart

# Two groups of 128 and one of 64.
INPUTS = 320
X = random_inputs(1, 1000, INPUTS)
HESSIAN = hessian_of(X)
WEIGHTS = random_weights(2, 48, INPUTS)


def level_table(weights: np.ndarray, name: str) -> np.ndarray:
    """(N, K, levels), from the scales and zeros that `encode` stores for the weights."""
    rows = take_apart(encode(weights, name), name, weights.shape)
    group = np.arange(weights.shape[1]) // rows.group
    if name in NF4:
        levels: Any = NF4_LEVELS.astype(np.float64)
    elif name in SYMMETRIC:
        levels = np.arange(-8, 8)
    elif name in ASYMMETRIC:
        assert rows.zeros is not None
        levels = np.arange(16) - rows.zeros[:, group, None]
    else:
        levels = np.arange(-128, 128)
    return levels * rows.scales[:, group, None].astype(np.float64)


def textbook(
    weights: np.ndarray, name: str, hessian: np.ndarray, order: np.ndarray, damping: float = 0.01
) -> np.ndarray:
    """Optimal brain quantisation with a fixed order: the inverse itself, shrunk at each column."""
    table = level_table(weights, name)
    left = weights.astype(np.float64)
    rounded = np.zeros_like(left)
    inverse = np.linalg.inv(hessian + damping * hessian.diagonal().mean() * np.eye(len(hessian)))
    for k in order:
        nearest = np.abs(table[:, k] - left[:, k, None]).argmin(axis=1)
        rounded[:, k] = table[np.arange(len(left)), k, nearest]
        error = (left[:, k] - rounded[:, k]) / inverse[k, k]
        left -= np.outer(error, inverse[k])
        inverse = inverse - np.outer(inverse[:, k], inverse[k]) / inverse[k, k]
    return rounded


def ours(name: str, weights: np.ndarray = WEIGHTS, **settings: Any) -> np.ndarray:
    hessian = settings.pop("hessian", HESSIAN)
    return stored(encode_gptq(weights, name, hessian, **settings), name, weights.shape)


@pytest.mark.parametrize("by_importance", [False, True])
@pytest.mark.parametrize("name", ["INT8_ROW", "INT4_G128", "INT4_G64_ASYM", "INT4_ROW", "NF4_B64"])
def test_the_layer_error_is_that_of_the_algorithm_in_plain_steps(
    name: str, by_importance: bool
) -> None:
    order = np.argsort(-HESSIAN.diagonal()) if by_importance else np.arange(INPUTS)
    wanted = textbook(WEIGHTS, name, HESSIAN, order)
    found = ours(name, by_importance=by_importance)
    assert error_of(found, WEIGHTS, X) == pytest.approx(error_of(wanted, WEIGHTS, X), rel=0.01)
    # Float32 may round a weight that lies between two levels the other way, and then goes on.
    assert np.isclose(found, wanted, rtol=1e-4, atol=1e-7).mean() > 0.97


class _WithoutAssertions(ast.NodeTransformer):
    def visit_Assert(self, node: ast.Assert) -> None:
        return None


def torchao_quantize(
    weights: np.ndarray, hessian: np.ndarray, config: Any, monkeypatch: Any, **replaced: Any
) -> Any:
    """torchao's function, which insists on a GPU and waits for it, run on the CPU."""
    tree = _WithoutAssertions().visit(ast.parse(inspect.getsource(torchao_gptq.gptq_quantize)))
    namespace = {**vars(torchao_gptq), **replaced}
    exec(compile(tree, "gptq_quantize", "exec"), namespace)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    return namespace["gptq_quantize"](
        torch.from_numpy(hessian.astype(np.float32)), torch.from_numpy(weights.copy()), config
    )


def test_the_layer_error_in_int4_is_torchaos_with_the_same_scales(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = take_apart(encode(WEIGHTS, "INT4_G128"), "INT4_G128", WEIGHTS.shape)
    scales = iter(torch.from_numpy(rows.scales.T.copy())[:, None])

    def scales_of_the_next_group(part: torch.Tensor, group: int) -> tuple[None, Any, Any]:
        scale = next(scales)
        return None, scale, torch.zeros_like(scale)

    class Config:
        group_size = 128

    result = torchao_quantize(
        WEIGHTS,
        HESSIAN,
        SimpleNamespace(gptq_quantize_block_size=128, percdamp=0.01, base_config=Config()),
        monkeypatch,
        Int4WeightOnlyConfig=Config,
        int4_row_quantize_zp=scales_of_the_next_group,
        pack_int4=lambda codes: codes,
        Int4Tensor=dict,
    )
    theirs = result["qdata"].numpy() * rows.scales[:, np.arange(INPUTS) // 128]
    found = ours("INT4_G128", by_importance=False)
    error = error_of(theirs, WEIGHTS, X)
    assert error_of(found, WEIGHTS, X) == pytest.approx(error, rel=0.01)
    assert error_of(ours("INT4_G128"), WEIGHTS, X) < 1.01 * error
    assert error < 0.7 * error_of(
        stored(encode(WEIGHTS, "INT4_G128"), "INT4_G128", WEIGHTS.shape), WEIGHTS, X
    )


def test_the_layer_error_in_int8_is_torchaos_with_the_same_scales(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = take_apart(encode(WEIGHTS, "INT8_ROW"), "INT8_ROW", WEIGHTS.shape)
    scales = torch.from_numpy(rows.scales)

    def with_our_scales(part: torch.Tensor, granularity: Any, scale: Any = None) -> Int8Tensor:
        return Int8Tensor.from_hp(part, granularity, scale=scales)

    result = torchao_quantize(
        WEIGHTS,
        HESSIAN,
        SimpleNamespace(
            gptq_quantize_block_size=128,
            percdamp=0.01,
            base_config=Int8WeightOnlyConfig(granularity=PerRow()),
        ),
        monkeypatch,
        Int8Tensor=SimpleNamespace(from_hp=with_our_scales),
    )
    theirs = result.dequantize(output_dtype=torch.float32).numpy()
    found = error_of(ours("INT8_ROW", by_importance=False), WEIGHTS, X)
    assert found == pytest.approx(error_of(theirs, WEIGHTS, X), rel=0.01)


@pytest.mark.parametrize("name", ROUNDED_FORMATS)
def test_the_output_is_nearer_than_by_rounding_each_weight(name: str) -> None:
    weights, x = random_weights(3, 16, 256), random_inputs(4, 800, 256)
    plain = stored(encode(weights, name), name, weights.shape)
    found = ours(name, weights, hessian=hessian_of(x))
    assert error_of(found, weights, x) < 0.6 * error_of(plain, weights, x)


@pytest.mark.parametrize("name", ["INT8_TENSOR", "INT4_G32", "INT4_G128_ASYM", "NF4_B64", "Q4_0"])
def test_inputs_without_correlation_leave_plain_rounding(name: str) -> None:
    found = ours(name, hessian=np.diag(HESSIAN.diagonal()))
    importance = HESSIAN.diagonal().astype(np.float32)
    plain = stored(encode(WEIGHTS, name, importance=importance), name, WEIGHTS.shape)
    assert np.isclose(found, plain, rtol=1e-5, atol=1e-7).mean() > 0.999


@pytest.mark.parametrize("shape", [(1, 1), (1, 2), (3, 127), (2, 128), (5, 129), (1, 300)])
@pytest.mark.parametrize("name", ["INT8_ROW", "INT4_G128", "INT4_G32_ASYM", "NF4_B64"])
def test_any_shape_gives_the_bytes_that_it_needs(name: str, shape: tuple[int, int]) -> None:
    weights, x = random_weights(5, *shape), random_inputs(6, 600, shape[1])
    data = encode_gptq(weights, name, hessian_of(x))
    plain = encode(weights, name)
    assert data.shape == plain.shape
    assert data.dtype == np.uint8
    table = level_table(weights, name)
    found = stored(data, name, shape)
    assert np.isclose(found[..., None], table, rtol=1e-5, atol=1e-9).any(axis=2).all()


@pytest.mark.parametrize("name", ["INT4_TENSOR", "INT4_G128"])
def test_rows_worked_on_in_pieces_are_those_of_the_whole(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = ours(name)
    monkeypatch.setattr(gptq, "_PIECE_WEIGHTS", 7 * INPUTS)
    found = ours(name)
    # A product of other sizes may sum in another order.
    assert np.isclose(found, whole, rtol=1e-5).mean() > 0.99


def test_the_scale_of_the_hessian_does_not_matter() -> None:
    np.testing.assert_array_equal(ours("INT4_G128", hessian=2 * HESSIAN), ours("INT4_G128"))


def test_inputs_that_were_always_zero_are_rounded_on_their_own() -> None:
    x = X.copy()
    x[:, [3, 200]] = 0
    found = ours("INT4_G128", hessian=hessian_of(x))
    plain = stored(encode(WEIGHTS, "INT4_G128"), "INT4_G128", WEIGHTS.shape)
    np.testing.assert_array_equal(found[:, [3, 200]], plain[:, [3, 200]])
    kept = [k for k in range(INPUTS) if k not in (3, 200)]
    error = error_of(found[:, kept], WEIGHTS[:, kept], X[:, kept])
    assert error < 0.7 * error_of(plain[:, kept], WEIGHTS[:, kept], X[:, kept])


def test_inputs_that_were_all_zero_leave_plain_rounding() -> None:
    found = ours("INT4_G128", hessian=np.zeros((INPUTS, INPUTS)))
    plain = stored(encode(WEIGHTS, "INT4_G128"), "INT4_G128", WEIGHTS.shape)
    np.testing.assert_array_equal(found, plain)


def test_fewer_tokens_than_inputs_are_made_up_for_by_damping() -> None:
    few = X[:100]
    found = ours("INT4_G128", hessian=hessian_of(few))
    plain = stored(encode(WEIGHTS, "INT4_G128"), "INT4_G128", WEIGHTS.shape)
    assert error_of(found, WEIGHTS, few) < 0.5 * error_of(plain, WEIGHTS, few)


def test_scales_can_be_those_of_other_weights() -> None:
    clipped = np.clip(WEIGHTS, -0.05, 0.05)
    found = take_apart(
        encode_gptq(WEIGHTS, "INT4_G128", HESSIAN, ranges_of=clipped), "INT4_G128", WEIGHTS.shape
    )
    wanted = take_apart(encode(clipped, "INT4_G128"), "INT4_G128", WEIGHTS.shape)
    np.testing.assert_array_equal(found.scales, wanted.scales)


def test_what_it_is_given_stays_as_it_was() -> None:
    weights, hessian = WEIGHTS.copy(), HESSIAN.copy()
    encode_gptq(weights, "INT4_G128", hessian)
    np.testing.assert_array_equal(weights, WEIGHTS)
    np.testing.assert_array_equal(hessian, HESSIAN)


def test_the_output_error_by_the_hessian_is_that_of_the_tokens() -> None:
    rounded = stored(encode(WEIGHTS, "INT4_G128"), "INT4_G128", WEIGHTS.shape)
    found = output_error(rounded - WEIGHTS, HESSIAN)
    assert found == pytest.approx(error_of(rounded, WEIGHTS, X), rel=1e-5)


def spoiled(value: float, row: int = 3, column: int = 5) -> np.ndarray:
    hessian = HESSIAN.copy()
    hessian[row, column] = hessian[column, row] = value
    return hessian


@pytest.mark.parametrize(
    ("hessian", "message"),
    [
        (spoiled(np.nan), "infinity or a NaN.*another text"),
        (spoiled(np.inf), "infinity or a NaN"),
        (spoiled(-1.0, 4, 4), "not symmetric with a diagonal of squares"),
        (HESSIAN + 10 * np.triu(HESSIAN, 1), "not symmetric"),
        (spoiled(100 * HESSIAN.max()), "not positive definite.*more tokens.*damping"),
        (HESSIAN[:-1, :-1], r"need a Hessian of shape \(320, 320\), not \(319, 319\)"),
        (HESSIAN[0], "need a Hessian of shape"),
    ],
)
def test_a_hessian_that_is_none_is_refused_with_advice(hessian: np.ndarray, message: str) -> None:
    with pytest.raises(FarthingError, match=message):
        encode_gptq(WEIGHTS, "INT4_G128", hessian)


def test_a_singular_hessian_without_damping_is_refused() -> None:
    with pytest.raises(FarthingError, match="not positive definite with a damping of 0:"):
        encode_gptq(WEIGHTS, "INT4_G128", np.ones((INPUTS, INPUTS)), damping=0.0)


@pytest.mark.parametrize("damping", [-0.1, np.nan])
def test_a_damping_below_zero_is_refused(damping: float) -> None:
    with pytest.raises(FarthingError, match="damping must be a number from 0"):
        encode_gptq(WEIGHTS, "INT4_G128", HESSIAN, damping=damping)


def test_what_plain_rounding_refuses_is_refused() -> None:
    weights = WEIGHTS.copy()
    weights[0, 0] = np.inf
    with pytest.raises(FileFormatError, match="infinity or a NaN"):
        encode_gptq(weights, "INT4_G128", HESSIAN)
    with pytest.raises(UnsupportedModelError, match="such as GPTQ, takes"):
        encode_gptq(WEIGHTS, "F16", HESSIAN)
    with pytest.raises(FarthingError, match="cannot take their scales from weights of"):
        encode_gptq(WEIGHTS, "INT4_G128", HESSIAN, ranges_of=WEIGHTS[:3])
