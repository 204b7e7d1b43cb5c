"""What a request may ask for: everything else is refused when it is written down."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farthing.core import RequestError, SamplingParams

WHOLE = ("max_tokens", "top_k", "seed", "min_tokens", "logprobs")
NUMBERS = (
    "temperature",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
)


@pytest.mark.parametrize("name", [*WHOLE, *NUMBERS])
@pytest.mark.parametrize("value", ["1", b"1", [1], {}, True, math.nan, math.inf, 1j, object()])
def test_what_is_no_number_is_refused(name: str, value: Any) -> None:
    with pytest.raises(RequestError, match=f"{name} must be"):
        SamplingParams(**{name: value})


@pytest.mark.parametrize("name", WHOLE)
def test_a_count_is_a_whole_number(name: str) -> None:
    with pytest.raises(RequestError, match=f"{name} must be"):
        SamplingParams(**{name: 2.5})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"max_tokens": -1}, "max_tokens must be a whole number from 0, not -1"),
        ({"top_k": -1}, "top_k must be"),
        ({"top_k": 2**31}, r"top_k must be a whole number from 0 \(off\) to 2\^31 - 1"),
        (
            {"max_draft_tokens": 2**31},
            r"max_draft_tokens must be a whole number from 0 \(none\) to 2\^31 - 1",
        ),
        ({"seed": -1}, "seed must be from 0"),
        ({"seed": 2**64}, "seed must be from 0"),
        ({"top_p": 0.0}, "top_p must be above 0"),
        ({"repetition_penalty": 0.0}, "repetition_penalty must be above 0"),
        ({"logprobs": 21}, "logprobs must be from 0 to 20"),
        ({"max_tokens": 3, "min_tokens": 4}, "min_tokens must be from 0 to max_tokens, not 4"),
        ({"stop": ""}, "stop must be made of non-empty strings"),
        ({"stop": ("a", "")}, "stop must be made of non-empty strings"),
        ({"stop": (1,)}, "stop must be made of non-empty strings"),
        ({"stop": 5}, "stop must be a list, not 5"),
        ({"stop": None}, "stop must be a list, not None"),
        ({"stop_token_ids": 5}, "stop_token_ids must be a list, not 5"),
        ({"stop_token_ids": ["a"]}, "stop_token_ids must be made of token ids"),
        ({"stop_token_ids": [1.5]}, "stop_token_ids must be made of token ids"),
        ({"ignore_eos": "no"}, "ignore_eos must be True or False"),
        ({"logit_bias": [(1, 2.0)]}, "logit_bias must be"),
        ({"logit_bias": None}, "logit_bias must be"),
        ({"logit_bias": {"a": 1.0}}, "logit_bias must be"),
        ({"logit_bias": {1: "much"}}, "logit_bias must be"),
        ({"logit_bias": {1: math.nan}}, "logit_bias must be"),
        ({"logit_bias": {1: math.inf}}, "logit_bias must be"),
        ({"logit_bias": {1: 1e300}}, "logit_bias must be"),
    ],
    ids=repr,
)
def test_a_field_out_of_range_is_one_clear_error(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        SamplingParams(**wrong)


def test_one_string_a_list_and_numbers_of_numpy_are_taken() -> None:
    given = SamplingParams(
        stop="end",
        stop_token_ids=[np.int64(3)],  # type: ignore[arg-type]
        seed=np.uint64(2**64 - 1),  # type: ignore[arg-type]
        temperature=np.float32(0.5),  # type: ignore[arg-type]
        logit_bias={np.int64(4): -math.inf},  # type: ignore[dict-item]
    )
    assert given.stop == ("end",)
    assert given.stop_token_ids == (3,)
    assert type(given.seed) is int
    assert given.seed == 2**64 - 1
    assert type(given.temperature) is float


ANYTHING = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.lists(st.text())


@given(st.dictionaries(st.sampled_from([*WHOLE, *NUMBERS, "stop", "logit_bias"]), ANYTHING))
def test_any_fields_are_taken_or_refused(fields: dict[str, Any]) -> None:
    with suppress(RequestError):
        SamplingParams(**fields)
