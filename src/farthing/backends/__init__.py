"""Backends: what runs a Program. The engine knows them by this protocol alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

    from farthing.core import StepPlan, StepResult


class Backend(Protocol):
    """Runs steps. A backend knows blocks and positions, and no request.

    `total_blocks` blocks of cache may appear in block tables; a step may hold at most
    `max_step_tokens` tokens and `max_step_rows` wanted rows. Where `samples` is false, `run` leaves
    the tokens to the caller and gives logits always; else it gives tokens as the plan's sampling
    says, -1 where none can be chosen, and logits where they are asked for. A hidden state has
    `hidden_size` numbers; 0 where the backend gives none.
    """

    vocabulary_size: int
    context_length: int
    total_blocks: int
    max_step_tokens: int
    max_step_rows: int
    hidden_size: int
    samples: bool

    @property
    def identity(self) -> Mapping[str, str]:
        """What the bits of a block of cache depend on, by name."""
        ...

    def cache_bytes(self) -> NDArray[np.uint8]:
        """The block pool itself, (total_blocks, bytes of a block), writable."""
        ...

    def run(self, plan: StepPlan, want_logits: bool = False) -> StepResult:
        """Computes one step and moves the cache forward."""
        ...

    def close(self) -> None:
        """Gives back memory and threads; the backend cannot run afterwards."""
        ...
