"""What a model's linear operations are given on a text: the statistics that methods work from.

The model runs in full precision by the native backend, window by window. The inputs of linear
operations are read from it, or made from what they are normalised from, and summed up.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from farthing.backends.native import NativeBackend
from farthing.core import BLOCK_TOKENS, ActivationMode, FarthingError, KVDtype, StepPlan
from farthing.models.load import load_model
from farthing.plan.memory import plan_memory
from farthing.plan.stages import GateStage, HeadsStage, LinearStage, Source, fuse
from farthing.quant.formats import decode
from farthing.text.load import load_tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from numpy.typing import NDArray

    from farthing.files.checkpoint import Checkpoint
    from farthing.models.load import Model
    from farthing.models.program import Program
    from farthing.quality.texts import Text

WINDOW_TOKENS = 512
LEAST_TOKENS = 1024
MOST_TOKENS = 16384

_STEP_TOKENS = 512
"""Tokens fed at once: the inputs of linear operations for so many are kept until summed up."""

_CHARACTERS_OF_A_TOKEN = 16
"""More than a token of a text usually has: what is beyond is not read."""


@dataclass(frozen=True)
class InputStatistics:
    """What a linear operation's K inputs were over the calibration's tokens.

    `largest` are the largest magnitudes, `magnitude` the mean ones, `square` the mean squares, each
    (K,); `hessian` is the mean of x x^T, (K, K), where it was asked for.
    """

    tokens: int
    largest: NDArray[np.float32]
    magnitude: NDArray[np.float32]
    square: NDArray[np.float32]
    hessian: NDArray[np.float32] | None = None


@dataclass(frozen=True)
class Calibration:
    """A text to calibrate with: what it is called, its sha256, and its tokens in windows."""

    name: str
    sha256: str
    windows: Sequence[Sequence[int]]

    @property
    def tokens(self) -> int:
        """How many there are, those included that each window begins with."""
        return sum(map(len, self.windows))


def calibration_with(text: Text, checkpoint: Checkpoint) -> Calibration:
    """The text's first tokens in windows of one length, each beginning as the model's texts do.

    Raises `FarthingError` for a text of fewer than 1,024 tokens.
    """
    tokenizer = load_tokenizer(checkpoint)
    beginning = text.content[: MOST_TOKENS * _CHARACTERS_OF_A_TOKEN]
    ids = tokenizer.encode(beginning, add_special_tokens=False)[:MOST_TOKENS]
    if len(ids) < LEAST_TOKENS:
        raise FarthingError(
            f"the calibration text {text.name} has {len(ids):,} tokens and must have at least "
            f"{LEAST_TOKENS:,}, better {MOST_TOKENS:,}: give a longer one, like the texts that the "
            "model is to work on"
        )
    start = tokenizer.encode("", add_special_tokens=True)
    most = min(WINDOW_TOKENS, load_model(checkpoint).config.context_length)
    length = most - len(start)
    whole = len(ids) // length * length
    windows = [[*start, *ids[first : first + length]] for first in range(0, whole, length)]
    return Calibration(text.name, text.sha256, windows)


def input_sources(program: Program) -> dict[str, Source]:
    """For each matrix of a linear operation, or a head, what it reads: a value, through a norm."""
    found: dict[str, Source] = {}
    wanted = {op.output: op.inputs[0] for op in program.ops if op.kind == "rows"}
    for stage in fuse(program):
        match stage:
            case LinearStage():
                products = [stage.product]
            case GateStage():
                products = [stage.gate, stage.up]
            case HeadsStage():
                products = [stage.query.product, stage.key.product, stage.value.product]
            case _:
                continue
        # Of the rows that the head reads, calibration wants all.
        value = wanted.get(stage.source.value, stage.source.value)
        source = Source(value, stage.source.gain, stage.source.epsilon)
        found.update({product.weight: source for product in products})
    return found


def collect(
    model: Model,
    texts: Sequence[Sequence[int]],
    sources: Collection[Source],
    hessians: Collection[Source],
    progress: Callable[[float], None],
) -> dict[Source, InputStatistics]:
    """Statistics of `sources`, with the Hessian of those that are also in `hessians`.

    `texts` are token ids, computed apart from each other. `progress` is told the share that is
    done. Takes the memory of the model in float32 and the Hessians' on top. Raises
    `DoesNotFitError` where there is not so much, and `FarthingError` when an input is not finite.
    """
    length = max(map(len, texts))
    plan = plan_memory(
        model,
        context_length=length,
        slots=1,
        kv_dtype=KVDtype.FP32,
        activations=ActivationMode.FP32,
        step_tokens=min(_STEP_TOKENS, length),
        step_rows=1,
        taps={source.value for source in sources},
    )
    backend = NativeBackend(model, plan)
    try:
        sums = {source: _Sums(model, source, source in hessians) for source in sources}
        with ThreadPoolExecutor(plan.threads) as pool:
            for number, ids in enumerate(texts):
                for step in _steps(ids, plan.step_tokens):
                    backend.run(step)
                    tokens = len(step.token_ids)
                    # One source's sums are no other's.
                    added = [
                        pool.submit(gathered.add, backend.value(source.value)[:tokens])
                        for source, gathered in sums.items()
                    ]
                    for each in added:
                        each.result()
                progress((number + 1) / len(texts))
        return {source: gathered.statistics() for source, gathered in sums.items()}
    finally:
        backend.close()


class _Sums:
    """What has been seen of one source's values."""

    def __init__(self, model: Model, source: Source, with_hessian: bool) -> None:
        self._source = source
        width = model.program.values[source.value].width
        self._gain = None if source.gain is None else decode(model.tensors[source.gain])
        self._tokens = 0
        self._largest = np.zeros(width, np.float32)
        self._magnitude = np.zeros(width, np.float64)
        self._square = np.zeros(width, np.float64)
        self._hessian = np.zeros((width, width), np.float32) if with_hessian else None

    def add(self, values: NDArray[np.float32]) -> None:
        # What overflows is found in the end.
        with np.errstate(over="ignore", invalid="ignore"):
            x = self._normalised(values)
            magnitudes = np.abs(x)
            self._tokens += len(x)
            np.maximum(self._largest, magnitudes.max(axis=0), out=self._largest)
            self._magnitude += magnitudes.sum(axis=0, dtype=np.float64)
            if self._hessian is None:
                self._square += np.square(x).sum(axis=0, dtype=np.float64)
            else:
                self._hessian += x.T @ x

    def statistics(self) -> InputStatistics:
        tokens = self._tokens
        square = self._square
        if self._hessian is not None:
            square = self._hessian.diagonal().astype(np.float64)
            self._hessian /= np.float32(tokens)
        # Written so that a NaN is refused as well.
        if not (square / tokens < np.finfo(np.float32).max).all():
            raise FarthingError(
                f"the value {self._source.value} overflows on the calibration text: the model's "
                "file is damaged, or the text is none that it can read"
            )
        return InputStatistics(
            tokens,
            self._largest,
            (self._magnitude / tokens).astype(np.float32),
            (square / tokens).astype(np.float32),
            self._hessian,
        )

    def _normalised(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """What the linear operation is given, (T, K)."""
        if self._gain is None:
            return values
        mean = np.einsum("tk,tk->t", values, values, dtype=np.float64)[:, None] / values.shape[1]
        scales = 1 / np.sqrt(mean + self._source.epsilon)
        normed: NDArray[np.float32] = values * scales.astype(np.float32) * self._gain
        return normed


def _steps(ids: Sequence[int], most: int) -> Iterator[StepPlan]:
    """One text, fed from its first position on."""
    table = np.arange(-(-len(ids) // BLOCK_TOKENS), dtype=np.int32)[None]
    for first in range(0, len(ids), most):
        fed = np.array(ids[first : first + most], np.int32)
        yield StepPlan(
            token_ids=fed,
            positions=np.arange(first, first + len(fed), dtype=np.int32),
            starts=np.array([0, len(fed)], np.int32),
            block_tables=table,
            rows=np.array([len(fed) - 1], np.int32),
        )
