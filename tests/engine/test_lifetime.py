from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any

import pytest

from engine.scripted import VOCABULARY, engine, engine_over, rambling, saying
from engine.threads import PATIENCE, Held, close_in_a_step, eventually, in_threads
from farthing.backends.null import NullBackend
from farthing.core import RequestError, SamplingParams

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FEW = SamplingParams(max_tokens=3)


def thread_of(one: Any) -> threading.Thread:
    return one._loop._thread


def test_an_engine_that_is_dropped_is_collected_and_its_thread_ends() -> None:
    backend = NullBackend(rambling, VOCABULARY)
    one = engine_over(backend)
    one.generate("abc", FEW)
    thread, alive = thread_of(one), weakref.ref(one)
    assert thread.is_alive()
    del one
    assert alive() is None
    thread.join(PATIENCE)
    assert not thread.is_alive()
    # It was not closed: whoever made the backend may go on with it.
    assert engine_over(backend).generate("abc", FEW).usage.completion_tokens == 3


def test_a_dropped_engine_lets_go_of_its_backend() -> None:
    backend = NullBackend(rambling, VOCABULARY)
    one = engine_over(backend)
    one.generate("abc", FEW)
    freed = weakref.ref(backend)
    del one, backend
    assert freed() is None


def test_an_engine_in_a_cycle_is_collected_in_whichever_thread() -> None:
    one: Any = engine()
    stream = one.stream("abc")
    one.tokenizer.itself = one
    thread, alive = thread_of(one), weakref.ref(one)
    del one, stream
    assert eventually(lambda: (gc.collect(), alive() is None)[1])
    thread.join(PATIENCE)
    assert not thread.is_alive()


def test_a_stream_keeps_its_engine_until_it_has_been_read() -> None:
    alive = weakref.WeakSet[Any]()

    def begin() -> Any:
        one = engine(saying("yes"))
        alive.add(one)
        return one.stream(">")

    stream = begin()
    assert len(alive) == 1
    assert "".join(delta.text for delta in stream) == "yes"
    assert len(alive) == 0
    assert stream.completion.text == "yes"


def test_dropping_an_engine_waits_for_no_step() -> None:
    backend = Held()
    one = engine_over(backend)
    stream = one.stream("abc")
    backend.wait_entered(1)
    thread = thread_of(one)
    del one, stream  # would not return
    assert thread.is_alive()
    backend.allow()
    thread.join(PATIENCE)
    assert not thread.is_alive()


EXIT = """
import sys
sys.path[:0] = {path!r}
from threading import Thread
from engine.scripted import engine
from farthing.core import SamplingParams
one = engine({script})
streams = [one.stream("abc") for _ in range(3)]
short = one.stream("abc", SamplingParams(max_tokens=9))
next(streams[0])
{end}
"""


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("", 0),
        ("sys.exit(3)", 3),
        ("raise RuntimeError('of the script')", 1),
        ("Thread(target=list, args=[short]).start()", 0),
        ("Thread(target=list, args=streams[:1], daemon=True).start()", 0),
        ("one.close()", 0),
        ("one.close(drain_seconds=0.01)", 0),
    ],
    ids=repr,
)
@pytest.mark.parametrize("script", ["", "lambda prefix: __import__('time').sleep(0.02) or 97"])
def test_the_interpreter_ends_while_texts_run(script: str, end: str, code: int) -> None:
    source = EXIT.format(path=sys.path, script=script, end=end)
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == code, done.stderr
    assert ("of the script" in done.stderr) if code == 1 else not done.stderr


NATIVE_EXIT = """
import os, sys
from farthing import Engine
one = Engine.load({path!r}, threads=2, context_length=512, sequences=2)
stream = one.stream("Once upon a time")
next(stream)
child = os.fork()
if child:
    assert os.waitpid(child, 0)[1] == 0
else:
    os.close(2)  # that the core's memory is not given back there is as it must be
{end}
"""


@pytest.mark.parametrize("end", ["", "next(iter(one.submit('a', n=2)))", "del one", "del stream"])
def test_the_interpreter_ends_while_the_core_computes_and_in_a_fork_too(
    end: str, smollm2_path: Path
) -> None:
    end = f"if child:\n    {end or 'pass'}"
    source = NATIVE_EXIT.format(path=str(smollm2_path), end=end)
    done = subprocess.run(
        [sys.executable, "-c", source],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert (done.returncode, done.stderr) == (0, "")


def in_child(work: Callable[[], object]) -> int:
    """What `work` gives in a forked process, as its exit code."""
    child = os.fork()
    if child == 0:
        code = 99
        try:
            code = int(bool(work()))
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def is_refused(work: Callable[[], object]) -> bool:
    try:
        work()
    except RequestError as error:
        return "load the model in the child" in str(error)
    return False


def test_a_forked_child_is_told_to_load_for_itself() -> None:
    backend = Held()
    one = engine_over(backend)
    stream = one.stream("abc", FEW)
    backend.wait_entered(1)
    for work in (
        lambda: one.generate("hello"),
        lambda: one.stream("hello"),
        lambda: one.stream(["hello"]),
        lambda: one.submit("hello", n=2),
        one.stats,
        stream.result,
        lambda: next(stream),
    ):
        assert in_child(lambda work=work: is_refused(work)) == 1
    assert in_child(lambda: one.close() is None) == 1
    backend.allow(9)
    assert stream.result().usage.completion_tokens == 3


def test_closing_drains_and_then_cancels() -> None:
    backend = Held(saying("yes"), max_step_rows=1)
    one = engine_over(backend)
    first, second = one.stream(">"), one.stream(">", SamplingParams(ignore_eos=True))
    backend.wait_entered(1)
    closing = threading.Thread(target=one.close, args=(PATIENCE,))
    closing.start()
    assert eventually(lambda: one._loop._entrance._refusal)
    with pytest.raises(RequestError, match="the engine is closed"):
        one.stream(">")
    backend.allow(6)
    assert first.result().text == "yes"
    assert closing.is_alive()
    backend.wait_entered(7)
    close_in_a_step(one, backend)  # no longer so long
    closing.join(PATIENCE)
    assert not closing.is_alive()
    assert second.result().finish_reason == "cancelled"
    assert second.completion.text == "yes"


def test_an_engine_may_be_closed_from_several_threads_and_again() -> None:
    one = engine()
    streams = [one.stream("abc") for _ in range(5)]
    next(streams[0])
    in_threads(*[one.close] * 4)
    one.close()
    assert {stream.result().finish_reason for stream in streams} == {"cancelled"}
    assert list(streams[1])[-1].finish_reason == "cancelled"
    assert not thread_of(one).is_alive() or eventually(lambda: not thread_of(one).is_alive())


def test_closing_an_engine_wakes_a_generate_that_waits_for_room() -> None:
    backend = Held()
    one = engine_over(backend, queue_tokens=10)

    def work() -> None:
        with pytest.raises(RequestError, match="the engine is closed"):
            one.generate(["x" * 30, "y" * 30])

    def close() -> None:
        backend.wait_entered(1)
        backend.allow(1)
        one.close()

    in_threads(work, close)
