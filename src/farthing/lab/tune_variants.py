"""The engines among which is chosen: a model, a kind of cache and a number of threads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from farthing.core import BLOCK_TOKENS, RequestError
from farthing.lab.tune_points import Step, choose_steps
from farthing.plan.grid import largest
from farthing.plan.memory import DRAFT_ROWS, plan_memory, require_room
from farthing.plan.traffic import traffic_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from farthing.core import ActivationMode, KVDtype
    from farthing.lab.tune_points import Load
    from farthing.models.load import Model
    from farthing.plan.memory import MemoryPlan

MOST_VARIANTS = 16
"""Each takes its share of the time."""


@dataclass(frozen=True)
class Variant:
    """`label` is what a person called the model, `name` tells it from the other variants."""

    name: str
    label: str
    model: Model
    kv_dtype: KVDtype
    threads: int
    activations: ActivationMode | None

    def served(self, load: Load, slots: int, cache_tokens: int | None = None) -> MemoryPlan:
        """What a server of so many slots allocates whose cache holds what the load needs."""
        tokens = needed_tokens(load, slots) if cache_tokens is None else cache_tokens
        return plan_memory(
            self.model,
            cache_tokens=tokens,
            slots=slots,
            kv_dtype=self.kv_dtype,
            activations=self.activations,
            threads=self.threads,
            draft_rows=DRAFT_ROWS,
        )

    def most_slots(self, load: Load, room: int) -> int:
        """For how many texts of the load at once there is memory, as many as there are users."""
        return largest(lambda slots: self.served(load, slots).needed_bytes <= room, load.users)

    def cache_tokens(self, load: Load, slots: int, room: int) -> int:
        """What the load needs, or one whole context where that is more and there is memory."""
        needed = needed_tokens(load, slots)
        wanted = max(needed, self.model.config.context_length)
        return wanted if self.served(load, slots, wanted).needed_bytes <= room else needed

    def measured(self, load: Load, most_batch: int) -> tuple[MemoryPlan, tuple[Step, ...]]:
        """What is measured, with up to so many texts at once, and what that allocates."""
        steps = choose_steps(load, most_batch, self.served(load, 1).step_tokens)
        plan = plan_memory(
            self.model,
            context_length=max(load.longest, BLOCK_TOKENS),
            cache_tokens=max(step.blocks for step in steps) * BLOCK_TOKENS,
            slots=max(1, most_batch),
            kv_dtype=self.kv_dtype,
            activations=self.activations,
            threads=self.threads,
            step_rows=most_batch + 1,
        )
        return plan, steps

    def fitted(
        self, load: Load, sizes: Sequence[int], room: int
    ) -> tuple[MemoryPlan, tuple[Step, ...]]:
        """`measured` with the largest of `sizes` that there is memory for.

        Raises `DoesNotFitError` where not even the smallest has it.
        """
        for size in sorted(sizes, reverse=True):
            plan, steps = self.measured(load, size)
            if plan.needed_bytes <= room:
                return plan, steps
        require_room(plan, room)
        raise AssertionError("a plan that needs more than the room is refused")


def needed_tokens(load: Load, slots: int) -> int:
    """Of cache, for so many texts of the load at once, and the block more for each that the
    scheduler leaves free for those that grow.
    """
    traffic = traffic_of(load.lengths, "the load")
    return traffic.tokens(slots) + slots * BLOCK_TOKENS


def make_variants(
    models: Sequence[tuple[str, Model]],
    kv_dtypes: Sequence[KVDtype],
    threads: Sequence[int],
    activations: ActivationMode | None,
) -> tuple[Variant, ...]:
    """Every combination, named by what differs. Raises `RequestError` for too many."""
    found = []
    for label, model in models:
        for kv_dtype in kv_dtypes:
            for count in threads:
                parts = [f"{kv_dtype.value} cache", f"{count} thread{'s' if count > 1 else ''}"]
                name = ", ".join([label, *parts] if len(models) > 1 else parts)
                found.append(Variant(name, label, model, kv_dtype, count, activations))
    if len(found) > MOST_VARIANTS:
        raise RequestError(
            f"{len(found)} engines would be measured, and {MOST_VARIANTS} at most can be: give "
            "fewer --candidates, kinds of --kv-dtype or numbers of --threads"
        )
    return tuple(found)


def grouped(needed: Sequence[tuple[str, int]], room: int) -> list[list[str]]:
    """Names in groups, as many in each as `room` bytes hold at once, in order."""
    groups: list[list[str]] = []
    left = 0
    for name, size in needed:
        if not groups or size > left:
            groups.append([])
            left = room
        groups[-1].append(name)
        left -= size
    return groups


def require_context(load: Load, most: int) -> None:
    """Raises `RequestError` where a text of the load is longer than the context of `most`."""
    if load.longest > most:
        raise RequestError(
            f"the longest request has {load.longest:,} tokens of prompt and answer, and the "
            f"model's context is {most:,}: it would be refused, give shorter ones"
        )
