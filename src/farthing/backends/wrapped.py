"""A backend over another one, for whoever watches what its steps take or give."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

    from farthing.backends import Backend
    from farthing.core import StepPlan, StepResult


class WrappedBackend:
    """Is to an engine what `inner` is, and owns it. A subclass says what happens around `run`."""

    def __init__(self, inner: Backend) -> None:
        self.vocabulary_size = inner.vocabulary_size
        self.context_length = inner.context_length
        self.total_blocks = inner.total_blocks
        self.max_step_tokens = inner.max_step_tokens
        self.max_step_rows = inner.max_step_rows
        self.hidden_size = inner.hidden_size
        self.samples = inner.samples
        self._inner = inner

    @property
    def identity(self) -> Mapping[str, str]:
        """The inner backend's."""
        return self._inner.identity

    def cache_bytes(self) -> NDArray[np.uint8]:
        """The inner backend's."""
        return self._inner.cache_bytes()

    def run(self, plan: StepPlan, want_logits: bool = False) -> StepResult:
        """A step of the inner backend."""
        return self._inner.run(plan, want_logits)

    def close(self) -> None:
        """Closes the inner backend."""
        self._inner.close()
