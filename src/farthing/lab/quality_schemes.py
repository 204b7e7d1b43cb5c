"""The table of what every format costs: perplexity, divergence, agreement and bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from farthing.lab.quality_trial import AS_STORED, SIGNIFICANT, as_interval
from farthing.lab.table import Column, Expectation, Plot, Row, Table
from farthing.quality.significance import holm, sign_flip_test

if TYPE_CHECKING:
    from collections.abc import Callable

    from farthing.files.receipt import Estimate
    from farthing.lab.quality_trial import Trial

DESTROYED = 10
"""A perplexity so many times the reference's, or more: nothing is left of the model."""

_RATIO = "perplexity over the reference's"

_FALLING = ("INT4_TENSOR", "INT4_ROW", "INT4_G128", "NF4_B64")
"""Expected to lose less and less."""


def verdicts(trial: Trial) -> dict[str, tuple[float, str]]:
    """Of each served copy, Holm's p-value of its perplexity, and what it says in a word.

    There is a difference where the ratio's interval leaves out 1 and the corrected test agrees.
    """
    copies = trial.served
    scores = [copy.measurement.scores for copy in copies.values()]
    raw = [sign_flip_test((each.nll - each.reference_nll).mean(axis=1)) for each in scores]
    found = {}
    for (name, copy), p_value in zip(copies.items(), holm(raw), strict=True):
        ratio = copy.measurement.perplexity_ratio
        if ratio.low <= 1 <= ratio.high or p_value >= SIGNIFICANT:
            word = "no difference"
        elif ratio.value >= DESTROYED:
            word = "destroyed"
        else:
            word = "worse" if ratio.value > 1 else "better"
        found[name] = p_value, word
    return found


def schemes_table(trial: Trial, reach: Callable[[], float], notes: tuple[str, ...]) -> Table:
    """Every format. `reach` is asked for where INT4 per tensor did not destroy the model."""
    reference = trial.reference
    judged = verdicts(trial)
    rows: list[Row] = [
        (
            "reference",
            reference.bits_per_weight,
            trial.reference_bytes / 1e6,
            as_interval(reference.perplexity),
            *(None,) * 4,
            "",
        )
    ]
    for name, copy in trial.served.items():
        found = copy.measurement
        rows.append(
            (
                name,
                copy.bits_per_weight,
                copy.bytes / 1e6,
                as_interval(found.candidate.perplexity),
                as_interval(found.perplexity_ratio),
                judged[name][0],
                as_interval(found.kl.mean),
                as_interval(found.agreement, 100),
                judged[name][1],
            )
        )
    expectation, reasons = _expected(trial, judged, reach)
    return Table(
        "schemes",
        "The model in each format, computed as served, beside itself with nothing rounded on the "
        "way",
        (
            Column("format"),
            Column("bits a weight", spec=".4g"),
            Column("size", "MB", ",.1f"),
            Column("perplexity", spec=",.4g"),
            Column(_RATIO, "times", ",.4g"),
            Column("p, corrected", spec=".2g"),
            Column("KL divergence", "nats", ".3g"),
            Column("agreement", "%", ".1f"),
            Column("perplexity differs"),
        ),
        tuple(rows),
        _finding(trial, judged),
        expectation,
        notes=(
            *reasons,
            *notes,
            f"{trial.measured_on}; p by changes of sign, paired by window, corrected (Holm)",
            "all matrices have the format, the embedding too",
            *(
                f"{name}: rows that are no whole blocks of 256 have another format, "
                f"{copy.substitutes}"
                for name, copy in trial.served.items()
                if copy.substitutes
            ),
        ),
        plots=(
            Plot("points", "size", ("KL divergence",), y_scale="log", labels="format"),
            Plot("points", "size", (_RATIO,), y_scale="log", labels="format"),
        ),
    )


def _finding(trial: Trial, judged: dict[str, tuple[float, str]]) -> str:
    copies = trial.served
    told = ", ".join(
        f"{words} {copies[name].measurement.perplexity_ratio.value:,.4g}"
        for name, words in (
            ("INT8_ROW", "INT8 per row"),
            ("INT4_TENSOR", "INT4 per tensor"),
            ("INT4_ROW", "INT4 per row"),
            ("INT4_G128", "INT4 in groups of 128"),
            ("NF4_B64", "NF4 in blocks of 64"),
        )
    )
    same = [name for name, (_, word) in judged.items() if word == "no difference"]
    same = [name for name in same if name != AS_STORED]
    worst = min(copies, key=lambda name: copies[name].measurement.agreement.value)
    sentence = (
        f"Perplexity over the reference's: {told}. {worst} picks the reference's token at "
        f"{copies[worst].measurement.agreement.value:.0%} of positions."
    )
    if not same:
        return f"{sentence} Every format's perplexity differs from the reference's."
    smallest = min(same, key=lambda name: copies[name].bits_per_weight)
    bits = copies[smallest].bits_per_weight
    return (
        f"{sentence} No difference was found for {', '.join(same)}; the smallest of these takes "
        f"{bits:.4g} bits a weight ({smallest})."
    )


def _expected(
    trial: Trial, judged: dict[str, tuple[float, str]], reach: Callable[[], float]
) -> tuple[Expectation, tuple[str, ...]]:
    """What was expected, and for each part that came out otherwise what can be said of why."""
    copies = trial.served
    reasons = []
    if judged["INT8_ROW"][1] != "no difference":
        alone = copies[AS_STORED].measurement.perplexity_ratio
        reasons.append(
            "contradicted: INT8 per row can be told from the reference; its weights as stored, "
            f"whose activations alone are rounded, have {_ratio(alone)} times its perplexity"
        )
    destroyed = copies["INT4_TENSOR"].measurement.perplexity_ratio
    if destroyed.value < DESTROYED:
        reached = reach()
        reasons.append(
            f"contradicted: INT4 per tensor has only {_ratio(destroyed)} times the reference's "
            f"perplexity, since a matrix's largest weight lies {reached:.1f} standard deviations "
            f"out at the median, and a step is {reached / 7:.1f} of them; where one weight in a "
            "matrix lies 24 out, a step is 3.4 and ordinary weights have two or three levels"
        )
    divergence = [copies[name].measurement.kl.mean.value for name in _FALLING]
    if divergence != sorted(divergence, reverse=True):
        order = sorted(_FALLING, key=lambda name: copies[name].measurement.kl.mean.value)
        reasons.append(f"contradicted: from the least divergence up they are {', '.join(order)}")
    return (
        Expectation(
            f"INT8 per row cannot be told from the reference; INT4 per tensor destroys it "
            f"({DESTROYED} times its perplexity or more); per row, in groups of 128 and as NF4 it "
            "loses less and less",
            not reasons,
        ),
        tuple(reasons),
    )


def _ratio(estimate: Estimate) -> str:
    return f"{estimate.value:.4g} ({estimate.low:.4g} to {estimate.high:.4g})"
