"""Embeddings and the scores of prompts, over the scripted engine: how they are gathered."""

from __future__ import annotations

import asyncio
import tracemalloc
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from engine.scripted import VOCABULARY, engine, rambling, tokenizer
from engine.threads import eventually
from farthing.backends.null import NullBackend
from farthing.core import (
    ContextLengthError,
    FarthingError,
    Request,
    RequestError,
    SamplingParams,
)
from farthing.engine.engine import Engine, limits_of
from farthing.engine.prompt_rows import PromptMean, PromptScores, TokenLogprob
from farthing.engine.sampler import log_probabilities, ranked, sample
from farthing.engine.scheduler import Scheduler
from farthing.engine.sequence import Sequence
from farthing.plan.process import TOKEN_BYTES

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

TEXTS = ["", "a", "the first", "x" * 31, "y" * 32, "z" * 100, "the first and the second " * 5]


def test_a_score_is_what_it_was_made_of_and_small_with_twenty_others() -> None:
    top = tuple((7 * number, -0.1 * number) for number in range(20))
    score = TokenLogprob(3, -0.25, top)
    assert (score.token_id, score.logprob, score.top) == (3, -0.25, top)
    assert score == TokenLogprob(3, -0.25, iter(top))
    assert hash(score) == hash(TokenLogprob(3, -0.25, top))
    for other in (TokenLogprob(4, -0.25, top), TokenLogprob(3, -0.5, top), (3, -0.25, top)):
        assert score != other
    assert score != TokenLogprob(3, -0.25, top[:19])
    assert TokenLogprob(3, float("-inf"), ()).top == ()
    tracemalloc.start()
    try:
        scores = [TokenLogprob(300 + at, -0.5 - at, top) for at in range(1000)]
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    # Two thirds of what the plan counts for a token.
    assert taken / len(scores) < TOKEN_BYTES * 2 / 3


def ids(text: str) -> list[int]:
    return tokenizer().encode(text)


def states(prompt: list[int]) -> NDArray[np.float32]:
    """The null backend's hidden states, by its definition."""
    return np.array(
        [
            (
                1 / (1 + prompt[i]),
                i,
                sum(prompt[: i + 1]),
                float(np.sqrt(1.0 + np.arange(i + 1)) @ prompt[: i + 1]),
            )
            for i in range(len(prompt))
        ],
        np.float32,
    )


def mean(prompt: list[int]) -> NDArray[np.float32]:
    total = np.zeros(4, np.float32)
    for state in states(prompt):
        total = total + state
    average = (total / np.float32(len(prompt))).astype(np.float64)
    vector: NDArray[np.float32] = (average / np.linalg.norm(average)).astype(np.float32)
    return vector


def test_an_embedding_is_the_mean_of_all_states_at_length_1() -> None:
    with engine() as one:
        for text in TEXTS:
            found = one.embed(text)
            assert found.vector.dtype == np.float32
            np.testing.assert_allclose(found.vector, mean(ids(text)), rtol=2e-6, atol=1e-7)
            assert abs(float(np.linalg.norm(found.vector)) - 1) < 1e-6
            assert (found.usage.prompt_tokens, found.usage.completion_tokens) == (len(ids(text)), 0)


def test_scores_are_the_log_softmax_of_each_token_given_those_before_it() -> None:
    with engine() as one:
        for text in TEXTS[1:]:
            prompt = ids(text)
            first, *others = one.score(text, top=3)
            assert first is None
            assert len(others) == len(prompt) - 1
            for position, entry in enumerate(others, 1):
                logits = rambling(np.array(prompt[:position], np.int32))
                wanted = log_probabilities(logits)
                best = ranked(logits)[:3].tolist()
                assert entry is not None
                assert (entry.token_id, entry.logprob) == (
                    prompt[position],
                    wanted[prompt[position]],
                )
                assert entry.top == tuple((token, float(wanted[token])) for token in best)


def test_a_prompt_of_one_token_has_no_scores() -> None:
    with engine() as one:
        assert one.score([65]) == (None,)


@pytest.mark.parametrize(
    "sizes",
    [
        {},
        {"max_step_tokens": 7, "max_step_rows": 3},
        {"max_step_tokens": 16, "max_step_rows": 1},
        {"total_blocks": 7},
        {"total_blocks": 5, "max_step_tokens": 40, "max_step_rows": 4},
    ],
    ids=str,
)
def test_neither_batches_nor_chunks_nor_a_small_cache_change_a_bit(sizes: dict[str, int]) -> None:
    texts = [f"{text}{number}" for number, text in enumerate(TEXTS * 3)]
    with engine() as plain:
        vectors = [plain.embed(text).vector.tobytes() for text in texts]
        scores = [plain.score(text, top=2) for text in texts]
    with engine(**sizes) as small:
        assert [each.vector.tobytes() for each in small.embed(texts)] == vectors
        assert small.score(texts, top=2) == scores
        # All at once, with others that write.
        sampling = SamplingParams(max_tokens=20, temperature=1.0, seed=3)
        writers = [small.submit(f"writer {number}", sampling)[0] for number in range(4)]
        embedded = [small.submit(text, embed=True)[0] for text in texts]
        scored = [
            small.submit(text, SamplingParams(max_tokens=0, prompt_logprobs=2))[0] for text in texts
        ]
        for stream, vector in zip(embedded, vectors, strict=True):
            found = stream.result().embedding
            assert found is not None
            assert found.tobytes() == vector
        assert [stream.result().prompt_logprobs for stream in scored] == scores
        assert len({stream.result().text for stream in writers}) == 4
        assert eventually(lambda: small.stats().held_blocks == 0)


@pytest.mark.parametrize("every", [1, 2, 3])
def test_what_is_taken_before_a_preemption_stays_and_is_not_asked_for_again(every: int) -> None:
    prompt = ids("one text that is read twice, in part " * 4)
    backend = NullBackend(rambling, VOCABULARY, max_step_tokens=40, max_step_rows=8)
    scheduler = Scheduler(limits_of(backend))
    sampling = SamplingParams(max_tokens=2, prompt_logprobs=1)
    scored = scheduler.submit(Request("scores", tuple(prompt), sampling))
    read = SamplingParams(max_tokens=0)
    embedded = scheduler.submit(Request("mean", tuple(prompt), read, embed=True))
    rows = steps = 0
    while (plan := scheduler.schedule()) is not None:
        result = backend.run(plan)
        assert result.logits is not None
        if plan.sampling is not None:
            result = replace(sample(result.logits, plan.sampling), hidden=result.hidden)
        scheduler.commit(result)
        scheduler.check()
        rows += len(plan.rows) + len(plan.hidden_rows)
        steps += 1
        if steps % every == 0:
            for sequence in scheduler.running:
                scheduler.preempt(sequence)
    assert scored.preemptions + embedded.preemptions > 2
    assert rows == (len(prompt) - 1 + 2) + len(prompt)
    with engine() as one:
        assert scored.scores is not None
        assert embedded.mean is not None
        assert tuple(scored.scores.entries) == one.score(prompt, top=1)
        assert embedded.mean.vector().tobytes() == one.embed(prompt).vector.tobytes()


def test_a_prompt_is_scored_and_then_continued() -> None:
    sampling = SamplingParams(max_tokens=12, temperature=1.0, seed=5, logprobs=1)
    with engine(max_step_rows=5) as one:
        plain = one.generate("z" * 40, sampling)
        both = one.generate(
            "z" * 40,
            SamplingParams(max_tokens=12, temperature=1.0, seed=5, logprobs=1, prompt_logprobs=0),
        )
        assert (both.text, both.logprobs) == (plain.text, plain.logprobs)
        assert both.prompt_logprobs == one.score("z" * 40)
        assert plain.prompt_logprobs is None


def test_the_cache_gives_no_rows_so_nothing_of_it_is_used_but_it_is_filled() -> None:
    text = "w" * 100
    with engine() as one:
        one.generate(text, SamplingParams(max_tokens=1))
        assert one.embed(text).usage.cached_tokens == 0
    with engine() as other:
        other.score(text)
        assert other.generate(text, SamplingParams(max_tokens=1)).usage.cached_tokens == 96


def test_of_n_answers_the_first_has_the_prompts_scores_and_the_others_its_cache() -> None:
    sampling = SamplingParams(max_tokens=5, temperature=1.0, prompt_logprobs=1)
    with engine() as one:
        first, *others = [each.result() for each in one.submit("q" * 70, sampling, n=3)]
        assert first.prompt_logprobs == one.score("q" * 70, top=1)
        assert [each.prompt_logprobs for each in others] == [None, None]
        assert [each.usage.cached_tokens for each in others] == [70, 70]
        assert len({each.text for each in (first, *others)}) == 3


def test_reading_alone_fills_the_cache_and_writes_nothing() -> None:
    with engine() as one:
        read = one.generate("r" * 70, SamplingParams(max_tokens=0))
        assert (read.text, read.token_ids, read.finish_reason) == ("", (), "length")
        assert read.usage.completion_tokens == 0
        assert one.generate("r" * 70, SamplingParams(max_tokens=1)).usage.cached_tokens == 64
        deltas = list(one.stream("r" * 70, SamplingParams(max_tokens=0)))
        assert [(each.text, each.finish_reason) for each in deltas] == [("", "length")]
        assert one.stats().counters.generated_tokens == 1


def test_a_whole_context_can_be_read_but_not_more() -> None:
    with engine(context_length=64, total_blocks=2) as one:
        full = [65] * 64
        assert len(one.score(full)) == 64
        assert one.embed(full).usage.prompt_tokens == 64
        with pytest.raises(ContextLengthError, match="context holds 64;"):
            one.embed([65] * 65)
        with pytest.raises(ContextLengthError, match="with at least one for the answer"):
            one.generate(full)


def test_a_closed_stream_ends_an_embedding_and_frees_its_blocks() -> None:
    with engine(max_step_tokens=8) as one:
        stream = one.submit("e" * 900, embed=True)[0]
        stream.close()
        assert stream.completion.embedding is None
        assert eventually(lambda: one.idle and one.stats().held_blocks == 0)


def test_asyncio_waits_for_many_embeddings_at_once() -> None:
    async def gather(one: Engine) -> list[Any]:
        streams = [one.submit(text, embed=True)[0] for text in TEXTS]
        return [(await stream).embedding for stream in streams]

    with engine() as one:
        for found, text in zip(asyncio.run(gather(one)), TEXTS, strict=True):
            assert found.tobytes() == one.embed(text).vector.tobytes()


def test_what_cannot_be_embedded_or_scored_is_refused() -> None:
    with engine() as one:
        for prompt, message in (
            ([], "prompt is empty"),
            ([VOCABULARY], "the prompt names token"),
            ([[65], []], "prompt is empty"),
        ):
            with pytest.raises(RequestError, match=message):
                one.embed(prompt)
            with pytest.raises(RequestError, match=message):
                one.score(prompt)
        with pytest.raises(RequestError, match="prompt_logprobs must be from 0 to 20"):
            one.score("a", top=21)
        with pytest.raises(RequestError, match="an embedding is not sampled"):
            one.submit("a", SamplingParams(), embed=True)
        assert one.idle


def test_a_backend_without_hidden_states_gives_no_embeddings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with engine() as one:
        monkeypatch.setattr(one._backend, "hidden_size", 0)
        with pytest.raises(RequestError, match="gives no embeddings"):
            one.embed("a")


def test_states_that_are_not_numbers_are_an_error_and_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broken = [65, 66, 67]

    def state(prefix: NDArray[np.int32]) -> tuple[float, ...]:
        return (np.nan if prefix.tolist() == broken else 1.0,) * 4

    monkeypatch.setattr("farthing.backends.null._hidden_state", state)
    with engine() as one:
        with pytest.raises(FarthingError, match="not numbers"):
            one.embed(broken)
        assert one.embed(broken[:2]).vector.tolist() == [0.5] * 4


def test_states_are_added_in_order_in_float32() -> None:
    some = np.random.default_rng(1).normal(size=(50, 3)).astype(np.float32)
    some[7] *= 1e6
    cut, whole = PromptMean(50), PromptMean(50)
    for part in np.split(some, [1, 2, 30]):
        cut.take(part)
    whole.take(some)
    total = np.float32([0, 0, 0])
    for state in some:
        total = total + state
    average = total / np.float32(50)
    assert cut.vector().tobytes() == whole.vector().tobytes()
    np.testing.assert_allclose(whole.vector(), average / np.linalg.norm(average), rtol=1e-6)


def test_a_mean_of_nothing_but_zeros_stays_so() -> None:
    one = PromptMean(2)
    one.take(np.zeros((2, 3), np.float32))
    assert one.vector().tolist() == [0, 0, 0]


def test_rows_and_reusable_tokens_follow_what_is_taken() -> None:
    sampling = SamplingParams(max_tokens=3, prompt_logprobs=0)
    sequence = Sequence(Request("r", tuple(range(10)), sampling), 100, frozenset())
    assert sequence.reusable == 0
    assert [sequence.rows_of(count) for count in (1, 9, 10)] == [1, 9, 10]
    assert isinstance(sequence.scores, PromptScores)
    sequence.scores.entries += [None] * 4  # four rows are in, and it is preempted
    assert sequence.reusable == 4
    assert [sequence.rows_of(count) for count in (4, 5, 10)] == [0, 1, 6]
    sequence.scores.entries += [None] * 5
    assert sequence.reusable == 9
    assert sequence.rows_of(10) == 1


def test_the_default_models_bits_are_those_of_each_text_alone(smollm2_path: Path) -> None:
    start = "What a reader can check, a writer should say, and in the order in which it is needed. "
    texts = [start + end * 3 for end in ("Rivers run. ", "Bees dance. ", "Glass flows slowly. ")]
    with Engine.load(smollm2_path, threads=1, context_length=256, sharing=False) as plain:
        vectors = [plain.embed(text).vector.tobytes() for text in texts]
        scores = [plain.score(text, top=2) for text in texts]
    # Room for about two texts and rows for three tokens: chunks, turns and a cache that is shared.
    with Engine.load(
        smollm2_path, threads=2, context_length=256, cache_tokens=128, slots=3
    ) as small:
        streams = [small.submit(text, SamplingParams(max_tokens=3))[0] for text in texts]
        streams += [small.submit(text, embed=True)[0] for text in texts]
        assert small.score(texts, top=2) == scores
        found = [stream.result().embedding for stream in streams[3:]]
        assert [each is not None and each.tobytes() for each in found] == vectors
        assert all(len(stream.result().token_ids) == 3 for stream in streams[:3])
