"""The oracle: every operation as one plain float32 function, and a backend that runs them.

The functions named like operations are the definition of what those mean; all of them are
differentiable in their tensors. Nothing here is fast.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from farthing.backends.blocks import content_digest, copy_blocks
from farthing.backends.logits import logits_only
from farthing.core import BLOCK_TOKENS, KVDtype, RequestError, StepPlan, StepResult
from farthing.models.load import Model
from farthing.models.program import Op
from farthing.quant.formats import decode

_CACHE_DTYPES = {
    KVDtype.FP32: torch.float32,
    KVDtype.FP16: torch.float16,
    KVDtype.BF16: torch.bfloat16,
}


def embed(token_ids: Tensor, table: Tensor) -> Tensor:
    """Rows `token_ids` (T) of `table` (vocabulary, width)."""
    return table[token_ids]


def scale(x: Tensor, factor: float) -> Tensor:
    """Every number times `factor`."""
    return x * factor


def rmsnorm(x: Tensor, gain: Tensor, epsilon: float) -> Tensor:
    """Root mean square normalisation, then the gain, over each run of len(gain) dimensions.

    That is, x / sqrt(mean(x^2) + epsilon) * gain for x (T, width).

    Zhang and Sennrich 2019, "Root Mean Square Layer Normalization".
    """
    runs = x.reshape(len(x), x.shape[1] // len(gain), len(gain))
    normed: Tensor = runs * torch.rsqrt(runs.pow(2).mean(-1, keepdim=True) + epsilon)
    return (normed * gain).flatten(1)


def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, input_scale: float | None = None
) -> Tensor:
    """The projection x W^T (+ bias) of x (T, inputs); W is `weight` (outputs, inputs).

    With an `input_scale`, x is rounded to its multiples first: `rounded`.
    """
    if input_scale is not None:
        x = rounded(x, input_scale)
    return torch.nn.functional.linear(x, weight, bias)


def rounded(x: Tensor, scale: float) -> Tensor:
    """What int8 codes of one fixed scale stand for: round(x / scale) * scale.

    Halves round to even, codes are clamped to +-127, and what is not finite stays as it is.
    No gradient passes.
    """
    codes = torch.clamp(torch.round(x / scale), -127, 127)
    return torch.where(torch.isfinite(x), codes * scale, x)


def rope(x: Tensor, positions: Tensor, head_dim: int, frequencies: Sequence[float]) -> Tensor:
    """Rotates dimensions (i, i + n) of each head by position * frequencies[i], i < n.

    x is (T, heads * head_dim), positions (T); n = len(frequencies), dimensions past 2 n pass
    unchanged. Angles are float64, their sines and cosines float32. Su et al. 2021, "RoFormer".
    """
    n = len(frequencies)
    angles = positions.double()[:, None] * torch.tensor(frequencies, dtype=torch.float64)
    cos, sin = angles.cos().float()[:, None], angles.sin().float()[:, None]
    heads = x.reshape(len(x), x.shape[1] // head_dim, head_dim)
    first, second, rest = heads[..., :n], heads[..., n : 2 * n], heads[..., 2 * n :]
    rotated = (first * cos - second * sin, second * cos + first * sin, rest)
    return torch.cat(rotated, -1).flatten(1)


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    heads: int,
    kv_heads: int,
    head_dim: int,
    scale: float,
    window: int,
) -> Tensor:
    """softmax(scale * q k^T) v for the last T of N positions of one sequence.

    query is (T, heads * head_dim); key and value are (N, kv_heads * head_dim). Query head h reads
    key-value head h // (heads / kv_heads). A position attends to itself and those before it, of
    which the `window` latest where that is not 0. All scores (heads, T, N) exist at once.
    """
    group = heads // kv_heads
    q = query.reshape(-1, heads, head_dim).transpose(0, 1)
    k, v = (
        x.reshape(-1, kv_heads, head_dim).transpose(0, 1).repeat_interleave(group, 0)
        for x in (key, value)
    )
    key_position = torch.arange(len(key))
    distance = key_position[len(key) - len(query) :, None] - key_position
    hidden = distance < 0
    if window:
        hidden |= distance >= window
    scores = (q @ k.transpose(1, 2) * scale).masked_fill(hidden, -torch.inf)
    mixed: Tensor = torch.softmax(scores, -1) @ v
    return mixed.transpose(0, 1).flatten(1)


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) * up. Shazeer 2020, "GLU Variants Improve Transformer"."""
    return torch.nn.functional.silu(gate) * up


def geglu(gate: Tensor, up: Tensor) -> Tensor:
    """gelu(gate) * up, in the tanh approximation. Shazeer 2020."""
    return torch.nn.functional.gelu(gate, approximate="tanh") * up


def add(x: Tensor, y: Tensor) -> Tensor:
    """The sum of two values."""
    return x + y


def columns(x: Tensor, columns: Sequence[int]) -> Tensor:
    """Columns (n) of x (T, width): (T, n)."""
    return x[:, list(columns)]


def zero_columns(x: Tensor, columns: Sequence[int]) -> Tensor:
    """The value with zeros in these columns."""
    return x.index_fill(1, torch.tensor(columns), 0.0)


def rows(x: Tensor, indices: Tensor) -> Tensor:
    """Rows `indices` (R) of x (T, width)."""
    return x[indices]


def logits(x: Tensor, weight: Tensor, input_scale: float | None = None) -> Tensor:
    """The vocabulary's scores x W^T: (R, vocabulary). `input_scale` is as in `linear`."""
    return linear(x, weight, input_scale=input_scale)


def spread(x: Tensor, columns: Sequence[int], width: int) -> Tensor:
    """`width` numbers a row, those of x (R, n) in `columns` (n), -inf elsewhere."""
    return x.new_full((len(x), width), -torch.inf).index_copy(1, torch.tensor(columns), x)


class _Pool:
    """The paged cache: `bytes` (blocks, bytes of a block), and what lies in it.

    A block holds its positions' `token_ids`, then each layer's `keys` and `values`; as tensors,
    these are (blocks, 32) and (blocks, 32, kv_heads * head_dim).
    """

    def __init__(self, total_blocks: int, widths: Sequence[int], dtype: torch.dtype) -> None:
        sizes = [8 * BLOCK_TOKENS]
        sizes += [BLOCK_TOKENS * width * dtype.itemsize for width in widths for _ in "kv"]
        self.bytes = np.zeros((total_blocks, sum(sizes)), np.uint8)
        token_ids, *parts = torch.split(torch.from_numpy(self.bytes), sizes, 1)
        self.token_ids = token_ids.view(torch.int64)
        shaped = [part.view(dtype).view(total_blocks, BLOCK_TOKENS, -1) for part in parts]
        self.keys, self.values = shaped[::2], shaped[1::2]


@dataclass
class _Sequence:
    """One sequence's token ids, and per layer its keys and values, (N, kv_heads * head_dim)."""

    token_ids: Tensor
    keys: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)


class TorchBackend:
    """Runs a Program in float32 with the functions above.

    Keys and values are kept in `kv_dtype` (fp32, fp16 or bf16); a step reads its sequences from
    their blocks and writes back what it added. With `recompute` only token ids are kept, and every
    step computes everything again.
    `parameters` are the weights in float32, by name; they may require gradients. The values
    named in `taps` are kept in `tapped` after each step; with `recompute` they cover every
    position.
    Raises `RequestError` for a tap or a cache dtype not known here.
    """

    samples = False

    def __init__(
        self,
        model: Model,
        kv_dtype: KVDtype = KVDtype.FP32,
        recompute: bool = False,
        taps: Collection[str] = (),
        total_blocks: int = 1024,
    ) -> None:
        if kv_dtype not in _CACHE_DTYPES:
            raise RequestError(
                f"the torch backend keeps keys and values in fp32, fp16 or bf16, not "
                f"{kv_dtype.value}"
            )
        unknown = set(taps) - set(model.program.values)
        if unknown:
            raise RequestError(f"the model computes no value called {min(unknown)!r}")
        self.program = model.program
        self.vocabulary_size = model.program.vocabulary_size
        self.context_length = model.config.context_length
        self.total_blocks = total_blocks
        self.max_step_tokens = model.config.context_length
        self.max_step_rows = model.config.context_length
        self.hidden_size = model.config.hidden_size
        self.parameters = {
            name: torch.from_numpy(decode(tensor)) for name, tensor in model.tensors.items()
        }
        self.taps = frozenset(taps)
        self.tapped: dict[str, Tensor] = {}
        self._kv_dtype = kv_dtype
        self._recompute = recompute
        self._last_use = {
            name: index for index, op in enumerate(self.program.ops) for name in op.inputs
        }

    @cached_property
    def identity(self) -> Mapping[str, str]:
        """What the bits of a block of cache depend on. Reads all weights the first time."""
        description = repr((self.program.ops, [*self.parameters]))
        weights = (weight.detach().numpy() for weight in self.parameters.values())
        return {
            "backend": f"torch {torch.__version__}",
            "model": content_digest(description, weights),
            "kv_dtype": self._kv_dtype.value,
            "block": f"{BLOCK_TOKENS} token ids" + ", keys and values" * (not self._recompute),
        }

    def cache_bytes(self) -> NDArray[np.uint8]:
        """The blocks, (total_blocks, bytes of a block), writable."""
        return self._pool.bytes

    def run(self, plan: StepPlan, want_logits: bool = False) -> StepResult:
        """One step; gives logits always and leaves tokens to the caller."""
        copy_blocks(self._pool.bytes, plan.copies)
        sequences, spans, parts, wanted, hidden = [], [0], [], [], []
        for index, (start, stop) in enumerate(zip(plan.starts[:-1], plan.starts[1:], strict=True)):
            fed = torch.from_numpy(plan.token_ids[start:stop].astype(np.int64))
            sequence = self._read(plan.block_tables[index], int(plan.positions[start]))
            sequence.token_ids = torch.cat((sequence.token_ids, fed))
            computed = sequence.token_ids if self._recompute else fed
            moved = spans[-1] + len(computed) - stop
            wanted.extend(plan.rows[(plan.rows >= start) & (plan.rows < stop)] + moved)
            in_step = (plan.hidden_rows >= start) & (plan.hidden_rows < stop)
            hidden.extend(plan.hidden_rows[in_step] + moved)
            sequences.append(sequence)
            parts.append(computed)
            spans.append(spans[-1] + len(computed))
        with torch.no_grad():
            scores, states = self._execute(
                torch.cat(parts),
                sequences,
                spans,
                torch.tensor(wanted).long(),
                torch.tensor(hidden).long(),
            )
        for sequence, table, start in zip(
            sequences, plan.block_tables, plan.starts[:-1], strict=True
        ):
            self._write(table, sequence, int(plan.positions[start]))
        return logits_only(scores.numpy(), states.numpy())

    def forward(self, token_ids: Sequence[int]) -> Tensor:
        """Logits (T, vocabulary) at every position of one sequence; differentiable."""
        ids = torch.tensor(token_ids, dtype=torch.int64)
        return self.forward_packed(ids, [0, len(ids)], torch.arange(len(ids)))

    def forward_packed(self, token_ids: Tensor, starts: Sequence[int], rows: Tensor) -> Tensor:
        """Logits (R, vocabulary) at the positions `rows` (R) of several sequences; differentiable.

        Sequence s is `token_ids[starts[s]:starts[s+1]]`, from its first position on, and attends to
        itself alone.
        """
        spans = list(starts)
        parts = [token_ids[first:end] for first, end in pairwise(spans)]
        none = torch.empty(0, dtype=torch.int64)
        sequences = [_Sequence(part) for part in parts]
        return self._execute(token_ids, sequences, spans, rows, none)[0]

    def close(self) -> None:
        """Forgets all sequences and weights."""
        self.__dict__.pop("_pool", None)
        self.parameters.clear()
        self.tapped.clear()

    @cached_property
    def _pool(self) -> _Pool:
        # Made by the first step: `forward` needs none.
        widths = [layer.kv_heads * layer.head_dim for layer in self.program.cache]
        kept = [] if self._recompute else widths
        return _Pool(self.total_blocks, kept, _CACHE_DTYPES[self._kv_dtype])

    def _read(self, table: NDArray[np.int32], length: int) -> _Sequence:
        """The first `length` positions of the sequence that lies in the blocks of `table`."""
        blocks = torch.from_numpy(table[: -(-length // BLOCK_TOKENS)].astype(np.int64))
        return _Sequence(
            self._pool.token_ids[blocks].flatten()[:length],
            [keys[blocks].flatten(0, 1)[:length] for keys in self._pool.keys],
            [values[blocks].flatten(0, 1)[:length] for values in self._pool.values],
        )

    def _write(self, table: NDArray[np.int32], sequence: _Sequence, first: int) -> None:
        """Stores a sequence's positions from `first` on."""
        positions = np.arange(first, len(sequence.token_ids))
        blocks = torch.from_numpy(table[positions // BLOCK_TOKENS].astype(np.int64))
        slots = torch.from_numpy(positions % BLOCK_TOKENS)
        self._pool.token_ids[blocks, slots] = sequence.token_ids[first:]
        for layer, (keys, values) in enumerate(
            zip(self._pool.keys, self._pool.values, strict=True)
        ):
            keys[blocks, slots] = sequence.keys[layer][first:]
            values[blocks, slots] = sequence.values[layer][first:]

    def _execute(
        self,
        token_ids: Tensor,
        sequences: list[_Sequence],
        spans: list[int],
        wanted: Tensor,
        hidden: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Runs the Program; sequence s owns tokens `spans[s]:spans[s+1]`, the last it has.

        Gives the logits of rows `wanted`, and of rows `hidden` what the head would read.
        """
        states = torch.empty(0)
        positions = torch.cat(
            [
                torch.arange(len(s.token_ids) - (stop - start), len(s.token_ids))
                for s, start, stop in zip(sequences, spans[:-1], spans[1:], strict=True)
            ]
        )
        values: dict[str, Tensor] = {}
        self.tapped = {}
        for index, op in enumerate(self.program.ops):
            inputs = [values[name] for name in op.inputs]
            weights = [self.parameters[name] for name in op.weights]
            if op.kind == "embed":
                output = embed(token_ids, weights[0])
            elif op.kind == "rope":
                output = rope(inputs[0], positions, **op.attributes)
            elif op.kind == "rows":
                output = rows(inputs[0], torch.cat((wanted, hidden)))
            elif op.kind == "logits":
                states = inputs[0][len(wanted) :]
                output = logits(inputs[0][: len(wanted)], weights[0], **op.attributes)
            elif op.kind == "attend":
                output = self._attend(op, inputs, sequences, spans)
            else:
                output = _FUNCTIONS[op.kind](*inputs, *weights, **op.attributes)
            values[op.output] = output
            if op.output in self.taps:
                self.tapped[op.output] = output
            for name in op.inputs:
                if self._last_use[name] == index:
                    values.pop(name, None)
        return values[self.program.output], states

    def _attend(
        self, op: Op, inputs: list[Tensor], sequences: list[_Sequence], spans: list[int]
    ) -> Tensor:
        """Attention of each sequence for itself, its new keys and values stored first."""
        attributes = dict(op.attributes)
        layer, cache_dtype = attributes.pop("layer"), _CACHE_DTYPES[self._kv_dtype]
        outputs = []
        for sequence, start, stop in zip(sequences, spans[:-1], spans[1:], strict=True):
            query, key, value = (x[start:stop] for x in inputs)
            key, value = key.to(cache_dtype), value.to(cache_dtype)
            if layer < len(sequence.keys):
                key = torch.cat((sequence.keys[layer], key))
                value = torch.cat((sequence.values[layer], value))
                sequence.keys[layer], sequence.values[layer] = key, value
            else:
                sequence.keys.append(key)
                sequence.values.append(value)
            outputs.append(attend(query, key.float(), value.float(), **attributes))
        return torch.cat(outputs)


_FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "scale": scale,
    "rmsnorm": rmsnorm,
    "linear": linear,
    "swiglu": swiglu,
    "geglu": geglu,
    "add": add,
    "columns": columns,
    "zero_columns": zero_columns,
    "spread": spread,
}
