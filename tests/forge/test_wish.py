"""Which schemes, methods and texts go together, and why others do not."""

from __future__ import annotations

import pytest

from farthing.core import FarthingError
from farthing.forge.calibrate import Calibration
from farthing.forge.methods import Method, parse_methods
from farthing.forge.patterns import Rule
from farthing.forge.receipt import ReceiptWish
from farthing.forge.wish import Wish
from farthing.quality.texts import held_out_text

TEXT = Calibration("text", "0" * 64, [[1, 2, 3]])


@pytest.mark.parametrize(
    ("scheme", "methods"),
    [
        ("INT4_G128", ["gptq"]),
        ("Q4_0", ["awq", "gptq"]),
        ("Q4_K", ["awq", "gptq"]),
        ("INT8_ROW", ["smoothquant", "static-inputs"]),
        ("BF16", ["smoothquant"]),
        ("INT8_TENSOR", ["llm.int8", "static-inputs", "gptq"]),
        ("NF4_B64", ["rotate", "gptq", "static-inputs"]),
    ],
)
def test_what_makes_sense_together_may_be_asked_for(scheme: str, methods: list[str]) -> None:
    Wish(scheme, (), parse_methods(methods), TEXT).check()


def test_methods_come_in_one_order_each_once() -> None:
    given = parse_methods(["static-inputs", "GPTQ", "rotate", "gptq"])
    assert given == parse_methods(["rotate", "gptq", "static-inputs"])
    assert len(given) == 3


@pytest.mark.parametrize(
    ("methods", "reason"),
    [
        (["awq", "smoothquant"], "both choose one scale"),
        (["awq", "rotate"], "no input matters more"),
        (["rotate", "smoothquant"], "nothing to be smoothed"),
        (["llm.int8", "rotate"], "no columns that stand out"),
        (["llm.int8", "smoothquant"], "few columns"),
        (["awq", "llm.int8"], "takes out"),
        (["gptq", "gtpq"], "no method is called 'gtpq'; there are gptq, awq"),
    ],
)
def test_what_does_not_go_together_is_refused_with_the_reason(
    methods: list[str], reason: str
) -> None:
    with pytest.raises(FarthingError, match=reason):
        parse_methods(methods)


@pytest.mark.parametrize(
    ("scheme", "method", "reason"),
    [
        ("BF16", Method.GPTQ, "bf16 has none: choose a scheme of 8 bits"),
        ("F32", Method.AWQ, "f32 has none"),
        ("F16", Method.STATIC_INPUTS, "f16 has none"),
        ("INT4_G128", Method.LLM_INT8, "not beside int4-g128: choose int8-row or int8-tensor"),
    ],
)
def test_a_method_that_has_nothing_to_do_with_the_scheme_is_refused(
    scheme: str, method: Method, reason: str
) -> None:
    with pytest.raises(FarthingError, match=reason):
        Wish(scheme, (), (method,), TEXT).check()


@pytest.mark.parametrize("method", [m for m in Method if m is not Method.ROTATE])
def test_a_method_that_calibrates_needs_a_text(method: Method) -> None:
    with pytest.raises(FarthingError, match=f"{method} needs a calibration text"):
        Wish("INT8_ROW", (), (method,)).check()
    Wish("INT8_ROW", (), (method,), TEXT).check()


def test_rotation_needs_no_text() -> None:
    Wish("INT8_ROW", (), (Method.ROTATE,)).check()


def test_a_text_that_nothing_uses_is_refused() -> None:
    with pytest.raises(FarthingError, match="nothing here is calibrated: int4-g128 leaves nothing"):
        Wish("INT4_G128", (), (), TEXT).check()
    with pytest.raises(FarthingError, match="nothing here is calibrated"):
        Wish("INT4_G128", (), (Method.ROTATE,), TEXT).check()
    # The search of K-quants can be weighed, also of a few matrices.
    Wish("Q4_K", (), (), TEXT).check()
    Wish("INT4_G128", (Rule("embedding", "Q6_K"),), (), TEXT).check()


def test_the_text_that_is_measured_on_is_not_calibrated_with() -> None:
    text = held_out_text()
    same = Calibration(text.name, text.sha256, [[1]])
    with pytest.raises(FarthingError, match="persuasion cannot be both"):
        Wish("INT8_ROW", (), (Method.GPTQ,), same, ReceiptWish()).check()
    Wish("INT8_ROW", (), (Method.GPTQ,), same).check()
