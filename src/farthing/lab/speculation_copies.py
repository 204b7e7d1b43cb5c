"""How often quantised copies of a model guess what the model itself says next.

Both read the same text, position by position. Greedily a guess is right where both have the same
most likely token: acceptance is agreement. At a temperature both draw with the same noise, and a
guess is right where both draw the same token; the Leviathan rule takes a guess g that was drawn
from q with probability min(1, p(g) / q(g)).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from farthing.core import BLOCK_TOKENS, SamplingParams, StepPlan, UnsupportedModelError
from farthing.engine.draft_copy import stored_again
from farthing.engine.rows import FixedRows
from farthing.lab.projections import precision_warning
from farthing.lab.samples import Interval
from farthing.lab.speculation_formula import acceptance_bounds
from farthing.lab.speculation_passes import looked_up_runs, passes_table, right_runs
from farthing.lab.table import Column, Expectation, Plot, Row, Skipped, Table
from farthing.quality.intervals import estimate
from farthing.quality.windows import cut_windows
from farthing.quant.formats import bits_per_weight

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from farthing.backends.native import NativeBackend
    from farthing.files.receipt import Estimate
    from farthing.lab.subject import Subject
    from farthing.models.load import Model
    from farthing.quality.texts import Text
    from farthing.quality.windows import Windows

FORMATS = ("INT8_ROW", "NF4_B64", "INT4_G128", "INT4_ROW", "INT4_TENSOR")
TEMPERATURE = 0.7

POSITIONS = 480
"""At least so many are compared."""

_WINDOW = 128
_DESTROYED = 0.5
"""A copy that agrees less often has no use as a draft."""


@dataclass(frozen=True)
class Acceptances:
    """Of one draft; each array is (windows, positions).

    `agrees`: greedily. At the temperature, `shared` with shared noise, `ruled` the probability that
    the Leviathan rule takes the guess, `variation` the total variation of the two distributions.
    """

    agrees: NDArray[np.bool_]
    shared: NDArray[np.bool_]
    ruled: NDArray[np.float64]
    variation: NDArray[np.float64]

    @property
    def agreement(self) -> Estimate:
        """The share of positions where both have the same most likely token."""
        return estimate(self.agrees.mean(axis=1))

    @property
    def bounds(self) -> tuple[float, float]:
        """What acceptance with shared noise lies between: see `acceptance_bounds`."""
        least, most = acceptance_bounds(self.variation)
        return float(least.mean()), float(most.mean())

    @property
    def positions(self) -> int:
        """How many were compared."""
        return self.agrees.size


def measure_copies(
    subject: Subject, text: Text, written: Sequence[tuple[list[int], int]]
) -> Iterator[Table | Skipped]:
    """The acceptance of a copy in each format, greedy and at a temperature; and tokens a pass.

    `written` are texts of the model's own, each with how many of its tokens are the prompt.
    """
    window = min(_WINDOW, subject.model.config.context_length)
    windows = cut_windows(subject.tokenizer, text, POSITIONS, window)
    room = max(window, *(len(tokens) for tokens, _ in written))
    found: dict[str, Acceptances] = {}
    bits: dict[str, float] = {}
    runs = {"looked up": looked_up_runs(written)}
    with subject.native(room, step_tokens=room, step_rows=room) as target:
        theirs = [read(target, row, subject.seed) for row in windows.token_ids]
    for name in FORMATS:
        subject.progress.phase(f"a copy as {name} guesses")
        try:
            copy = stored_again(subject.model, name)
            with subject.native(room, model=copy, step_tokens=room, step_rows=room) as draft:
                found[name] = compared(draft, theirs, windows, subject.seed)
                runs[name] = right_runs(agreeing(draft, each) for each in written), 1.0
            bits[name] = _bits(copy)
        except UnsupportedModelError as error:
            yield Skipped(f"a copy as {name}", str(error))
    if found:
        yield agreement_table(found, bits, text.name, precision_warning(subject.model))
        yield drawn_table(found)
    yield passes_table(runs, len(written))


def agreeing(draft: NativeBackend, written: tuple[list[int], int]) -> NDArray[np.bool_]:
    """Where in the written part the draft has the text's own token as its most likely one."""
    tokens, prompt = written
    drawn = read(draft, np.array(tokens, np.int32), 0, temperature=0.0)[1]
    return np.equal(drawn[prompt - 1 : -1], tokens[prompt:])


def read(
    backend: NativeBackend, tokens: NDArray[np.int32], seed: int, temperature: float = TEMPERATURE
) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
    """Logits (n, vocabulary) after each of the n tokens, and the tokens (n,) drawn from them."""
    sampling = SamplingParams(temperature=temperature, seed=seed)
    plan = _step(tokens, 0, np.arange(len(tokens), dtype=np.int32), sampling)
    result = backend.run(plan, want_logits=True)
    if result.logits is None:
        raise RuntimeError("a backend gives the logits that it is asked for")
    return result.logits, result.tokens


def last_token(backend: NativeBackend, tokens: Sequence[int], first: int) -> int:
    """The most likely token behind `tokens`, which stand at `first` and later."""
    row = np.array([len(tokens) - 1], np.int32)
    plan = _step(np.array(tokens, np.int32), first, row, SamplingParams())
    return int(backend.run(plan).tokens[0])


def _step(
    tokens: NDArray[np.int32], first: int, rows: NDArray[np.int32], sampling: SamplingParams
) -> StepPlan:
    """A step of one text, whose blocks are the backend's in order."""
    end = first + len(tokens)
    fixed = FixedRows([(sampling, sampling.seed or 0, 0)] * len(rows))
    return StepPlan(
        token_ids=np.ascontiguousarray(tokens),
        positions=np.arange(first, end, dtype=np.int32),
        starts=np.array([0, len(tokens)], np.int32),
        block_tables=np.arange(-(-end // BLOCK_TOKENS), dtype=np.int32)[None],
        rows=rows,
        sampling=fixed.at((first + rows + 1).tolist(), [None] * len(rows)),
    )


def compared(
    draft: NativeBackend,
    theirs: Sequence[tuple[NDArray[np.float32], NDArray[np.int32]]],
    windows: Windows,
    seed: int,
    temperature: float = TEMPERATURE,
) -> Acceptances:
    """A draft beside the logits and draws of its target over the same windows.

    Of each window the scored part is compared.
    """
    shape = windows.count, windows.length - windows.first_scored
    agrees, shared = np.empty(shape, np.bool_), np.empty(shape, np.bool_)
    ruled, variation = np.empty(shape), np.empty(shape)
    rows = slice(windows.first_scored - 1, windows.length - 1)
    for at, (tokens, (logits, drawn)) in enumerate(zip(windows.token_ids, theirs, strict=True)):
        own_logits, own_drawn = read(draft, tokens, seed, temperature)
        target, own = logits[rows], own_logits[rows]
        guesses = own_drawn[rows]
        agrees[at] = target.argmax(axis=1) == own.argmax(axis=1)
        shared[at] = drawn[rows] == guesses
        p, q = softmax(target, temperature), softmax(own, temperature)
        variation[at] = np.abs(p - q).sum(axis=1, dtype=np.float64) / 2
        places = np.arange(len(guesses)), guesses
        ruled[at] = np.minimum(1.0, p[places] / np.maximum(q[places], np.finfo(np.float32).tiny))
    return Acceptances(agrees, shared, ruled, variation)


def softmax(logits: NDArray[np.float32], temperature: float) -> NDArray[np.float32]:
    """Probabilities, row by row."""
    scaled: NDArray[np.float32] = (logits - logits.max(axis=1, keepdims=True)) / np.float32(
        temperature
    )
    np.exp(scaled, out=scaled)
    scaled /= scaled.sum(axis=1, keepdims=True)
    return scaled


def agreement_table(
    found: dict[str, Acceptances], bits: dict[str, float], text: str, notes: tuple[str, ...] = ()
) -> Table:
    """Greedy acceptance of each copy."""
    ranked = sorted(found, key=lambda name: -found[name].agreement.value)
    positions = next(iter(found.values())).positions
    rows: tuple[Row, ...] = tuple(
        (name, bits[name], _interval(found[name].agreement), int(found[name].agrees.sum()))
        for name in ranked
    )
    best, worst = (found[name].agreement.value for name in (ranked[0], ranked[-1]))
    useful = [name for name in ranked if found[name].agreement.value >= _DESTROYED]
    return Table(
        "copies",
        f"How often a copy of the model says what the model says, greedily: {positions} positions "
        f"of {text}",
        (
            Column("copy in"),
            Column("bits a weight", spec=".4g"),
            Column("acceptance", spec=".3f"),
            Column("right guesses"),
        ),
        rows,
        f"{ranked[0]} is right {best:.1%} of the time, {ranked[-1]} {worst:.1%}. "
        + (
            f"Right at least every second time: {', '.join(useful)}."
            if useful
            else "No copy is right every second time."
        ),
        Expectation(
            "acceptance is agreement: INT8 by rows is right most often, INT4 with one scale a "
            "matrix least",
            (ranked[0], ranked[-1]) == ("INT8_ROW", "INT4_TENSOR") if len(ranked) > 1 else None,
        ),
        notes=("intervals are of 95%, windows drawn again", *notes),
        plots=(Plot("points", "bits a weight", ("acceptance",), labels="copy in"),),
    )


def drawn_table(found: dict[str, Acceptances]) -> Table:
    """Acceptance at a temperature by both rules, beside what bounds them."""
    ranked = sorted(found, key=lambda name: float(found[name].variation.mean()))
    rows: list[Row] = []
    inside = True
    for name in ranked:
        each = found[name]
        least, most = each.bounds
        shared = estimate(each.shared.mean(axis=1))
        ruled = estimate(each.ruled.mean(axis=1))
        # Of what never happened in n draws a chance of 3 / n is possible (95 %).
        unseen = 3 / each.shared.size
        inside &= shared.high + unseen >= least and shared.low - unseen <= most
        inside &= ruled.low <= most <= ruled.high or abs(ruled.value - most) < 0.02
        rows.append((name, 1 - most, least, _interval(shared), most, _interval(ruled)))
    lost = [found[name].bounds[1] - float(found[name].shared.mean()) for name in ranked]
    return Table(
        "drawn",
        f"The same at temperature {TEMPERATURE}: guesses drawn with the model's own noise, and the "
        "Leviathan rule",
        (
            Column("copy in"),
            Column("total variation", spec=".3f"),
            Column("(1 - TV) / (1 + TV)", spec=".3f"),
            Column("acceptance with shared noise", spec=".3f"),
            Column("1 - TV", spec=".3f"),
            Column("acceptance by Leviathan's rule", spec=".3f"),
        ),
        tuple(rows),
        f"That a seed keeps its text costs from {min(lost):.1%} to {max(lost):.1%} of guesses "
        "against the rule that keeps the distribution alone.",
        Expectation(
            "with shared noise between (1 - TV) / (1 + TV) and 1 - TV, by Leviathan's rule 1 - TV",
            inside,
        ),
        notes=("intervals are of 95%, windows drawn again",),
    )


def _bits(model: Model) -> float:
    bits = weights = 0.0
    for name, declared in model.program.weights.items():
        if len(declared.shape) == 2:
            size = declared.shape[0] * declared.shape[1]
            bits += bits_per_weight(model.formats[name], declared.shape) * size
            weights += size
    return bits / weights


def _interval(estimated: Estimate) -> Interval:
    return Interval(estimated.value, estimated.low, estimated.high)
