from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.scripted import BOS, EOS, VOCABULARY, engine, saying
from engine.threads import in_threads
from farthing.core import RequestError, SamplingParams
from farthing.engine.limits import Policy

if TYPE_CHECKING:
    from collections.abc import Callable


def test_a_string_is_continued_until_the_end_of_text() -> None:
    completion = engine(saying("four.")).generate("2+2>")
    assert completion.text == "four."
    assert completion.token_ids == (*b"four.", EOS)
    assert completion.finish_reason == "stop"
    assert completion.usage.prompt_tokens == 5  # <bos> and four bytes
    assert completion.usage.completion_tokens == 6
    assert completion.usage.total_tokens == 11


def test_a_string_gets_the_beginning_token_and_token_ids_are_taken_as_they_are() -> None:
    one = engine()
    assert one.encode("ab") == [BOS, 97, 98]
    assert one.encode([97, 98]) == [97, 98]
    assert one.encode((97, 98)) == [97, 98]


def test_a_chat_goes_through_the_template_with_one_beginning_token() -> None:
    one = engine()
    ids = one.encode([{"role": "user", "content": "hi <turn>"}])
    assert ids.count(BOS) == 1
    # The template's own <turn> is the token, the one that was typed is text.
    assert ids == [BOS, *b"user: hi <turn>", 258, *b"assistant: "]


def test_a_list_gives_a_list_in_its_order() -> None:
    completions = engine(saying("yes")).generate(["a>", "bb>", "ccc>"])
    assert [completion.text for completion in completions] == ["yes"] * 3
    assert [completion.usage.prompt_tokens for completion in completions] == [3, 4, 5]


def test_a_list_of_chats_and_a_list_of_token_lists_are_lists_of_prompts() -> None:
    one = engine(saying("yes"))
    chat = [{"role": "user", "content": ">"}]
    assert len(one.generate([chat, chat])) == 2
    assert len(one.generate([[62], [97, 62]])) == 2
    assert engine(saying("yes", after=" ")).generate(chat).text == "yes"


PROMPTS = ["a", "some more words", "x" * 70, "the fourth one", "five", "y" * 40]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    "sizes",
    [{}, {"max_step_tokens": 3}, {"max_step_rows": 2}, {"total_blocks": 5}, {"max_step_rows": 1}],
    ids=str,
)
def test_each_text_of_a_list_is_what_it_is_alone(temperature: float, sizes: dict[str, int]) -> None:
    sampling = SamplingParams(max_tokens=40, temperature=temperature, seed=11, logprobs=3)
    alone = [engine().generate(prompt, sampling) for prompt in PROMPTS]
    together = engine(**sizes).generate(PROMPTS, sampling)
    for one, other in zip(alone, together, strict=True):
        assert one.token_ids == other.token_ids
        assert one.text == other.text
        assert one.logprobs == other.logprobs


def test_a_cache_too_small_for_all_at_once_costs_time_and_no_text() -> None:
    sampling = SamplingParams(max_tokens=60, temperature=1.0, seed=2)
    prompts = [f"number {number} of several prompts" for number in range(5)]
    one = engine(total_blocks=6)
    together = one.generate(prompts, sampling)
    assert one.stats().counters.preemptions > 0
    for prompt, completion in zip(prompts, together, strict=True):
        assert completion.token_ids == engine().generate(prompt, sampling).token_ids


def test_prompts_of_a_list_share_steps() -> None:
    one = engine()
    one.generate(PROMPTS, SamplingParams(max_tokens=10))
    assert one.steps == 10


@given(
    prompts=st.lists(st.text(min_size=1, max_size=60), min_size=1, max_size=6),
    tokens=st.integers(1, 40),
    seed=st.integers(0, 2**64 - 1),
)
@settings(max_examples=25)
def test_every_step_keeps_to_the_backends_contract(
    prompts: list[str], tokens: int, seed: int
) -> None:
    # The null backend raises for a plan that breaks it.
    one = engine(max_step_tokens=17, total_blocks=12)
    sampling = SamplingParams(max_tokens=tokens, temperature=1.0, seed=seed)
    completions = one.generate(prompts, sampling)
    assert all(len(each.token_ids) == tokens for each in completions)
    assert one.idle


def test_a_character_cut_off_by_max_tokens_ends_in_a_replacement_character() -> None:
    completion = engine(saying("aé")).generate(">", SamplingParams(max_tokens=2))
    assert completion.text == "a\ufffd"
    assert completion.finish_reason == "length"


def test_a_stop_string_ends_the_text_before_it() -> None:
    sampling = SamplingParams(stop=("END", "never"))
    completion = engine(saying("one EN two END three")).generate(">", sampling)
    assert (completion.text, completion.finish_reason) == ("one EN two ", "stop")
    assert bytes(completion.token_ids) == b"one EN two END"


def test_a_stop_string_in_the_last_token_allowed_counts_as_a_stop() -> None:
    completion = engine(saying("abX")).generate(">", SamplingParams(stop="X", max_tokens=3))
    assert (completion.text, completion.finish_reason) == ("ab", "stop")


def test_text_held_back_for_a_stop_string_comes_when_the_text_ends() -> None:
    completion = engine(saying("one EN")).generate(">", SamplingParams(stop="END"))
    assert (completion.text, completion.finish_reason) == ("one EN", "stop")


def test_stop_strings_and_ending_tokens_wait_for_min_tokens() -> None:
    one = engine(saying("aXbXcX"))
    assert one.generate(">", SamplingParams(stop="X", min_tokens=2)).text == "aXb"
    assert one.generate(">", SamplingParams(stop="X", min_tokens=1)).text == "a"
    longer = one.generate(">", SamplingParams(min_tokens=9, max_tokens=12))
    assert len(longer.token_ids) >= 9
    assert EOS not in longer.token_ids[:9]


def test_a_stop_token_ends_the_text_and_is_no_part_of_it() -> None:
    completion = engine(saying("ab|cd")).generate(">", SamplingParams(stop_token_ids=[124]))
    assert completion.text == "ab"
    assert bytes(completion.token_ids) == b"ab|"
    assert completion.finish_reason == "stop"


def test_ignore_eos_goes_on_to_max_tokens() -> None:
    completion = engine(saying("a")).generate(">", SamplingParams(ignore_eos=True, max_tokens=4))
    assert completion.token_ids == (97, EOS, EOS, EOS)
    assert (completion.text, completion.finish_reason) == ("a", "length")


def test_without_max_tokens_the_context_is_the_end() -> None:
    one = engine(context_length=40)
    assert one.context_length == 40
    completion = one.generate([1, 2, 3])
    assert completion.usage.total_tokens == 40
    assert completion.finish_reason == "length"


@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_a_drawn_seed_is_told_and_repeats_the_text(temperature: float) -> None:
    one = engine()
    drawn = one.generate("go", SamplingParams(temperature=temperature, max_tokens=30))
    again = one.generate(
        "go", SamplingParams(temperature=temperature, max_tokens=30, seed=drawn.seed)
    )
    other = one.generate("go", SamplingParams(temperature=temperature, max_tokens=30))
    assert again.token_ids == drawn.token_ids
    assert again.seed == drawn.seed
    assert other.token_ids != drawn.token_ids


def test_log_probabilities_are_given_where_they_are_asked_for() -> None:
    one = engine()
    assert one.generate("a", SamplingParams(max_tokens=2)).logprobs is None
    completion = one.generate("a", SamplingParams(max_tokens=2, logprobs=2))
    assert completion.logprobs is not None
    for entry, token in zip(completion.logprobs, completion.token_ids, strict=True):
        assert entry.token_id == token == entry.top[0][0]  # greedy takes the likeliest
        assert entry.logprob == entry.top[0][1] > entry.top[1][1]


def test_timing_covers_the_backends_time() -> None:
    completion = engine().generate("a", SamplingParams(max_tokens=20))
    timing = completion.timing
    assert 0 < timing.native_seconds < timing.prefill_seconds + timing.decode_seconds
    assert 0 < timing.python_share < 1


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("", "the prompt is empty|at least one"),
        ([], "the prompt is empty"),
        ([1, "a"], "whole numbers only"),
        ([True], "whole numbers only"),
        (7, "a prompt is a string, token ids or a chat, not int"),
        ([VOCABULARY], "names token 259"),
        ([{"role": "user"}], "chat template"),
        ("x" * 2000, "the prompt has 2001 tokens, and the context holds 1024"),
    ],
    ids=repr,
)
def test_a_bad_prompt_is_one_clear_error(prompt: Any, message: str) -> None:
    one = engine()
    if prompt == "":
        # A model with a beginning token can start from nothing.
        assert one.generate(prompt, SamplingParams(max_tokens=1)).usage.prompt_tokens == 1
        return
    if prompt == [{"role": "user"}]:
        one.chat_template = None
    with pytest.raises(RequestError, match=message):
        one.generate(prompt)
    assert one.idle


@pytest.mark.parametrize("sampling", [{"max_tokens": 3}, 3, "greedy"], ids=repr)
def test_sampling_that_is_no_sampling_params_is_one_clear_error(sampling: Any) -> None:
    with pytest.raises(RequestError, match="sampling must be SamplingParams, not"):
        engine().generate("hello", sampling)


@pytest.mark.parametrize("kind", [np.array, lambda ids: list(np.array(ids)), tuple])
def test_token_ids_may_come_from_numpy(kind: Callable[[list[int]], Any]) -> None:
    few = SamplingParams(max_tokens=3)
    ids = [97, 98, 99]
    assert engine().generate(kind(ids), few).token_ids == engine().generate(ids, few).token_ids


def test_when_one_prompt_of_a_list_is_bad_none_is_run() -> None:
    one = engine()
    with pytest.raises(RequestError, match="2001 tokens"):
        one.generate(["fine", "x" * 2000, "fine too"])
    assert one.steps == 0
    assert one.idle


def test_an_engine_without_a_template_says_so() -> None:
    one = engine()
    one.chat_template = None
    with pytest.raises(RequestError, match="no chat template"):
        one.generate([{"role": "user", "content": "hi"}])


def test_texts_generated_from_several_threads_are_what_they_are_alone() -> None:
    sampling = SamplingParams(max_tokens=30, temperature=1.0, seed=5)
    alone = {prompt: engine().generate(prompt, sampling).token_ids for prompt in PROMPTS}
    one = engine(total_blocks=9)
    found: dict[str, tuple[int, ...]] = {}

    def work(prompt: str) -> Callable[[], None]:
        def generate() -> None:
            found[prompt] = one.generate(prompt, sampling).token_ids

        return generate

    in_threads(*map(work, PROMPTS))
    assert found == alone
    assert one.idle


def test_a_prompt_that_is_in_the_cache_is_not_computed_again_and_the_usage_says_so() -> None:
    one = engine()
    beginning, few = (
        "the same beginning of sixty-four tokens and more, twice over. ",
        SamplingParams(max_tokens=3),
    )
    first = one.generate(beginning + "one", few)
    second = one.generate(beginning + "two", few)
    assert (first.usage.cached_tokens, second.usage.cached_tokens) == (0, len(beginning) + 1)
    assert second.miss is not None
    assert (second.miss.position, second.miss.reason) == (len(beginning) + 1, "differs")
    assert second.token_ids == engine().generate(beginning + "two", few).token_ids


def test_nothing_is_shared_where_the_policy_says_so() -> None:
    one = engine(policy=Policy(sharing=False))
    for _ in range(2):
        completion = one.generate("x" * 70, SamplingParams(max_tokens=3))
    assert completion.usage.cached_tokens == 0
    assert one.stats().cached_blocks == 0


def test_an_engine_says_what_bounds_it() -> None:
    one = engine(total_blocks=2, max_step_rows=8, policy=Policy(slots=3))
    assert (one.context_length, one.most_tokens, one.slots) == (1024, 65, 3)


@pytest.mark.parametrize("queue_tokens", [0, -5, 1.5, True])
def test_a_queue_of_no_tokens_is_refused(queue_tokens: Any) -> None:
    with pytest.raises(RequestError, match="queue_tokens must be a whole number from 1"):
        engine(queue_tokens=queue_tokens)
