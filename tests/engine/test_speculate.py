"""Speculation changes no bit of any text, and stops where it does not pay."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.driving import Driver, Guesser, request
from engine.scripted import EOS, VOCABULARY, engine, rambling, saying
from farthing.backends.null import NullBackend
from farthing.core import Constraint, Request, RequestError, SamplingParams
from farthing.engine.acceptance import MOST_DRAFTS, Acceptance
from farthing.engine.balance import Balance
from farthing.engine.cost import StepCost, StepShape
from farthing.engine.host_time import HostTime
from farthing.engine.lookup import LookupDrafter
from farthing.engine.speculate import Speculation

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Sequence as ListOf

    from farthing.engine.completion import Completion
    from farthing.engine.sequence import Sequence


class Foreseeing(Guesser):
    """Guesses what a text was when it was made before; every `wrong`-th guess is another token."""

    def __init__(self, texts: ListOf[ListOf[int]], wrong: int = 0, vocabulary: int = 256) -> None:
        self.texts = [list(text) for text in texts]
        self.wrong = wrong
        self.vocabulary = vocabulary
        self.made = 0

    def guess(self, sequence: Sequence, most: int) -> list[int]:
        known = sequence.tokens
        text = next((t for t in self.texts if t[: len(known)] == known), None)
        if text is None:
            return []
        guess = text[len(known) : len(known) + most]
        for at in range(len(guess)):
            self.made += 1
            if self.wrong and self.made % self.wrong == 0:
                guess[at] = (guess[at] + 1) % self.vocabulary
        return guess


def prompt_ids(text: str) -> list[int]:
    return list(text.encode())


def facts(made: Completion) -> tuple[Any, ...]:
    return (
        made.token_ids,
        made.text,
        made.finish_reason,
        made.logprobs,
        made.usage.completion_tokens,
    )


WAYS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": {"temperature": 0.9, "top_p": 0.9, "seed": 5},
    "penalties": {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.2},
    "bias": {"logit_bias": {97: 3.0, 98: -100.0}},
    "min_tokens": {
        "min_tokens": 9,
        "stop_token_ids": tuple(range(128, 256)),
        "temperature": 1.0,
        "seed": 1,
    },
    "ending tokens": {"stop_token_ids": tuple(range(0, 250, 9)), "temperature": 1.0, "seed": 2},
    "stop strings": {"stop": tuple("bcdefghij"), "temperature": 1.0, "seed": 3},
    "late stop strings": {"stop": tuple("bcdefghij"), "min_tokens": 7, "seed": 3},
    "log-probabilities": {"logprobs": 3, "temperature": 0.7, "seed": 4},
    "a form": {
        "constraint": Constraint("regex", "(ab|ba|c[0-9]{2}){6,9}"),
        "temperature": 1.5,
        "seed": 6,
    },
    "a form of JSON": {
        "constraint": Constraint(
            "json_schema",
            json.dumps({"type": "array", "items": {"type": "boolean"}, "maxItems": 6}),
        ),
        "temperature": 1.0,
        "seed": 7,
    },
    "penalties in a form": {
        "constraint": Constraint("regex", "[a-f]{20,30}"),
        "repetition_penalty": 1.4,
        "temperature": 1.2,
        "seed": 8,
    },
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("longest", "wrong"), [(1, 0), (3, 0), (4, 3), (16, 5), (8, 1)])
def test_a_text_is_the_same_whatever_is_guessed(way: str, longest: int, wrong: int) -> None:
    sampling = SamplingParams(**{"max_tokens": 40, **WAYS[way]})
    prompts = [f"prompt {n}>" for n in range(3)]
    with engine() as plain:
        expected = plain.generate(prompts, sampling)
    whole = [
        [*plain.tokenizer.encode(prompt), *made.token_ids]
        for prompt, made in zip(prompts, expected, strict=True)
    ]
    drafter = Foreseeing(whole, wrong)
    with engine(speculation=Speculation(drafter, longest, always=True)) as guessing:
        found = guessing.generate(prompts, sampling)
        counters = guessing.stats().counters
    assert [facts(made) for made in found] == [facts(made) for made in expected]
    assert counters.generated_tokens == sum(len(made.token_ids) for made in expected)
    assert counters.drafts.proposed > 0 or wrong == 1
    assert (counters.drafts.accepted > 0) == (wrong != 1)


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(
    answer=st.text("abc", min_size=1, max_size=60),
    guess=st.lists(st.sampled_from([97, 98, 99, EOS]), min_size=1, max_size=5),
    longest=st.integers(1, MOST_DRAFTS),
    most=st.integers(1, 60),
    stop=st.lists(st.text("abc", min_size=1, max_size=3), max_size=2),
)
def test_no_guess_at_all_changes_a_text(
    answer: str, guess: list[int], longest: int, most: int, stop: list[str]
) -> None:
    class Fixed(Guesser):
        def guess(self, sequence: Sequence, most: int) -> list[int]:
            return (guess * MOST_DRAFTS)[:most]

    sampling = SamplingParams(max_tokens=most, stop=tuple(stop))
    made = []
    for speculation in (None, Speculation(Fixed(), longest, always=True)):
        with engine(saying(answer), speculation=speculation) as one:
            found = one.generate(["one>", "two>"], sampling)[1]
            assert one.idle
        made.append(facts(found))
        # What a stop string cut off was not written.
        assert 0 <= found.usage.accepted_tokens <= min(found.usage.drafted_tokens, len(made[-1][0]))
    assert made[0] == made[1]


def test_choices_and_preemption_and_shared_blocks_change_no_bit() -> None:
    prompts = [[*range(40 + n), *range(60)] for n in range(4)]
    requests = [
        request(f"r{n}", prompt, 120, temperature=0.8, seed=n, choice=choice)
        for n, prompt in enumerate(prompts)
        for choice in range(2)
    ]
    plain = Driver(NullBackend(rambling, VOCABULARY))
    expected = [each.output for each in plain.finish(requests)]
    texts = [[*each.prompt, *out] for each, out in zip(requests, expected, strict=True)]
    for every, blocks in ((None, None), (3, None), (None, 13)):
        backend = NullBackend(rambling, VOCABULARY)
        speculation = Speculation(Foreseeing(texts, 4), 6, always=True)
        driver = Driver(backend, blocks, speculation)
        assert [each.output for each in driver.finish(requests, None, every)] == expected
        assert driver.logits == plain.logits
        assert driver.steps < plain.steps or every or blocks
        assert driver.scheduler.counters.drafts.accepted > 50
        assert bool(driver.scheduler.counters.preemptions) == bool(every or blocks)


def test_a_request_may_be_guessed_for_less_or_not_at_all() -> None:
    """And its neighbours as before."""
    prompts = [f"prompt {n}>" for n in range(3)]
    samplings = [SamplingParams(max_tokens=30, max_draft_tokens=most) for most in (0, 2, None)]
    with engine() as plain:
        expected = [plain.generate(*each) for each in zip(prompts, samplings, strict=True)]
    whole = [
        [*plain.tokenizer.encode(prompt), *made.token_ids]
        for prompt, made in zip(prompts, expected, strict=True)
    ]
    drafter = Foreseeing(whole)
    with engine(speculation=Speculation(drafter, 5, always=True)) as one:
        streams = [one.submit(*each)[0] for each in zip(prompts, samplings, strict=True)]
        found = [stream.result() for stream in streams]
        counts = one.stats().counters.drafts
    assert [facts(made) for made in found] == [facts(made) for made in expected]
    drafted = [made.usage.drafted_tokens for made in found]
    assert drafted[0] == 0
    assert 0 < drafted[1] < drafted[2]
    assert [made.usage.accepted_tokens for made in found] == drafted  # all were right
    assert counts.proposed == sum(drafted) == counts.accepted
    assert counts.tested[0] > counts.tested[2] >= counts.tested[4] > 0
    assert counts.tested[5] == 0
    assert counts.tokens_per_pass == pytest.approx(1 + counts.accepted / counts.drafts)


@pytest.mark.parametrize("most", [-1, 1.5, True, "2", 2**31])
def test_a_most_that_is_none_is_refused(most: Any) -> None:
    with pytest.raises(RequestError, match="max_draft_tokens must be a whole number from 0"):
        SamplingParams(max_draft_tokens=most)


def test_a_drafter_that_fails_fails_no_request(caplog: pytest.LogCaptureFixture) -> None:
    class Failing(Guesser):
        asked = 0

        def guess(self, sequence: Sequence, most: int) -> list[int]:
            self.asked += 1
            if self.asked == 3:
                raise ValueError("out of luck")
            return [97] * most

    drafter = Failing()
    sampling = SamplingParams(max_tokens=20)
    with engine() as plain:
        expected = plain.generate("x>", sampling)
    with engine(speculation=Speculation(drafter, always=True)) as one:
        assert facts(one.generate("x>", sampling)) == facts(expected)
        assert facts(one.generate("x>", sampling)) == facts(expected)
        assert one.idle
    assert drafter.asked == 3
    [line] = [each for each in caplog.messages if "guessing" in each]
    assert "switched off" in line
    assert "out of luck" in line


def test_guesses_take_no_block_from_others() -> None:
    """In a cache that two texts fill, none is preempted because of guesses."""
    requests = [request(f"r{n}", range(n, n + 30), 34) for n in range(2)]
    plain = Driver(NullBackend(rambling, VOCABULARY), 4, sharing=False)
    texts = [[*each.request.prompt, *each.output] for each in plain.finish(requests)]
    speculation = Speculation(Foreseeing(texts), 16, always=True)
    driver = Driver(NullBackend(rambling, VOCABULARY), 4, speculation, sharing=False)
    driver.finish(requests)
    assert driver.scheduler.counters.preemptions == plain.scheduler.counters.preemptions == 0


def test_a_text_that_ends_leaves_nothing_behind() -> None:
    drafter = LookupDrafter()
    speculation = Speculation(drafter)
    with engine(speculation=speculation) as one:
        one.generate(["abcabcabcabc>"] * 3, SamplingParams(max_tokens=20))
    assert not drafter._indices
    assert not speculation._records


# --- what pays


def linear_cost(fixed: float, token: float) -> StepCost:
    """A cost that has learned that a step takes `fixed` and `token` more for each token."""
    cost = StepCost()
    for _ in range(400):
        for tokens in (1, 2, 3, 4, 6, 8, 12):
            context = 100 * tokens
            cost.observe(StepShape(tokens, tokens, context, context), fixed + token * tokens)
    return cost


def chosen(speculation: Speculation, sequence: Sequence, cost: StepCost) -> int:
    drafts = speculation.drafts([sequence], 32, cost)
    return len(drafts[sequence].tokens) if sequence in drafts else 0


class Allowing(Balance):
    """What guesses gained does not matter: what is tested is which are chosen."""

    def allows(self, decoding: ListOf[Sequence]) -> bool:
        return True


def speculating(guess: Callable[[int], list[int]]) -> tuple[Speculation, Sequence]:
    from farthing.engine.sequence import Sequence

    class Fixed(Guesser):
        def guess(self, sequence: Sequence, most: int) -> list[int]:
            return guess(most)

    sequence = Sequence(Request("r", (1, 2, 3), SamplingParams()), 1000, frozenset())
    speculation = Speculation(Fixed(), 8)
    speculation._balance = Allowing()
    return speculation, sequence


@pytest.mark.parametrize(
    ("rate", "token", "least", "most"),
    [(1.0, 0.02, 8, 8), (0.0, 0.02, 0, 0), (0.9, 0.1, 3, 8), (0.1, 0.5, 0, 0), (0.6, 0.1, 1, 4)],
)
def test_as_much_is_guessed_as_pays(rate: float, token: float, least: int, most: int) -> None:
    speculation, sequence = speculating(lambda most: [9] * most)
    cost = linear_cost(1.0, token)
    random = np.random.default_rng(0)
    chosen(speculation, sequence, cost)  # makes its record
    for _ in range(300):
        speculation._records[sequence].rests_until = 0
        right = next((n for n in range(8) if random.random() >= rate), 8)
        speculation.learn(sequence, min(8, right + 1), right)
    assert least <= chosen(speculation, sequence, cost) <= most


def test_a_loser_is_tried_again_within_a_part_of_the_time() -> None:
    speculation, sequence = speculating(lambda most: [9] * most)
    cost = linear_cost(1.0, 0.3)
    chosen(speculation, sequence, cost)
    for _ in range(100):
        speculation.learn(sequence, 1, 0)
    lengths = []
    for _ in range(2000):
        sequence.tokens.append(5)
        lengths.append(chosen(speculation, sequence, cost))
        if lengths[-1]:
            speculation.learn(sequence, 1, 0)
    assert sum(lengths) >= 2
    assert sum(lengths) * 0.3 <= 0.01 * 2000 * 1.3
    assert max(lengths) == 1


def test_a_loser_that_begins_to_win_is_found_out() -> None:
    speculation, sequence = speculating(lambda most: [9] * most)
    cost = linear_cost(1.0, 0.1)
    for _ in range(100):
        chosen(speculation, sequence, cost)
        speculation.learn(sequence, 1, 0)
    lengths = []
    for _ in range(400):
        sequence.tokens.append(5)
        lengths.append(chosen(speculation, sequence, cost))
        speculation.learn(sequence, lengths[-1], lengths[-1])
    assert lengths[-1] == 8


def test_nobody_looks_for_guesses_that_good_ones_would_not_pay() -> None:
    asked: list[int] = []

    def guess(most: int) -> list[int]:
        asked.append(most)
        return [9] * most

    speculation, sequence = speculating(guess)
    assert chosen(speculation, sequence, linear_cost(0.05, 1.0)) == 0
    assert not asked
    speculation, sequence = speculating(guess)
    chosen(speculation, sequence, linear_cost(1.0, 0.05))
    assert asked


def test_what_the_host_does_for_guesses_is_part_of_their_cost() -> None:
    lengths = []
    for extra in (0.0, 1.0):
        speculation, sequence = speculating(lambda most: [9] * most)
        for number in range(100):
            speculation.usual.learn(1, int(number % 10 < 4))  # 4 in 10 are right
            speculation.host.observe(1, False, 0.1)
            speculation.host.observe(1, True, 0.1 + extra)
        lengths.append(chosen(speculation, sequence, linear_cost(1.0, 0.05)))
    assert lengths[0] >= 1
    assert lengths[1] == 0


def test_one_pause_of_the_host_does_not_count_as_its_usual_time() -> None:
    host = HostTime()
    for _ in range(200):
        host.observe(1, False, 1.0)
        host.observe(1, True, 1.1)
    host.observe(1, True, 1000.0)
    assert host.extra(1) < 0.4
    assert host.extra(8) == 0.0  # of which nothing was seen


def test_a_run_that_was_right_for_long_is_trusted_more_than_a_short_one() -> None:
    """Guesses after two known tokens are wrong, after six right: each is judged by itself."""
    from farthing.engine.sequence import Sequence

    class Matching(Guesser):
        known = 2

        def guess(self, sequence: Sequence, most: int) -> list[int]:
            return [9] * most

        def matched(self, sequence: Sequence) -> int:
            return self.known

    drafter = Matching()
    speculation = Speculation(drafter)
    speculation._balance = Allowing()
    sequence = Sequence(Request("r", (1, 2, 3), SamplingParams()), 1000, frozenset())
    for _ in range(60):
        speculation.usual.learn(1, 0, 2)
        speculation.usual.learn(4, 4, 6)
    cost = linear_cost(1.0, 0.2)
    lengths = []
    for drafter.known in (2, 6):
        lengths.append(chosen(speculation, sequence, cost))
    assert lengths[0] == 0
    assert lengths[1] >= 4


def test_nothing_is_guessed_before_a_step_was_timed() -> None:
    speculation, sequence = speculating(lambda most: [9] * most)
    assert chosen(speculation, sequence, StepCost()) == 0


def test_while_it_is_not_known_what_guesses_cost_a_few_steps_show_it() -> None:
    cost = StepCost()
    for _ in range(3):
        cost.observe(StepShape(200, 1, 20_100, 200), 1.0)
        cost.observe(StepShape(1, 1, 200, 200), 0.1)
    speculation, sequence = speculating(lambda most: [9] * most)
    assert [chosen(speculation, sequence, cost) for _ in range(4)] == [3, 1, 3, 1]
    known, other = speculating(lambda most: [9] * most)
    assert chosen(known, other, linear_cost(1.0, 0.02)) > 3  # and not where it is


def test_rates_are_of_guesses_whose_predecessors_were_right() -> None:
    acceptance = Acceptance()
    assert acceptance.rate(0) == acceptance.rate(2) == 0.5
    assert acceptance.rate(2) < acceptance.rate(5) < acceptance.rate(15) < 0.9
    for _ in range(200):
        acceptance.learn(3, 1)
    assert acceptance.rate(0) > 0.9
    assert acceptance.rate(1) < 0.1
    assert acceptance.rate(2) == pytest.approx(acceptance.rate(1))  # as the one before it: untested


@given(
    st.lists(
        st.tuples(st.integers(1, MOST_DRAFTS), st.integers(0, MOST_DRAFTS), st.integers(0, 30)),
        max_size=40,
    )
)
def test_rates_are_probabilities_whatever_was_seen(seen: list[tuple[int, int, int]]) -> None:
    usual = Acceptance()
    own = Acceptance(usual)
    for proposed, accepted, run in seen:
        own.learn(proposed, min(proposed, accepted), run)
    for each in (usual, own):
        assert all(0 < each.rate(run) < 1 for run in range(40))
        gains = each.gains(MOST_DRAFTS, 3)
        assert gains == sorted(gains, reverse=True)


@pytest.mark.parametrize("longest", [0, -1, MOST_DRAFTS + 1, 2.0, True, "3"])
def test_a_length_that_is_none_is_refused(longest: Any) -> None:
    with pytest.raises(RequestError, match=f"from 1 to {MOST_DRAFTS} tokens"):
        Speculation(LookupDrafter(), longest)
