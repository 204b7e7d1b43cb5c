"""What backends do to whole blocks of cache, whatever is in them."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray


def copy_blocks(pool: NDArray[Any], copies: NDArray[Any]) -> None:
    """Copies whole blocks of `pool` (blocks, ...) as `StepPlan.copies` says, one after another.

    Raises `ValueError` for a block that is none of the pool's.
    """
    if copies.min(initial=0) < 0 or copies.max(initial=0) >= len(pool):
        raise ValueError(f"the pool has {len(pool)} blocks, and the copies name others")
    for source, destination in copies.tolist():
        pool[destination] = pool[source]


def content_digest(description: str, arrays: Iterable[NDArray[Any]]) -> str:
    """A digest of a model: what is computed, as text, and the bytes it is computed with."""
    digest = blake2b(description.encode(), digest_size=16)
    for array in arrays:
        digest.update(array.data)
    return digest.hexdigest()
