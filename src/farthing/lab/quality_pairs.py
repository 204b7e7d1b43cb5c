"""Formats against each other: what a finer scale, or better levels, gains; what activations add."""

from __future__ import annotations

from typing import TYPE_CHECKING

from farthing.lab.quality_trial import SIGNIFICANT, as_interval
from farthing.lab.table import Column, Expectation, Row, Table
from farthing.quality.comparison import compare_measurements
from farthing.quality.significance import holm

if TYPE_CHECKING:
    from farthing.lab.quality_trial import Trial
    from farthing.quality.comparison import Comparison

PAIRS = (
    ("INT8_TENSOR", "INT8_ROW", "a scale a row"),
    ("INT4_TENSOR", "INT4_ROW", "a scale a row"),
    ("INT4_ROW", "INT4_G128", "groups"),
    ("INT4_G128", "INT4_G64", "block size"),
    ("INT4_G64", "INT4_G32", "block size"),
    ("NF4_B128", "NF4_B64", "block size"),
    ("INT4_G128", "NF4_B128", "level placement"),
    ("INT4_G64", "NF4_B64", "level placement"),
    ("INT4_G128", "NF4_B64", "both"),
    ("Q4_0", "Q4_K", "searched scales"),
)
"""The second is expected to diverge less from the reference than the first."""


def pairs_table(trial: Trial, notes: tuple[str, ...]) -> Table:
    """The second format of each pair against the first, paired by window."""
    copies = trial.copies
    pairs = [pair for pair in PAIRS if pair[0] in copies and pair[1] in copies]
    found = [
        compare_measurements(copies[first].measurement, copies[second].measurement)
        for first, second, _ in pairs
    ]
    kl_p = holm([each.kl_p_value for each in found])
    perplexity_p = holm([each.perplexity_p_value for each in found])
    rows: list[Row] = []
    words = []
    for pair, each, of_kl, of_perplexity in zip(pairs, found, kl_p, perplexity_p, strict=True):
        word = _diverges(each, of_kl)
        words.append(word)
        rows.append(
            (
                f"{pair[1]} for {pair[0]}",
                pair[2],
                as_interval(each.kl),
                of_kl,
                word,
                as_interval(each.perplexity_ratio),
                of_perplexity,
                _differs(each, of_perplexity),
            )
        )
    contrary = [
        f"contradicted: {row[0]}, {word}: {_why(pair, notes)}"
        for pair, row, word in zip(pairs, rows, words, strict=True)
        if word != "closer"
    ]
    return Table(
        "pairs",
        "One format for another, paired by window: block size and level placement told apart",
        (
            Column("one for another"),
            Column("what differs"),
            Column("KL divergence, change", "nats", ".3g"),
            Column("p of it, corrected", spec=".2g"),
            Column("to the reference it is"),
            Column("perplexity, ratio", "times", ",.4g"),
            Column("p of that, corrected", spec=".2g"),
            Column("perplexity"),
        ),
        tuple(rows),
        _finding(trial),
        Expectation(
            "finer scales diverge less from the reference, and so do NF4's levels at the same "
            "block size",
            not contrary,
        ),
        notes=(*contrary, *notes, f"p corrected for {len(pairs)} pairs (Holm)"),
    )


def _diverges(comparison: Comparison, p_value: float) -> str:
    if not comparison.kl_differs or p_value >= SIGNIFICANT:
        return "no difference"
    return "closer" if comparison.kl.value < 0 else "FURTHER"


def _differs(comparison: Comparison, p_value: float) -> str:
    if not comparison.perplexity_differs or p_value >= SIGNIFICANT:
        return "no difference"
    return "lower" if comparison.perplexity_ratio.value < 1 else "HIGHER"


def _finding(trial: Trial) -> str:
    def less(first: str, second: str) -> str:
        divergence = [trial.copies[name].measurement.kl.mean.value for name in (first, second)]
        change = 1 - divergence[1] / divergence[0] if divergence[0] else 0.0
        return f"{change:.0%} less" if change >= 0 else f"{-change:.0%} MORE"

    return (
        f"Block size: INT4 in groups of 64 diverges {less('INT4_G128', 'INT4_G64')} than in "
        f"groups of 128. Level placement: NF4 in blocks of 64 {less('INT4_G64', 'NF4_B64')} than "
        f"INT4 in groups of 64, and in blocks of 128 {less('INT4_G128', 'NF4_B128')} than INT4 in "
        "groups of 128."
    )


def _why(pair: tuple[str, str, str], notes: tuple[str, ...]) -> str:
    """What can be said of a pair that came out otherwise than expected."""
    if notes:
        return "the weights were on another format's grid before, which one may fit by chance"
    return "no reason was found in these numbers: measure more text, or look at `error`"
