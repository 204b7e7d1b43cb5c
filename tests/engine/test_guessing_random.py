"""Whatever guesses, however long, whoever else runs: every text is to the bit what it is alone."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.driving import Driver, request
from engine.scripted import VOCABULARY, rambling
from engine.test_draft_model import nearly
from engine.test_speculate import Foreseeing
from farthing.backends.null import NullBackend
from farthing.engine.acceptance import MOST_DRAFTS
from farthing.engine.draft_model import ModelDrafter
from farthing.engine.lookup import LookupDrafter
from farthing.engine.recent import RecentTexts
from farthing.engine.speculate import Speculation

if TYPE_CHECKING:
    from farthing.core import Request

KINDS = (
    {},
    {"temperature": 0.8, "seed": 1},
    {"temperature": 1.2, "top_p": 0.9, "seed": 2, "repetition_penalty": 1.3},
    {"temperature": 0.3, "logit_bias": {97: 2.0}, "seed": 3, "logprobs": 2},
    {"temperature": 1.0, "top_k": 20, "seed": 4, "max_draft_tokens": 2},
    {"presence_penalty": 0.7, "max_draft_tokens": 0},
)


@cache
def made(kind: int, size: int, choice: int) -> tuple[Request, tuple[int, ...], tuple[str, ...]]:
    """A request, its output alone and the digests of its logits."""
    prompt = [(7 * at + size) % 200 for at in range(size)] * 2
    one = request(f"{kind}-{size}", prompt, 40, choice=choice, key=str(kind % 2), **KINDS[kind])  # type: ignore[arg-type]
    driver = Driver(NullBackend(rambling, VOCABULARY))
    [sequence] = driver.finish([one])
    return one, tuple(sequence.output), tuple(driver.logits[one.id, choice])


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(
    asked=st.lists(
        st.tuples(st.integers(0, len(KINDS) - 1), st.sampled_from([1, 5, 20, 33]), st.just(0)),
        min_size=1,
        max_size=5,
        unique=True,
    ),
    way=st.sampled_from(["foreseen", "looked up", "recent", "drafted"]),
    longest=st.integers(1, MOST_DRAFTS),
    always=st.booleans(),
    step_tokens=st.sampled_from([None, 40, 64]),
    preempt_every=st.sampled_from([None, 8, 15]),
    blocks=st.sampled_from([None, 8]),
)
def test_every_text_is_to_the_bit_what_it_is_alone(
    asked: list[tuple[int, int, int]],
    way: str,
    longest: int,
    always: bool,
    step_tokens: int | None,
    preempt_every: int | None,
    blocks: int | None,
) -> None:
    wanted = [made(*each) for each in asked]
    costly = None
    if way == "foreseen":
        texts = [[*one.prompt, *output] for one, output, _ in wanted]
        drafter = Foreseeing(texts, wrong=5)
    elif way == "drafted":
        drafter = costly = ModelDrafter(NullBackend(nearly, VOCABULARY, total_blocks=16))  # type: ignore[assignment]
    else:
        recent = RecentTexts(500) if way == "recent" else None
        drafter = LookupDrafter(recent)  # type: ignore[assignment]
        for one, output, _ in wanted if recent is not None else ():
            assert recent is not None
            recent.add(one.key, [*one.prompt, *output])
    speculation = Speculation(drafter, longest, costly=costly, always=always)
    driver = Driver(NullBackend(rambling, VOCABULARY), blocks, speculation)
    sequences = driver.finish([one for one, _, _ in wanted], step_tokens, preempt_every)
    for sequence, (one, output, digests) in zip(sequences, wanted, strict=True):
        assert tuple(sequence.output) == output
        assert tuple(driver.logits[one.id, 0]) == digests
