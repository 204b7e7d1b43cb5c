"""Peak memory of the torch oracle's steps above the weights, attributed to what the bytes hold.

The oracle keeps everything as a plain tensor, so what an engine hides can be seen there: scores of
every pair of tokens, logits of every row, the cache.
"""

from __future__ import annotations

import weakref
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from farthing.backends.torch import TorchBackend
from farthing.core import BLOCK_TOKENS, KVDtype, StepPlan
from farthing.engine.kv import blocks_for

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from farthing.models.load import Model

KEYS, SCORES, LOGITS, OTHER = "keys and values", "scores", "logits", "other activations"


@dataclass(frozen=True)
class Peak:
    """The largest sum of bytes alive at once, what it was made of, and the most of each kind.

    Kinds have their most at different times, so `most` adds up to more than `bytes`.
    """

    bytes: int
    parts: Mapping[str, int]
    most: Mapping[str, int]


class PeakMemory(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While entered, follows every tensor that an operation makes, until its memory is freed.

    `kind_of` names what a tensor holds by its shape.
    """

    def __init__(self, kind_of: Callable[[tuple[int, ...]], str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._kind_of = kind_of
        self._alive: Counter[str] = Counter()
        self._most: Counter[str] = Counter()
        self._known: set[int] = set()
        self._parts: dict[str, int] = {}

    @property
    def peak(self) -> Peak:
        """Since it was made."""
        return Peak(sum(self._parts.values()), self._parts, dict(self._most))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs the operation, then counts what it has made."""
        given = {_address(each) for each in tree_iter((args, kwargs)) if _is_tensor(each)}
        result = func(*args, **(kwargs or {}))
        for each in tree_iter(result):
            if _is_tensor(each) and _address(each) not in given:
                self._add(each)
        return result

    def _add(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        address, size = storage.data_ptr(), storage.nbytes()
        if address in self._known or size == 0:
            return
        kind = self._kind_of(tuple(tensor.shape))
        self._known.add(address)
        self._alive[kind] += size
        weakref.finalize(storage, self._free, address, kind, size)
        self._most[kind] = max(self._most[kind], self._alive[kind])
        if self._alive.total() > sum(self._parts.values()):
            self._parts = dict(self._alive)

    def _free(self, address: int, kind: str, size: int) -> None:
        self._known.discard(address)
        self._alive[kind] -= size


def generation_peak(model: Model, prompt: Sequence[int], tokens: int, *, recompute: bool) -> Peak:
    """Of a text that grows to `tokens` tokens, in fp32: of its last step, which takes the most.

    With the cache, a step feeds one token and wants its logits. Recomputing feeds all of them and
    takes the logits of every row, as a plain implementation does. Keys and values are counted as
    the step reads them, contiguous and once.
    """
    ids = np.array([prompt[i % len(prompt)] for i in range(tokens)], np.int32)
    blocks = blocks_for(tokens)
    backend = TorchBackend(model, KVDtype.FP32, recompute=recompute, total_blocks=blocks)
    table = np.arange(blocks, dtype=np.int32)[None, :]
    if recompute:
        last = _plan(ids, 0, tokens, table, np.arange(tokens, dtype=np.int32))
    else:
        backend.run(_plan(ids, 0, tokens - 1, table, np.empty(0, np.int32)))
        last = _plan(ids, tokens - 1, tokens, table, np.zeros(1, np.int32))
    heads = {op.attributes["heads"] for op in model.program.ops if op.kind == "attend"}
    widths = {layer.kv_heads * layer.head_dim for layer in model.program.cache}
    # As a sequence has them, and as they come out of their blocks.
    kept: set[tuple[int, ...]] = {(tokens, width) for width in widths}
    kept |= {(blocks, BLOCK_TOKENS, width) for width in widths}
    vocabulary = model.program.vocabulary_size

    def kind_of(shape: tuple[int, ...]) -> str:
        if shape[-1:] == (vocabulary,):
            return LOGITS
        if len(shape) == 3 and shape[0] in heads and shape[2] == tokens:
            return SCORES
        if shape in kept:
            return KEYS
        return OTHER

    memory = PeakMemory(kind_of)
    with memory:
        backend.run(last)
    backend.close()
    return memory.peak


def _plan(
    ids: NDArray[np.int32],
    first: int,
    end: int,
    table: NDArray[np.int32],
    rows: NDArray[np.int32],
) -> StepPlan:
    """Feeds `ids[first:end]` of one sequence."""
    positions = np.arange(first, end, dtype=np.int32)
    return StepPlan(ids[first:end], positions, np.array([0, end - first], np.int32), table, rows)


def _is_tensor(value: object) -> bool:
    return isinstance(value, torch.Tensor)


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
