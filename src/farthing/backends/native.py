"""The product's backend: a Program run by the native core over packed weights and a paged cache."""

from __future__ import annotations

import os
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from farthing import _native
from farthing.backends.blocks import content_digest, copy_blocks
from farthing.core import (
    BLOCK_TOKENS,
    ActivationMode,
    DoesNotFitError,
    FarthingError,
    KVDtype,
    RequestError,
    StepResult,
    StoredTensor,
    UnsupportedModelError,
)
from farthing.files.pages import release_pages
from farthing.plan.memory import MemoryPlan, require_room
from farthing.plan.packed import PACKED_FORMATS
from farthing.plan.stages import (
    AttendStage,
    EmbedStage,
    GateStage,
    HeadProduct,
    HeadsStage,
    LinearStage,
    Product,
    RowStage,
    Source,
    Stage,
    head_source,
)
from farthing.quant.formats import decode, encode, packable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from farthing.core import SamplingRows, StepPlan
    from farthing.models.load import Model
    from farthing.plan.packed import PackedFormat

_CACHE_TYPES = (KVDtype.FP32, KVDtype.FP16, KVDtype.BF16, KVDtype.INT8, KVDtype.INT4_KEYS)
_MODES = (ActivationMode.FP32, ActivationMode.BF16, ActivationMode.INT8)
_ROW_KINDS = (
    *("rmsnorm", "norm_add", "add", "scale", "swiglu", "geglu", "rope"),
    *("columns", "zero_columns", "rows", "spread"),
)

_DECODED_FLOATS = 1 << 20
"""How many weights are decoded at a time when a matrix is expanded."""

_NO_TOKENS = np.zeros(0, np.int32)
_NO_LOGPROBS = np.zeros(0, np.float32)
_NO_TOP_IDS = np.zeros((0, 0), np.int32)
_NO_TOP_LOGPROBS = np.zeros((0, 0), np.float32)


class NativeBackend:
    """Runs a model as its MemoryPlan says. Not for several threads at once.

    `tier` is the instruction set in use: the best one this machine has, or the one that the
    environment variable FARTHING_ISA names. Raises `DoesNotFitError` before anything is allocated
    when the plan needs more memory or threads than there are.
    """

    samples = True
    kernel_version: str = _native.kernel_version

    def __init__(
        self,
        model: Model,
        plan: MemoryPlan,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        """Packs the weights, calling `progress(bytes done, bytes in all)` on the way."""
        require_room(plan)
        try:
            self._program = _native.Program(
                os.environ.get("FARTHING_ISA"),
                _CACHE_TYPES.index(plan.kv_dtype),
                _sizes(plan, model),
            )
        except ValueError as error:
            raise FarthingError(str(error)) from None
        except RuntimeError as error:
            raise DoesNotFitError(
                f"the system refuses to start {plan.threads} threads ({error}): use fewer, or "
                "raise the limit of processes (ulimit -u)"
            ) from error
        self.plan = plan
        self.tier: str = self._program.tier
        self.vocabulary_size = model.program.vocabulary_size
        self.context_length = plan.context_length
        self.total_blocks = plan.total_blocks
        self.max_step_tokens = plan.step_tokens
        self.max_step_rows = plan.step_rows
        self.hidden_size = plan.arena.hidden_width
        self._weights = self._load_weights(model, progress)
        self._values = self._add_values()
        self._append_stages(model)

    def run(self, plan: StepPlan, want_logits: bool = False) -> StepResult:
        """One step. Logits (float32, R x vocabulary) are copied out where wanted.

        Hidden states are a view of the backend's memory, which the next step writes over.
        """
        if len(plan.copies):
            copy_blocks(self.cache_bytes(), plan.copies)
        rows = len(plan.rows)
        logits = np.empty((rows, self.vocabulary_size), np.float32) if want_logits else None
        hidden = self._program.hidden()[: len(plan.hidden_rows)] if len(plan.hidden_rows) else None
        if plan.sampling is None:
            self._program.run(
                plan.token_ids,
                plan.positions,
                plan.starts,
                plan.block_tables,
                plan.rows,
                plan.hidden_rows,
                logits,
            )
            return StepResult(
                _NO_TOKENS, _NO_LOGPROBS, _NO_TOP_IDS, _NO_TOP_LOGPROBS, logits, hidden
            )
        width = max(0, int(plan.sampling.logprobs.max(initial=0)))
        result = StepResult(
            np.empty(rows, np.int32),
            np.empty(rows, np.float32),
            np.empty((rows, width), np.int32),
            np.empty((rows, width), np.float32),
            logits,
            hidden,
        )
        self._run_sampled(plan, plan.sampling, result)
        return result

    def _run_sampled(self, plan: StepPlan, sampling: SamplingRows, result: StepResult) -> None:
        self._program.run_sampled(
            plan.token_ids,
            plan.positions,
            plan.starts,
            plan.block_tables,
            plan.rows,
            plan.hidden_rows,
            result.logits,
            sampling.temperature,
            sampling.top_k,
            sampling.top_p,
            sampling.min_p,
            sampling.repetition_penalty,
            sampling.presence_penalty,
            sampling.frequency_penalty,
            sampling.seed,
            sampling.choice,
            sampling.position,
            sampling.logprobs,
            sampling.target,
            sampling.adjusted_starts,
            sampling.adjusted_ids,
            sampling.adjusted_bias,
            sampling.adjusted_seen,
            sampling.adjusted_count,
            result.tokens,
            result.logprob,
            result.top_ids,
            result.top_logprobs,
            *(() if sampling.masks is None else (sampling.mask_rows, sampling.masks)),
        )

    @cached_property
    def identity(self) -> Mapping[str, str]:
        """What the bits of a block of cache depend on. Reads all weights the first time.

        `model` is a digest of the stages and of the packed weights, so neither a file that was
        replaced since nor a change in how one is read or packed goes unnoticed.
        """
        plan = self.plan
        description = repr((plan.stages, dict(plan.weights)))
        layers = ", ".join(str(place.offset) for place in plan.cache)
        formats = {
            f"{place.stored} as {place.packed.name}"
            for place in plan.weights.values()
            if place.packed is not None
        }
        return {
            "backend": "native",
            "model": content_digest(description, [self._program.weight_bytes()]),
            "formats": ", ".join(sorted(formats)),
            "kv_dtype": plan.kv_dtype.value,
            "activations": "default" if plan.activations is None else plan.activations.value,
            "isa": self.tier,
            "kernels": self.kernel_version,
            "block": f"{BLOCK_TOKENS} positions in {plan.block_bytes} bytes, layers at {layers}",
        }

    def cache_bytes(self) -> NDArray[np.uint8]:
        """The block pool itself, (total_blocks, bytes of a block), writable."""
        pool: NDArray[np.uint8] = self._program.cache_bytes()
        return pool.reshape(self.total_blocks, self.plan.block_bytes)

    def value(self, name: str) -> NDArray[np.float32]:
        """The last step's rows of a value that the plan taps: (T, width), or (R, width) where only
        wanted rows have it; no rows before the first step. A view, which the next step writes over.

        Raises `RequestError` for a value that is no tap.
        """
        if name not in self.plan.taps:
            raise RequestError(
                f"the value {name!r:.100} is not kept: name it in plan_memory's taps "
                f"(now: {', '.join(sorted(self.plan.taps)) or 'none'})"
            )
        return self._program.rows_of(self._values[name])

    def set_fault(self, name: str, on: bool) -> None:
        """Breaks the arithmetic on purpose, for checks that must notice.

        `reverse_merge` merges the chunks of attention from the last to the first.
        """
        if name != "reverse_merge":
            raise FarthingError(f"no fault is called {name!r}; known: reverse_merge")
        self._program.reverse_merges(on)

    def profile(self, on: bool) -> None:
        """Starts counting the seconds of each stage from zero, or stops."""
        self._program.profile(on)

    def stage_seconds(self) -> list[tuple[str, float]]:
        """(label, seconds) of each stage, and of sampling, since profiling was switched on."""
        labels = [*self._program.stage_labels(), "sample"]
        return list(zip(labels, self._program.stage_seconds(), strict=True))

    def close(self) -> None:
        """Gives back memory and threads."""
        del self._program

    def _load_weights(
        self, model: Model, progress: Callable[[int, int], None] | None
    ) -> dict[str, int]:
        indices: dict[str, int] = {}
        done = 0
        for name, place in self.plan.weights.items():
            tensor = model.tensors[name]
            if place.packed is None:
                indices[name] = self._program.vector(place.offset, decode(tensor))
            else:
                outputs, inputs = model.program.weights[name].shape
                packed = PACKED_FORMATS.index(place.packed.name)
                index = self._program.matrix(
                    place.offset, packed, place.packed.group, outputs, inputs
                )
                self._pack(index, tensor, place.packed)
                release_pages(tensor.data)
                indices[name] = index
            done += place.bytes
            if progress is not None:
                progress(done, self.plan.weight_bytes)
        return indices

    def _pack(self, index: int, tensor: StoredTensor, packed: PackedFormat) -> None:
        outputs, inputs = tensor.shape
        if not packed.expanded:
            self._program.pack(index, 0, outputs, packable(tensor))
            return
        step = max(16, _DECODED_FLOATS // inputs // 16 * 16)
        for first in range(0, outputs, step):
            rows = decode(tensor, rows=slice(first, min(first + step, outputs)))
            self._program.pack(index, first, len(rows), encode(rows, packed.name))

    def _add_values(self) -> dict[str, int]:
        return {
            name: self._program.value(
                place.offset,
                place.width,
                place.stride,
                place.wanted,
                -1 if place.mode is None else _MODES.index(place.mode),
                place.input_scale or 0.0,
            )
            for name, place in self.plan.arena.values.items()
        }

    def _append_stages(self, model: Model) -> None:
        program, plan, values = self._program, self.plan, self._values
        for layer, place in zip(model.program.cache, plan.cache, strict=True):
            program.cache(layer.kv_heads, layer.head_dim, place.offset)
        ropes = {
            frequencies: program.rope(list(frequencies), offset)
            for frequencies, offset in plan.arena.ropes.items()
        }
        for stage in plan.stages:
            self._append(stage, values, ropes)
        program.logits(values[model.program.output])

    def _append(
        self, stage: Stage, values: dict[str, int], ropes: dict[tuple[float, ...], int]
    ) -> None:
        program = self._program
        output = values[stage.output]
        match stage:
            case EmbedStage():
                program.embed(self._weights[stage.table], stage.factor, output)
            case LinearStage():
                residual = -1 if stage.residual is None else values[stage.residual]
                source = self._source(stage.source, values)
                label = "logits" if stage.ops[-1].kind == "logits" else "linear"
                program.linear(label, source, self._product(stage.product), output, residual)
            case GateStage():
                program.gate(
                    self._source(stage.source, values),
                    self._product(stage.gate),
                    self._product(stage.up),
                    stage.activation == "geglu",
                    output,
                )
            case HeadsStage():
                program.heads(
                    self._source(stage.source, values),
                    self._heads(stage.query, ropes),
                    self._heads(stage.key, ropes),
                    self._heads(stage.value, ropes),
                    stage.layer,
                    output,
                )
            case AttendStage():
                attributes = stage.ops[0].attributes
                program.attend(
                    values[stage.query],
                    -1 if stage.key is None else values[stage.key],
                    -1 if stage.value is None else values[stage.value],
                    output,
                    attributes["layer"],
                    attributes["heads"],
                    attributes["scale"],
                    attributes["window"],
                )
            case RowStage():
                self._append_row(stage, values, ropes)

    def _append_row(
        self, stage: RowStage, values: dict[str, int], ropes: dict[tuple[float, ...], int]
    ) -> None:
        if stage.kind not in _ROW_KINDS:
            raise UnsupportedModelError(
                f"the native backend has no operation {stage.kind}: use the torch backend"
            )
        first, second = (*stage.inputs, None)[:2]
        weights = [name for op in stage.ops for name in op.weights]
        attributes = stage.ops[0].attributes
        number = attributes.get("epsilon", attributes.get("factor", 0.0))
        source = head_source(self.plan.stages) if stage.kind == "rows" else None
        if source is not None and source.gain is not None:
            weights, number = [source.gain], source.epsilon
        self._program.row(
            _ROW_KINDS.index(stage.kind),
            stage.kind,
            a=values[first] if first is not None else -1,
            b=-1 if second is None else values[second],
            output=values[stage.output],
            gain=self._weights[weights[0]] if weights else -1,
            gain_count=self.plan.weights[weights[0]].bytes // 4 if weights else 0,
            rope=ropes[attributes["frequencies"]] if stage.kind == "rope" else -1,
            head_dim=attributes.get("head_dim", 0),
            number=number,
            columns=list(attributes.get("columns", ())),
        )

    def _source(self, source: Source, values: dict[str, int]) -> tuple[int, int, float, float]:
        gain = -1 if source.gain is None else self._weights[source.gain]
        return values[source.value], gain, source.epsilon, source.input_scale or 0.0

    def _product(self, product: Product) -> tuple[int, int]:
        bias = -1 if product.bias is None else self._weights[product.bias]
        return self._weights[product.weight], bias

    def _heads(
        self, heads: HeadProduct, ropes: dict[tuple[float, ...], int]
    ) -> tuple[int, int, int, float, int]:
        gain = -1 if heads.gain is None else self._weights[heads.gain]
        rope = -1 if heads.rope is None else ropes[heads.rope]
        return (*self._product(heads.product), gain, heads.epsilon, rope)


def _sizes(plan: MemoryPlan, model: Model) -> _native.Sizes:
    arena = plan.arena
    sizes = _native.Sizes()
    for name, value in (
        ("threads", plan.threads),
        ("step_tokens", plan.step_tokens),
        ("step_rows", plan.step_rows),
        ("total_blocks", plan.total_blocks),
        ("context_length", plan.context_length),
        ("vocabulary", model.program.vocabulary_size),
        ("block_bytes", plan.block_bytes),
        ("partial_rows", arena.partial_rows),
        ("weights", plan.weight_bytes),
        ("cache", plan.cache_bytes),
        ("arena", arena.total_bytes),
        ("shared_prepared", arena.shared_prepared),
        ("partials", arena.partials),
        ("hidden", arena.hidden),
        ("hidden_width", arena.hidden_width),
        ("scratch", arena.scratch),
        ("scratch_stride", arena.thread.stride),
        ("scratch_row", arena.thread.row),
        ("scratch_tile", arena.thread.tiles),
        ("scratch_state", arena.thread.state),
        ("scratch_prepared", arena.thread.prepared),
        ("scratch_sampling", arena.thread.sampling),
    ):
        setattr(sizes, name, value)
    return sizes
