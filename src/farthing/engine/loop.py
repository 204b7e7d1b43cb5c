"""The engine's own thread: one step after another for all answers, and sleep when there are none.

It alone touches the scheduler and the backend. Others post what they want to its mailbox, a
`SimpleQueue`, whose `put` never waits, so that a signal handler or a destructor may post too; the
mail is read before each step. The thread does not know its Engine: when the last reference to that
is dropped, or the interpreter ends, it is told so by mail, and ends.
"""

from __future__ import annotations

import atexit
import logging
import math
import os
import threading
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from heapq import heapify, heappop, heappush
from itertools import count
from queue import Empty, SimpleQueue
from time import monotonic, perf_counter
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakSet

from farthing.core import DoesNotFitError, FarthingError, RequestError
from farthing.engine.answer import wake
from farthing.engine.charge import charge
from farthing.engine.cost import StepShape
from farthing.engine.entrance import Entrance
from farthing.engine.host_time import Decoded
from farthing.engine.probe import GRACE_SECONDS, Probe
from farthing.engine.sampler import sample

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable, Iterable, Iterator

    from farthing.backends import Backend
    from farthing.core import StepPlan, StepResult
    from farthing.engine.answer import Answer, Waiter
    from farthing.engine.scheduler import Scheduler
    from farthing.engine.sequence import FinishReason, Sequence

T = TypeVar("T")

_log = logging.getLogger(__name__)

_CLOSED = "the engine is closed: load the model again"

_LONGEST_STEP = 30.0
"""Seconds that the end of the interpreter waits for a step that is running."""

_LOOPS: WeakSet[Loop] = WeakSet()


@atexit.register
def _leave() -> None:
    """No step may run when the interpreter takes itself apart."""
    loops = list(_LOOPS)
    for loop in loops:
        loop.drop()
    for loop in loops:
        loop.let_go(_LONGEST_STEP)


class Loop:
    """Runs the steps of one engine in a daemon thread of its own.

    `state` is held by the thread except while a step is computed or it sleeps: whoever holds it may
    read the scheduler. With FARTHING_CHECK=1 in the environment, all block tables are checked after
    every step. `native_seconds` were spent in `steps` steps of the backend.
    """

    def __init__(self, backend: Backend, scheduler: Scheduler, queue_tokens: int | None) -> None:
        """Raises `DoesNotFitError` when the system refuses to start a thread."""
        self.scheduler = scheduler
        self.state = threading.RLock()
        self.native_seconds = 0.0
        self.steps = 0
        self._backend: Backend | None = backend
        self._checks = os.environ.get("FARTHING_CHECK") == "1"
        self._mailbox: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._answers: dict[Sequence, Answer] = {}
        self._deadlines: list[tuple[float, int, Answer]] = []
        self._serial = count()
        self._waiters: list[Waiter] = []
        self._entrance = Entrance(queue_tokens, self._accept, self._seconds_for)
        self._ended = 0
        self._until = math.inf
        self._failure: FarthingError | None = None
        self._process = os.getpid()
        # When the last step ended, and what it took: in the backend, to guess for it, to plan it.
        self._now = self._step_seconds = self._guess_seconds = self._plan_seconds = 0.0
        self._probes: list[Probe] = []
        if scheduler.speculation is not None:
            scheduler.speculation.aside = self._aside
            own = Probe(backend, scheduler.pool, scheduler.cost)
            self._probes = [own, *scheduler.speculation.probes()]
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="farthing-engine", daemon=True)
        _LOOPS.add(self)
        try:
            self._thread.start()
        except RuntimeError as error:
            raise DoesNotFitError(
                f"the system refuses to start a thread ({error}): raise the limit of processes "
                "(ulimit -u), or end others"
            ) from error

    @property
    def unfinished(self) -> int:
        """How many answers are accepted and have not ended."""
        ended = self._ended  # first: a later number of accepted ones cannot be too small
        return self._entrance.accepted - ended

    @property
    def queued_tokens(self) -> int:
        """The tokens of accepted prompts whose answers have not begun."""
        return self._entrance.queued_tokens

    def refuse_fork(self) -> None:
        """Raises `RequestError` in a process where the thread is not."""
        if os.getpid() != self._process:
            raise RequestError("the engine was loaded before a fork: load the model in the child")

    def submit(self, answers: list[Answer]) -> None:
        """Accepts all answers, which then join the same step, or none.

        Raises `BusyError` while too many tokens wait, `RequestError` when the engine is closed.
        """
        self.refuse_fork()
        self._entrance.admit(answers)

    def feed(self, answers: deque[Answer], *, wait: bool) -> None:
        """Accepts, and takes out, as many answers from the front as there is room for.

        Where `wait`, one at least. Raises `RequestError` when the engine is closed.
        """
        self.refuse_fork()
        self._entrance.feed(answers, wait=wait)

    def between_steps(self, work: Callable[[Scheduler, Backend], T]) -> T:
        """What `work` gives, done in the thread while no step runs, or raises what it raises.

        Raises `RequestError` when the engine is closed.
        """
        self.refuse_fork()
        results: list[T] = []
        errors: list[BaseException] = []
        done = threading.Event()

        def do() -> None:
            try:
                results.append(work(self.scheduler, self._open_backend()))
            except BaseException as error:
                errors.append(error)
            done.set()

        self._entrance.while_open(lambda: self._mailbox.put(do))
        done.wait()
        if errors:
            raise errors[0]
        return results[0]

    def cancel(self, answer: Answer) -> None:
        """Ends an answer before the next step. Waits for nothing."""
        if answer.accepted:
            self._mailbox.put(partial(self._end, answer, "cancelled"))

    def close(self, drain_seconds: float = 0.0) -> None:
        """Refuses newcomers, gives the others `drain_seconds`, and returns when all have ended.

        A later call can shorten that time. Does nothing in a forked process.
        """
        if os.getpid() != self._process:
            return
        self._entrance.shut(_CLOSED)
        with self.state:
            self._until = min(self._until, monotonic() + drain_seconds)
        self._mailbox.put(_nothing)
        if self._await_end(None):
            with self.state:
                backend, self._backend = self._backend, None
                if backend is not None:
                    backend.close()
                if self.scheduler.speculation is not None:
                    self.scheduler.speculation.close()

    def drop(self) -> None:
        """Ends the thread, and lets go of the backend without closing it: others may use it.

        For when nobody can submit any more. Waits for no step, and takes no lock: a garbage
        collection, which can run in any thread at any time, may call it.
        """
        if os.getpid() == self._process:
            self._until = -math.inf
            self._mailbox.put(_nothing)
            if not self.unfinished:  # no step runs, so memory is back at once
                self.let_go(_LONGEST_STEP)

    def let_go(self, seconds: float) -> None:
        """Forgets the backend when the thread has ended, which has that long."""
        if self._await_end(seconds):
            self._backend = None
            self.scheduler.speculation = None

    def _accept(self, answers: list[Answer]) -> None:
        for answer in answers:
            answer.native_before = answer.native_after = self.native_seconds
        self._mailbox.put(partial(self._take_in, answers))

    def _seconds_for(self, tokens: int) -> float:
        """About how long so many tokens of prompts take."""
        size = min(tokens, self.scheduler.limits.step_tokens)
        step = self.scheduler.cost.seconds(StepShape(0, 0, 0, 0).joined(0, size, 1))
        return step * tokens / size

    def _await_end(self, seconds: float | None) -> bool:
        """Whether the thread has ended by then; it does not wait for itself, nor in a fork."""
        if os.getpid() != self._process or threading.get_ident() == self._thread.ident:
            return False
        return self._over.wait(seconds)

    def _open_backend(self) -> Backend:
        if self._backend is None:
            raise RuntimeError("the backend is gone, and the thread goes on")
        return self._backend

    # What follows runs in the thread.

    def _run(self) -> None:
        try:
            while self._turn():
                pass
        except BaseException as error:
            self._break_down(error)
        finally:
            self._over.set()

    def _turn(self) -> bool:
        """Reads the mail and runs a step; False when the thread is to end."""
        asleep = not self._answers and self._until == math.inf
        mail = self._awaited() if asleep else _nothing
        with self.state:
            mail()
            self._read_mail()
            goes_on = self._expire()
            plan = self._scheduled() if self._answers else None
            if plan is None and self._answers:
                raise RuntimeError("texts wait, and no step is planned")
        self._wake()
        if plan is not None:
            result = self._computed(plan)
            with self.state:
                if isinstance(result, FarthingError):
                    self._fail(result)
                else:
                    self._commit(result)
                if self._checks:
                    self.scheduler.check()
            self._wake()
        return goes_on

    def _awaited(self) -> Callable[[], None]:
        """The next mail. While none comes, what guesses cost is measured, where that is to be."""
        seconds = GRACE_SECONDS
        while self._probes and self._mailbox.empty():
            try:
                return self._mailbox.get(timeout=seconds)
            except Empty:
                self._run_probe(self._probes[0])
                seconds = 0.0
        return self._mailbox.get()

    def _run_probe(self, probe: Probe) -> None:
        """One step of it, for which nobody waits."""
        with self.state:
            plan = None if probe.done else probe.next_plan()
        if plan is None:
            self._probes.remove(probe)
            return
        try:
            seconds = probe.run(plan)
        except Exception as error:
            _log.error("what guesses cost cannot be measured (%s)", error)
            seconds = None
        with self.state:
            probe.take_in(plan, seconds)

    def _scheduled(self) -> StepPlan | None:
        """The next step; what guessing tokens for it takes is time of a backend's, too."""
        speculation = self.scheduler.speculation
        before = 0.0 if speculation is None else speculation.spent
        started = perf_counter()
        plan = self.scheduler.schedule()
        self._plan_seconds = perf_counter() - started
        if speculation is not None:
            self._guess_seconds = speculation.spent - before
            self._plan_seconds -= self._guess_seconds
            self.native_seconds += self._guess_seconds
        return plan

    @contextmanager
    def _aside(self) -> Iterator[None]:
        """While tokens are guessed, which takes as long as a step may, others may read the state:
        nothing of the next step is taken yet.
        """
        self.state.release()
        try:
            yield
        finally:
            self.state.acquire()

    def _read_mail(self) -> None:
        while not self._mailbox.empty():
            self._mailbox.get_nowait()()

    def _expire(self) -> bool:
        """Ends what is past its time; False when that is the engine's."""
        if self._until < math.inf:
            self._read_mail()  # the last: nothing is accepted any more
            if not self._answers or monotonic() >= self._until:
                for answer in list(self._answers.values()):
                    self._end(answer, "cancelled")
                return False
        while self._deadlines and monotonic() >= self._deadlines[0][0]:
            self._end(heappop(self._deadlines)[2], "timeout")
        return True

    def _computed(self, plan: StepPlan) -> StepResult | FarthingError:
        """Runs a step without the lock; what it fails with is returned."""
        backend = self._open_backend()
        started = perf_counter()
        for sequence, _ in self.scheduler.planned:
            if sequence.began is None:
                sequence.began = started
        try:
            result = backend.run(plan, want_logits=self.scheduler.wants_logits)
            self._now = perf_counter()
            self._step_seconds = self._now - started
            self.native_seconds += self._step_seconds
            self.steps += 1
            if not backend.samples and plan.sampling is not None and result.logits is not None:
                sampled = sample(result.logits, plan.sampling)
                result = replace(sampled, hidden=result.hidden, logits=result.logits)
            if self.scheduler.wants_logits:
                result = self.scheduler.decided(plan, result)
        except Exception as error:
            return _explained("the step failed", error)
        return result

    def _commit(self, result: StepResult) -> None:
        started = perf_counter()
        scheduler, cost = self.scheduler, self.scheduler.cost
        shape, texts, drafts = scheduler.shape, len(scheduler.planned), scheduler.drafted
        cost.observe(shape, self._step_seconds)
        charge(scheduler.planned, cost, self._step_seconds)
        for sequence in scheduler.commit(result):
            answer = self._answers[sequence]
            try:
                answer.take(self.scheduler, self._now, self.native_seconds)
            except Exception as error:
                self._end(answer, "error", _explained("a token cannot be shown", error))
                continue
            if answer.reason is not None:
                self._forget(answer)
            elif answer.queued_tokens:
                self._leave_queue(answer)
            answer.show(self._waiters)
        speculation = scheduler.speculation
        if speculation is not None and shape.tokens == shape.rows:
            host = self._plan_seconds + perf_counter() - started
            counts = scheduler.counters.drafts
            if not speculation.watches:
                speculation.pass_by(self._step_seconds + self._guess_seconds + host, counts)
                return
            gain = len(scheduler.kept)
            step = Decoded(
                shape, texts, drafts, gain, self._step_seconds, self._guess_seconds, host
            )
            speculation.account(step, cost, counts)

    def _fail(self, error: FarthingError) -> None:
        """Ends the answers of the plan made last."""
        for sequence in self.scheduler.fail(error):
            self._end(self._answers[sequence], "error", error)

    def _take_in(self, answers: Iterable[Answer]) -> None:
        for answer in answers:
            if answer.reason is not None:  # it was closed before this mail was sent
                continue
            if self._failure is not None:
                self._end(answer, "error", self._failure)
                continue
            before, answer.fork_of = answer.fork_of, None
            try:
                fork_of = None if before is None else before.sequence
                sequence = self.scheduler.submit(answer.request, fork_of, answer.matcher)
            except Exception as error:
                self._end(answer, "error", _explained("the request was not taken", error))
                continue
            answer.sequence = sequence
            self._answers[sequence] = answer
            if answer.deadline < math.inf:
                heappush(self._deadlines, (answer.deadline, next(self._serial), answer))

    def _end(
        self, answer: Answer, reason: FinishReason, error: FarthingError | None = None
    ) -> None:
        """Ends an answer between two steps, unless it has ended."""
        if answer.reason is None:
            if answer.sequence is not None:
                self.scheduler.end(answer.sequence, reason)
            answer.finish(reason, error)
            self._forget(answer)
            answer.show(self._waiters)

    def _forget(self, answer: Answer) -> None:
        """An answer has ended: before anybody can see that, it counts no more."""
        if answer.sequence is not None:
            del self._answers[answer.sequence]
        if answer.queued_tokens:
            self._leave_queue(answer)
        if len(self._deadlines) > 2 * len(self._answers) + 64:
            self._deadlines = [entry for entry in self._deadlines if entry[2].reason is None]
            heapify(self._deadlines)
        self._ended += 1

    def _leave_queue(self, answer: Answer) -> None:
        self._entrance.leave(answer.queued_tokens)
        answer.queued_tokens = 0

    def _wake(self) -> None:
        if self._waiters:
            waiters, self._waiters = self._waiters, []
            wake(waiters)

    def _break_down(self, error: BaseException) -> None:
        """After a fault of the engine's own, nobody waits for ever."""
        failure = FarthingError(
            f"the engine has broken down ({type(error).__name__}: {error}): load the model again, "
            "and please report this fault of farthing"
        )
        failure.__cause__ = error
        self._failure = failure
        self._entrance.shut(str(failure))
        with self.state:
            for answer in list(self._answers.values()):
                if answer.reason is None:
                    answer.finish("error", failure)
                self._forget(answer)
                answer.show(self._waiters)
            self._read_mail()
        self._wake()


def _nothing() -> None:
    pass


def _explained(what: str, error: BaseException) -> FarthingError:
    """The error itself where a person can act on it, else one that says what it was."""
    if isinstance(error, FarthingError):
        return error
    failure = FarthingError(
        f"{what} ({type(error).__name__}: {error}), by a fault of farthing or its backend: please "
        "report it; the engine goes on, and the request can be made again"
    )
    failure.__cause__ = error
    return failure
