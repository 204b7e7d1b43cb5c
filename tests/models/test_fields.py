from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farthing.core import FarthingError, FileFormatError, UnsupportedModelError
from farthing.models.fields import Fields

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


def config(**source: Any) -> Fields:
    return Fields(source, "folder/config.json")


def test_each_form_is_asked_by_its_own_name() -> None:
    gguf = Fields({"llama.block_count": 3, "num_hidden_layers": 4}, "m.gguf", "llama.")
    assert gguf.integer("block_count", "num_hidden_layers", high=9) == 3
    assert config(num_hidden_layers=4).integer("block_count", "num_hidden_layers", high=9) == 4


def test_null_and_absent_take_the_default() -> None:
    assert config(heads=None).integer(None, "heads", 7, high=9) == 7
    assert config().number(None, "base", 0.5) == 0.5
    assert config(flag=None).flag(None, "flag", True) is True
    assert config().text(None, "kind", "none") == "none"


@pytest.mark.parametrize("absent", [{}, {"heads": None}])
def test_an_absent_required_field_is_named(absent: dict[str, Any]) -> None:
    with pytest.raises(FileFormatError, match=r"config\.json: heads is missing"):
        config(**absent).integer(None, "heads", high=9)


@pytest.mark.parametrize(
    "value", [0, -1, 10, 2**64, 10**400, 3.0, True, "3", [3], {}, float("nan")]
)
def test_a_count_that_is_none_is_refused(value: Any) -> None:
    with pytest.raises(FileFormatError, match="heads must be a whole number from 1 to 9"):
        config(heads=value).integer(None, "heads", high=9)


@pytest.mark.parametrize("value", [0, -1.5, float("inf"), float("nan"), 10**400, True, "3", [3.0]])
def test_a_number_that_is_none_is_refused(value: Any) -> None:
    with pytest.raises(FileFormatError, match="base must be a number above 0"):
        config(base=value).number(None, "base")


def test_numpy_scalars_are_numbers() -> None:
    fields = config(heads=np.uint32(3), base=np.float32(0.5), flag=np.bool_(True))
    assert fields.integer(None, "heads", high=9) == 3
    assert fields.number(None, "base") == 0.5
    assert fields.flag(None, "flag", False) is True


def test_a_long_value_is_cut_in_the_message() -> None:
    with pytest.raises(FileFormatError) as caught:
        config(heads="9" * 10_000).integer(None, "heads", high=9)
    assert len(str(caught.value)) < 200


@given(JSON)
def test_any_value_gives_an_answer_or_one_error(value: Any) -> None:
    fields, said = config(field=value), []
    for ask in (
        lambda: fields.integer(None, "field", 1, low=0, high=100),
        lambda: fields.number(None, "field", 1.0),
        lambda: fields.flag(None, "field", False),
        lambda: fields.text(None, "field", ""),
        lambda: fields.section("field"),
        lambda: fields.refuse(None, "field", (0, 1, None), "this"),
    ):
        try:
            ask()
        except FarthingError as error:
            said.append(str(error))
    assert all("config.json: field" in message for message in said)


def test_a_harmless_value_is_not_refused_and_another_is() -> None:
    config(experts=0).refuse(None, "experts", (0,), "a mixture of experts")
    config(settings={}).refuse(None, "settings", (None,), "settings")
    config().refuse(None, "experts", (), "a mixture of experts")
    with pytest.raises(UnsupportedModelError, match=r"experts is 8, but a mixture of experts"):
        config(experts=8).refuse(None, "experts", (0,), "a mixture of experts")
