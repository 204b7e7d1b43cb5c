from __future__ import annotations

import gc
import random
import signal
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from engine.driving import Guesser
from engine.scripted import EOS, VOCABULARY, engine, engine_over, rambling, saying
from engine.threads import Held, eventually, in_threads
from farthing.backends.null import NullBackend
from farthing.core import FarthingError, SamplingParams
from farthing.engine.speculate import Speculation

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from farthing.core import StepPlan, StepResult
    from farthing.engine.completion import Delta
    from farthing.engine.sequence import Sequence
    from farthing.engine.stream import Stream


def read_token_by_token(backend: Held, stream: Stream) -> list[Delta]:
    """Allows a step whenever what it gave is read."""
    deltas = []
    backend.allow()
    for delta in stream:
        deltas.append(delta)
        backend.allow()
    return deltas


def test_deltas_join_to_the_text_and_only_the_last_has_a_reason() -> None:
    backend = Held(saying("the answer"))
    stream = engine_over(backend).stream(">")
    deltas = read_token_by_token(backend, stream)
    assert "".join(delta.text for delta in deltas) == "the answer" == stream.completion.text
    assert [delta.finish_reason for delta in deltas] == [None] * 10 + ["stop"]
    assert [delta.token_ids for delta in deltas] == [(token,) for token in (*b"the answer", EOS)]
    assert stream.completion.token_ids == (*b"the answer", EOS)


def test_half_a_character_is_never_sent() -> None:
    backend = Held(saying("aé😀"))
    deltas = read_token_by_token(backend, engine_over(backend).stream(">"))
    assert [delta.text for delta in deltas] == ["a", "", "é", "", "", "", "😀", ""]


def test_half_a_stop_string_is_never_sent() -> None:
    backend = Held(saying("one EN two END three"))
    stream = engine_over(backend).stream(">", SamplingParams(stop="END"))
    deltas = read_token_by_token(backend, stream)
    assert [delta.text for delta in deltas] == [*"one ", "", "", "EN ", *"two ", "", "", ""]
    assert deltas[-1].finish_reason == "stop"
    assert stream.completion.text == "one EN two "


def test_what_a_slow_reader_has_not_read_is_one_delta() -> None:
    one = engine(saying("a long answer, unread"))
    stream = one.stream(">", SamplingParams(logprobs=1))
    assert eventually(lambda: stream.completion.finish_reason)
    [delta] = stream
    assert (delta.text, delta.finish_reason) == ("a long answer, unread", "stop")
    assert delta.token_ids == stream.completion.token_ids == (*b"a long answer, unread", EOS)
    assert delta.logprobs == stream.completion.logprobs
    assert list(stream) == []


def test_however_a_reader_dawdles_its_deltas_join_to_the_same() -> None:
    sampling = SamplingParams(max_tokens=60, logprobs=2, temperature=1.0, seed=4)
    expected = engine().generate("abc", sampling)
    draw = random.Random(1)
    for _ in range(10):
        backend = Held()
        stream = engine_over(backend).stream("abc", sampling)
        deltas: list[Delta] = []
        while backend.allowed < 60:
            steps = draw.randint(1, 12)
            backend.allow(steps)
            if draw.random() < 0.5:
                backend.wait_entered(min(backend.allowed, 60))
            if (delta := stream.take()) is not None:
                deltas.append(delta)
        deltas += stream
        assert "".join(delta.text for delta in deltas) == expected.text
        assert tuple(t for delta in deltas for t in delta.token_ids) == expected.token_ids
        assert tuple(e for delta in deltas for e in delta.logprobs or ()) == expected.logprobs
        assert [delta.finish_reason for delta in deltas if delta.finish_reason] == ["length"]


def test_a_completion_is_what_has_been_made_so_far() -> None:
    backend = Held(saying("answer"))
    stream = engine_over(backend).stream(">")
    assert stream.completion.token_ids == ()
    assert stream.completion.finish_reason is None
    backend.allow(3)
    backend.wait_entered(4)
    assert stream.completion.text == "ans"
    assert stream.completion.finish_reason is None
    backend.allow(9)
    assert stream.result().text == "answer" == stream.completion.text


def test_closing_a_stream_early_frees_its_blocks() -> None:
    backend = Held()
    one = engine_over(backend)
    stream = one.stream("abc")
    backend.allow()
    next(stream)
    assert not one.idle
    stream.close()
    backend.allow()  # it may have begun
    assert eventually(lambda: one.idle)
    assert one.stats().held_blocks == 0


def test_a_closed_stream_ends_where_it_was_closed() -> None:
    backend = Held(saying("answer"))
    one = engine_over(backend)
    stream = one.stream(">")
    backend.allow(2)
    backend.wait_entered(3)
    stream.close()
    backend.allow()  # what the step that runs gives comes too late
    assert eventually(lambda: one.idle)
    [delta] = stream
    assert (delta.text, delta.finish_reason) == ("an", "cancelled")
    assert (stream.completion.text, stream.completion.finish_reason) == ("an", "cancelled")
    assert stream.completion.usage.completion_tokens == 2
    assert stream.result().finish_reason == "cancelled"
    with pytest.raises(StopIteration):
        next(stream)


def test_a_closed_stream_gives_its_blocks_back_before_the_next_step() -> None:
    backend = Held()
    one = engine_over(backend)
    leaving = one.stream("x" * 70)
    backend.wait_entered(1)
    staying = one.stream("abc", SamplingParams(max_tokens=5))
    backend.allow(3)
    backend.wait_entered(4)
    leaving.close()
    held = one.stats().held_blocks
    backend.allow()  # it had begun
    backend.wait_entered(5)
    assert (held, one.stats().held_blocks) == (4, 1)
    backend.allow(9)
    assert staying.result().usage.completion_tokens == 5
    assert backend.steps == 6


def test_leaving_a_loop_over_a_stream_frees_its_blocks() -> None:
    one = engine()
    for _ in one.stream("abc"):
        break
    assert eventually(lambda: one.idle)


def test_a_stream_closes_with_its_block() -> None:
    one = engine()
    with one.stream("abc") as stream:
        next(stream)
    assert eventually(lambda: one.idle)


def test_a_dropped_stream_is_closed_wherever_its_last_reference_was() -> None:
    one = engine()
    stream: Any = one.stream("abc")
    holder: list[Any] = [stream]
    holder.append(holder)  # a cycle, which only the garbage collector finds
    del stream, holder
    gc.collect()
    assert eventually(lambda: one.idle)


def test_closing_a_stream_that_has_ended_keeps_its_reason() -> None:
    stream = engine(saying("yes")).stream(">")
    list(stream)
    stream.close()
    assert stream.completion.finish_reason == "stop"


def test_a_stream_that_waits_in_the_queue_can_be_closed() -> None:
    backend = Held(saying("yes"), max_step_rows=1)
    one = engine_over(backend)
    first, second = one.stream(">"), one.stream(">")
    backend.allow()
    assert next(first).text == "y"
    second.close()
    assert [delta.finish_reason for delta in second] == ["cancelled"]
    backend.allow(9)
    assert "".join(delta.text for delta in first) == "es"
    assert eventually(lambda: one.idle)
    assert backend.steps == 4


def test_two_streams_side_by_side_share_steps() -> None:
    backend = Held(saying("yes"))
    one = engine_over(backend)
    earlier = one.stream(">", SamplingParams(max_tokens=1))
    backend.wait_entered(1)
    first, second = one.stream(">"), one.stream(">>")
    backend.allow(9)
    assert first.result().text == second.result().text == "yes"
    assert earlier.result().text == "y"
    assert backend.steps == 5


def test_a_stream_closed_while_another_thread_waits_for_it_wakes_that_thread_at_once() -> None:
    backend = Held()
    stream = engine_over(backend).stream("abc")
    found: list[Delta] = []

    def close() -> None:
        backend.wait_entered(1)
        stream.close()

    in_threads(lambda: found.extend(stream), close)
    # The step is still running.
    assert [delta.finish_reason for delta in found] == ["cancelled"]
    backend.allow(9)


def signal_this_thread_in_a_step(backend: Held, number: int) -> threading.Thread:
    """Sends it when the first step has begun, and so when this thread is about to wait for that."""
    main = threading.get_ident()
    assert main == threading.main_thread().ident

    def send() -> None:
        backend.wait_entered(1)
        signal.pthread_kill(main, number)

    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    return sender


def test_a_signal_handler_may_close_the_stream_that_its_thread_waits_for() -> None:
    backend = Held()
    one = engine_over(backend)
    stream = one.stream("abc")
    before = signal.signal(signal.SIGUSR1, lambda _number, _frame: stream.close())
    sender = signal_this_thread_in_a_step(backend, signal.SIGUSR1)
    try:
        assert [delta.finish_reason for delta in stream] == ["cancelled"]
    finally:
        sender.join()
        signal.signal(signal.SIGUSR1, before)
        backend.allow(9)


def test_ctrl_c_leaves_a_generate_and_gives_its_blocks_back() -> None:
    backend = Held()
    one = engine_over(backend)
    sender = signal_this_thread_in_a_step(backend, signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        one.generate(["abc", "defg"])
    sender.join()
    backend.allow()
    assert eventually(lambda: one.idle)
    assert one.stats().held_blocks == 0


@pytest.mark.parametrize("patient", [False, True])
def test_a_waiter_is_called_once_or_told_that_it_need_not_wait(patient: bool) -> None:
    one = engine(saying("a text of some length"))
    calls: list[Stream] = []
    armed = 0
    for _ in range(30):
        stream = one.stream(">")
        while not stream.finished:
            before = len(calls)
            if stream.arm(partial(calls.append, stream), patient=patient):
                armed += 1
                while len(calls) == before:
                    time.sleep(0)
            stream.take()
    assert len(calls) == armed


def test_several_readers_of_one_stream_all_see_its_end() -> None:
    backend = Held(saying("a somewhat longer answer"))
    stream = engine_over(backend).stream(">")
    found: list[Delta] = []
    backend.allow(99)
    in_threads(
        *[lambda: found.extend(stream) for _ in range(3)], *[stream.result for _ in range(3)]
    )
    assert stream.completion.text == "a somewhat longer answer"


class Failing(NullBackend):
    def run(self, plan: StepPlan, want_logits: bool = False) -> StepResult:
        if self.steps == 2:
            raise FarthingError("this step was made to fail")
        return super().run(plan, want_logits)


def test_reading_a_text_that_failed_gives_what_was_made_and_then_raises() -> None:
    one = engine_over(Failing(saying("answer"), VOCABULARY))
    stream = one.stream(">")
    deltas: list[Delta] = []
    with pytest.raises(FarthingError, match="made to fail"):
        deltas.extend(stream)
    assert "".join(delta.text for delta in deltas) == "an" == stream.completion.text
    assert all(delta.finish_reason is None for delta in deltas)
    assert stream.completion.finish_reason == "error"
    with pytest.raises(FarthingError, match="made to fail"):
        stream.result()
    assert one.idle


def overflowing(prefix: NDArray[np.int32]) -> NDArray[np.float32]:
    """No numbers where one of the last three tokens is `~`, which is never written."""
    logits = rambling(prefix)
    logits[ord("~")] = -30
    return np.full_like(logits, np.nan) if ord("~") in prefix[-3:] else logits


@pytest.mark.parametrize("scored", [False, True])
@pytest.mark.parametrize("drafts", [False, True])
def test_who_gets_no_numbers_fails_alone(scored: bool, drafts: bool) -> None:
    """Neither those of the same step nor whom a guess would lead there, had it been right."""

    class Leading(Guesser):
        def guess(self, sequence: Sequence, most: int) -> list[int]:
            return [ord("~")] * most

    sampling = SamplingParams(max_tokens=20, prompt_logprobs=1 if scored else None, logprobs=1)
    texts = ["one", "two", "three"]
    with engine(overflowing) as one:
        expected = one.generate(texts, sampling)
    speculation = Speculation(Leading(), 3, always=True) if drafts else None
    with engine(overflowing, speculation=speculation) as one:
        streams = [one.stream(text, sampling) for text in (*texts, "x~", "~ and more", "x~y")]
        read = one.stream("~ab", SamplingParams(max_tokens=0, prompt_logprobs=0))
        for stream, wanted in zip(streams, expected, strict=False):
            found = stream.result()
            assert found.token_ids == wanted.token_ids
            assert found.logprobs == wanted.logprobs
            assert found.prompt_logprobs == wanted.prompt_logprobs
        for stream in (streams[3], streams[5], read, *([streams[4]] if scored else [])):
            with pytest.raises(FarthingError, match="logits are not numbers"):
                stream.result()
        assert (one.stats().counters.drafts.proposed > 0) == drafts
        assert one.idle


def test_a_model_whose_scores_are_no_numbers_is_one_clear_error() -> None:
    one = engine(lambda prefix: np.full(VOCABULARY, np.nan, np.float32))
    with pytest.raises(FarthingError, match="no token can be chosen"):
        one.generate("abc")
    assert one.idle
