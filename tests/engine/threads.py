"""Threads in tests: a backend whose steps wait for permission, and conditions that come true."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from engine.scripted import VOCABULARY, rambling
from farthing.backends.null import NullBackend

if TYPE_CHECKING:
    from collections.abc import Callable

    from farthing.backends.null import Script
    from farthing.core import StepPlan, StepResult
    from farthing.engine.engine import Engine

PATIENCE = 60
"""Seconds after which a test has failed: far more than anything here takes."""


class Held(NullBackend):
    """Runs a step only when `allow` lets it; `entered` counts those begun, `steps` those done."""

    def __init__(self, script: Script = rambling, **sizes: Any) -> None:
        super().__init__(script, VOCABULARY, **sizes)
        self.entered = 0
        self.allowed = 0
        self._changed = threading.Condition()

    def allow(self, steps: int = 1) -> None:
        """Lets so many more steps run, and returns at once."""
        with self._changed:
            self.allowed += steps
            self._changed.notify_all()

    def wait_entered(self, step: int) -> None:
        """Returns when the step of that number, from 1, has begun."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.entered >= step, PATIENCE)

    def run(self, plan: StepPlan, want_logits: bool = False) -> StepResult:
        with self._changed:
            self.entered += 1
            self._changed.notify_all()
            mine = self.entered
            assert self._changed.wait_for(lambda: self.allowed >= mine, PATIENCE)
        return super().run(plan, want_logits)


def eventually(condition: Callable[[], object]) -> bool:
    """Whether it comes true within a time that nothing here should take."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.001)
    return True


def close_in_a_step(one: Engine, backend: Held) -> None:
    """Closes an engine, without any patience, in the middle of the step that is held."""
    closing = threading.Thread(target=one.close, daemon=True)
    closing.start()
    assert eventually(lambda: one._loop._until <= time.monotonic())
    backend.allow()
    closing.join(PATIENCE)
    assert not closing.is_alive()


def in_threads(*work: Callable[[], object]) -> None:
    """Runs each in a thread of its own, and raises what one of them raised."""
    errors: list[BaseException] = []

    def guarded(part: Callable[[], object]) -> None:
        try:
            part()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(part,), daemon=True) for part in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    if errors:
        raise errors[0]
