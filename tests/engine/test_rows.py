"""The tokens whose logits a request changes, kept step by step, against a plain count of them."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from farthing.core import SamplingParams
from farthing.engine.rows import Adjustments

TOKENS = st.integers(0, 200)


@given(
    bias=st.dictionaries(TOKENS, st.floats(-8, 8, width=32), max_size=60),
    prompt=st.lists(TOKENS, min_size=1, max_size=100),
    output=st.lists(TOKENS, max_size=100),
    banned=st.sets(TOKENS, max_size=40),
    penalty=st.sampled_from([1.0, 1.2]),
    frequency=st.sampled_from([0.0, 0.5]),
    lifted=st.booleans(),
)
def test_every_token_has_its_own_entry_however_many_there_are(
    bias: dict[int, float],
    prompt: list[int],
    output: list[int],
    banned: set[int],
    penalty: float,
    frequency: float,
    lifted: bool,
) -> None:
    sampling = SamplingParams(
        logit_bias=bias,
        repetition_penalty=penalty,
        frequency_penalty=frequency,
        min_tokens=len(output) + (not lifted),
    )
    lifted = lifted and bool(output)
    adjustments = Adjustments(sampling, prompt, banned)
    ahead = [[part.tolist() for part in view] for view in adjustments.views_ahead(output)]
    for token, foreseen in zip(output, ahead, strict=True):
        adjustments.add_output(token)
        assert [part.tolist() for part in adjustments.view()] == foreseen
    ids, biases, seen, count = (part.tolist() for part in adjustments.view())
    counted = output if (penalty, frequency) != (1.0, 0.0) else []
    remembered = {*counted, *(prompt if penalty != 1.0 else ())}
    assert sorted(ids) == sorted({*bias, *banned, *remembered})
    for at, token in enumerate(ids):
        forbidden = token in banned and not lifted
        assert biases[at] == (-np.inf if forbidden else np.float32(bias.get(token, 0.0)))
        assert seen[at] == (token in remembered)
        assert count[at] == Counter(counted)[token]
