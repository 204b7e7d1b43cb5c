"""Which matrices a pattern means, and what is said of one that means none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tiny
from farthing.core import FarthingError, UnsupportedModelError
from farthing.files.formats import spelling
from farthing.forge.patterns import Rule, choose, matrices, parse_rule
from farthing.forge.schemes import format_of
from farthing.models.program import Program
from farthing.quant.formats import WRITABLE_FORMATS
from native_steps import model_at

PARTS = ("query", "key", "value", "output", "gate", "up", "down")


def program(family: str = "llama") -> Program:
    return model_at(tiny.shared(family)).program


def matched(pattern: str, family: str = "llama") -> set[str]:
    choice = choose(program(family), "Q4_0", [parse_rule(f"{pattern}=q8_0")])
    names = {name.removesuffix(".weight") for name, s in choice.schemes.items() if s == "Q8_0"}
    assert {name.removesuffix(".weight") for name in choice.matched[0][1]} == names
    return names


def parts(*names: str, layers: tuple[int, ...] = (0, 1)) -> set[str]:
    return {f"layers.{layer}.{name}" for layer in layers for name in names}


@pytest.mark.parametrize(
    ("pattern", "wanted"),
    [
        ("embedding", {"embedding"}),
        ("head", {"head"}),
        ("head,embedding", {"head", "embedding"}),
        ("layers.1.down", {"layers.1.down"}),
        ("layers.0", parts(*PARTS, layers=(0,))),
        ("layers.0.*", parts(*PARTS, layers=(0,))),
        ("layers.1-5", parts(*PARTS, layers=(1,))),
        ("layers.0-1.down", parts("down")),
        ("layers.0,1.down", parts("down")),
        ("layers.*.gate,up", parts("gate", "up")),
        ("layers", parts(*PARTS)),
        ("down", parts("down")),
        ("mlp", parts("gate", "up", "down")),
        ("mlp.down", parts("down")),
        ("attention", parts("query", "key", "value", "output")),
        ("attention.key", parts("key")),
        ("layers.1.attention", parts("query", "key", "value", "output", layers=(1,))),
        ("layers.1.mlp.up", {"layers.1.up"}),
        ("*", {"embedding", "head", *parts(*PARTS)}),
        ("*e*", {"embedding", "head", *parts("query", "key", "value", "gate")} | parts(*PARTS)),
    ],
)
def test_a_pattern_matches_what_it_says(pattern: str, wanted: set[str]) -> None:
    assert matched(pattern) == wanted


@pytest.mark.parametrize("pattern", ["embedding", "head"])
def test_a_head_that_is_the_embedding_goes_by_both_names(pattern: str) -> None:
    assert matched(pattern, "llama3") == {"embedding"}


def test_the_last_pattern_that_matches_counts() -> None:
    rules = [parse_rule(text) for text in ("layers=q8_0", "down=keep", "layers.1.down=int4")]
    found = choose(program(), "F16", rules).schemes
    assert found["embedding.weight"] == "F16"
    assert found["layers.0.up.weight"] == "Q8_0"
    assert found["layers.0.down.weight"] == "keep"
    assert found["layers.1.down.weight"] == "INT4_G128"


def test_without_rules_every_matrix_has_the_scheme_and_no_vector_has_one() -> None:
    choice = choose(program(), "Q4_0", [])
    assert set(choice.schemes.values()) == {"Q4_0"}
    assert {"embedding.weight", "head.weight", "layers.1.down.weight"} < choice.schemes.keys()
    assert list(choice.schemes) == matrices(program())
    assert not any("norm" in name for name in choice.schemes)
    assert choice.matched == ()


@pytest.mark.parametrize(
    "pattern", ["layers.2", "layer.0", "layers.0.dwon", "norm", "layers.0.down.weight", "0"]
)
def test_a_pattern_that_matches_nothing_is_refused_with_the_names_there_are(pattern: str) -> None:
    with pytest.raises(
        FarthingError, match=r"embedding, head, and in layers\.0 to layers\.1 query, "
    ):
        choose(program(), "Q4_0", [parse_rule(f"{pattern}=q8_0")])


@pytest.mark.parametrize(
    "text", ["head", "=int8", "head:int8", "layers..down=int8", "a b=int8", ".=q8_0", "[a]=int8"]
)
def test_what_is_no_rule_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(FarthingError, match="PATTERN=SCHEME: write for example head=int8"):
        parse_rule(text)


@given(st.text(max_size=40))
def test_any_text_is_a_rule_or_a_clear_error(text: str) -> None:
    try:
        rule = parse_rule(text)
    except FarthingError:
        return
    assert isinstance(rule, Rule)
    assert rule.scheme in (*WRITABLE_FORMATS, "keep")


@given(st.from_regex(r"[a-z0-9*,.-]{1,20}", fullmatch=True))
def test_any_pattern_is_matched_or_refused(pattern: str) -> None:
    try:
        rule = parse_rule(f"{pattern}=q8_0")
        choice = choose(TINY, "Q4_0", [rule])
    except FarthingError:
        return
    assert choice.matched[0][1]


TINY = program("qwen2")


def test_every_format_is_spelled_and_read_back() -> None:
    for name in WRITABLE_FORMATS:
        assert format_of(spelling(name)) == name
        for typed in (name, name.lower(), name.lower().replace("_", "-")):
            assert format_of(typed) == name
    assert spelling("INT4_G128_ASYM") == "int4-g128-asym"
    assert spelling("Q4_K") == "q4_k"
    assert format_of("int8") == "INT8_ROW"
    assert format_of("int4") == "INT4_G128"
    assert format_of("nf4") == "NF4_B64"


@pytest.mark.parametrize("scheme", ["int3", "keep", "", "int4_g128 ", "q4"])
def test_a_scheme_that_cannot_be_written_is_refused_with_those_that_can(scheme: str) -> None:
    with pytest.raises(UnsupportedModelError, match=r"no scheme .*q8_0.*int4-g128"):
        format_of(scheme)
