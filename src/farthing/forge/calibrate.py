"""What a model's linear operations are given on a text: the statistics that methods work from.

The model runs in full precision by the native backend, some layers after others, window by window.
The inputs of linear operations are read from it, or made from what they are normalised from, and
summed up.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from farthing.backends.native import NativeBackend
from farthing.core import (
    BLOCK_TOKENS,
    ActivationMode,
    DoesNotFitError,
    FarthingError,
    FileFormatError,
    KVDtype,
    StepPlan,
)
from farthing.forge.input_sums import InputSums
from farthing.forge.pieces import PIECE_WEIGHTS
from farthing.forge.sections import float_bytes, joined, section_model, sections
from farthing.models.load import load_model
from farthing.plan.machine import available_memory
from farthing.plan.memory import plan_memory
from farthing.plan.stages import GateStage, HeadsStage, LinearStage, Source, fuse
from farthing.quant.formats import decode
from farthing.text.load import load_tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from farthing.core import StoredTensor
    from farthing.files.checkpoint import Checkpoint
    from farthing.forge.input_sums import InputStatistics
    from farthing.models.load import Model
    from farthing.models.program import Program
    from farthing.plan.memory import MemoryPlan
    from farthing.quality.texts import Text

WINDOW_TOKENS = 512
LEAST_TOKENS = 1024
MOST_TOKENS = 16384

SECTION_BYTES = 128 << 20
"""Weights in float32 that are run at once."""

_STEP_TOKENS = 512
"""Tokens fed at once: the inputs of linear operations for so many are kept until summed up."""

_CHARACTERS_OF_A_TOKEN = 16
"""More than a token of a text usually has: what is beyond is not read."""


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


class Calibrator:
    """Texts on their way through a model, as many layers at a time as `SECTION_BYTES` hold.

    `texts` are token ids, computed apart from each other. Takes the memory of those layers in
    float32, or of one, and twice the residual stream of all tokens: what one collection leaves off
    with is where the next one goes on.
    """

    def __init__(self, model: Model, texts: Sequence[Sequence[int]]) -> None:
        self._model, self._texts = model, texts
        self._sections = sections(model.program)
        # Where a value leaves one section and enters another, it is read in the latter.
        self._section_of = {
            value: number
            for number, section in enumerate(self._sections)
            for value in section.values
        }
        self._at = 0
        self._stream: NDArray[np.float32] | None = None

    def collect(
        self,
        sources: Collection[Source],
        hessians: Collection[Source],
        progress: Callable[[float], None],
    ) -> dict[Source, InputStatistics]:
        """Statistics of `sources`, with the Hessian of those that are also in `hessians`.

        Runs through what lies between the last collection and these sources, and begins anew for
        one that lies before. `progress` is told the share that is done. Takes the Hessians' memory
        on top. Raises `DoesNotFitError` where there is not so much, and `FarthingError` when an
        input is not finite.
        """
        first, end = self._range_of(sources)
        if first < self._at:
            self._at, self._stream = 0, None
        sums = {source: InputSums(self._model, source, source in hessians) for source in sources}
        begun, total = self._at, end - self._at
        while self._at < end:
            count = self._together(end)
            self._run(count, sums, _part(progress, (self._at - begun) / total, count / total))
            self._at += count
        return {source: gathered.statistics() for source, gathered in sums.items()}

    def _range_of(self, sources: Collection[Source]) -> tuple[int, int]:
        """The sections from the first source to the last one."""
        numbers = [self._section_of[source.value] for source in sources]
        return min(numbers, default=self._at), max(numbers, default=self._at - 1) + 1

    def _together(self, end: int) -> int:
        """How many sections from here on, and before `end`, are run as one."""
        count, room = 1, SECTION_BYTES
        sizes = [float_bytes(self._model.program, each) for each in self._sections[self._at : end]]
        while count < len(sizes) and sum(sizes[: count + 1]) <= room:
            count += 1
        return count

    def _run(
        self, count: int, sums: Mapping[Source, InputSums], progress: Callable[[float], None]
    ) -> None:
        """Runs the next `count` sections, and adds to the sums of the sources in them."""
        section = joined(self._sections[self._at : self._at + count])
        here = {
            source: each
            for source, each in sums.items()
            if self._at <= self._section_of[source.value] < self._at + count
        }
        table, rows = self._entering()
        length = max(map(len, self._texts))
        model = section_model(self._model, section, table)
        plan = plan_memory(
            model,
            context_length=length,
            slots=1,
            kv_dtype=KVDtype.FP32,
            activations=ActivationMode.FP32,
            step_tokens=min(_STEP_TOKENS, length),
            step_rows=1,
            taps={section.leaves, *(source.value for source in here)},
        )
        _require_room(plan, sum(each.hessian_bytes for each in here.values()))
        backend = NativeBackend(model, plan)
        # The backend has packed what enters, so what leaves may take its place.
        if self._stream is None:
            self._stream = np.empty((len(rows), table.shape[1]), np.float32)
        try:
            with ThreadPoolExecutor(plan.threads) as pool:
                start = 0
                for number, text in enumerate(self._texts):
                    for step in _steps(rows[start : start + len(text)], plan.step_tokens):
                        backend.run(step)
                        fed = len(step.token_ids)
                        # One source's sums are no other's.
                        added = [
                            pool.submit(each.add, backend.value(source.value)[:fed])
                            for source, each in here.items()
                        ]
                        self._stream[start : start + fed] = backend.value(section.leaves)[:fed]
                        start += fed
                        for task in added:
                            task.result()
                    progress((number + 1) / len(self._texts))
        finally:
            backend.close()

    def _entering(self) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
        """What enters the next section, and which row of it each token has.

        At the beginning that are the rows of the embedding which the texts have tokens for.
        """
        if self._stream is not None:
            return self._stream, np.arange(len(self._stream), dtype=np.int32)
        ids = np.concatenate([np.asarray(text, np.int32) for text in self._texts])
        used, rows = np.unique(ids, return_inverse=True)
        embedding = self._model.tensors[self._model.program.ops[0].weights[0]]
        return _rows_of(embedding, used), rows.astype(np.int32)


def _part(progress: Callable[[float], None], done: float, size: float) -> Callable[[float], None]:
    """Told the share of a part, tells that of the whole."""
    return lambda share: progress(min(1.0, done + size * share))


def _require_room(plan: MemoryPlan, hessian_bytes: int) -> None:
    needed, room = plan.needed_bytes + hessian_bytes, available_memory()
    if needed > room:
        raise DoesNotFitError(
            f"calibration takes {needed / 1e6:,.0f} MB for the layers that it runs at once, in "
            f"float32, and what it sums up of their inputs, and {room / 1e6:,.0f} MB are "
            "available: use a machine with more memory, or quantise without calibration"
        )


def _rows_of(table: StoredTensor, used: NDArray[np.int32]) -> NDArray[np.float32]:
    """Some rows of a matrix, ascending, (n, width) float32."""
    outputs, width = table.shape
    if used[-1] >= outputs:
        raise FileFormatError(
            f"the tokenizer has the token {used[-1]}, and the embedding {table.name} only "
            f"{outputs} rows: the files do not belong together; fetch the model again"
        )
    found = np.empty((len(used), width), np.float32)
    step = max(1, PIECE_WEIGHTS // width)
    for first in range(0, outputs, step):
        begin, end = np.searchsorted(used, [first, first + step])
        if begin < end:
            part = decode(table, slice(first, min(first + step, outputs)))
            found[begin:end] = part[used[begin:end] - first]
    return found


def _steps(ids: NDArray[np.int32], most: int) -> Iterator[StepPlan]:
    """One text, fed from its first position on."""
    table = np.arange(-(-len(ids) // BLOCK_TOKENS), dtype=np.int32)[None]
    for first in range(0, len(ids), most):
        fed = ids[first : first + most]
        yield StepPlan(
            token_ids=fed,
            positions=np.arange(first, first + len(fed), dtype=np.int32),
            starts=np.array([0, len(fed)], np.int32),
            block_tables=table,
            rows=np.array([len(fed) - 1], np.int32),
        )
