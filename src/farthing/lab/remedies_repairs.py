"""The table of what each method repairs, and what was expected of it."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING

from farthing.forge.methods import Method
from farthing.lab.quality_trial import SIGNIFICANT, as_interval
from farthing.lab.remedies_layers import by_part
from farthing.lab.remedies_steps import EIGHT_BITS, REMEDIES, STATIC
from farthing.lab.table import Column, Expectation, Plot, Row, Table
from farthing.quality.comparison import compare_measurements
from farthing.quality.significance import holm

if TYPE_CHECKING:
    from collections.abc import Mapping

    from farthing.forge.calibrate import Calibration
    from farthing.lab.quality_trial import Trial
    from farthing.lab.remedies_layers import LayerErrors
    from farthing.lab.remedies_steps import Remedy
    from farthing.quality.comparison import Comparison

_STATIC_INPUTS = (
    f"{Method.STATIC_INPUTS} gives a product's inputs one scale, fixed by calibration, where as "
    "served each 32 inputs of a token have their own: it is no remedy, but the trouble that three "
    "of them are made for"
)

_UNREPAIRED = 0.95
"""Of an error so much or more is left: the method does not reach it."""

JUSTIFIED = "justified"
HARMFUL = "HARMFUL"
SAME = "no difference"


def repairs_table(
    trial: Trial,
    errors: LayerErrors,
    calibration: Calibration,
    notes: tuple[str, ...],
    *,
    on_a_grid: bool,
) -> Table:
    """Each remedy beside what it is added to, paired by window.

    `on_a_grid`: the reference's weights were quantised before.
    """
    remedies = [
        each for each in REMEDIES if {each.base.name, each.treated.name} <= trial.copies.keys()
    ]
    compared = {each: _comparison(trial, each) for each in remedies}
    p_values = dict(
        zip(remedies, holm([each.kl_p_value for each in compared.values()]), strict=True)
    )
    verdicts = {each: verdict(compared[each], p_values[each]) for each in remedies}
    rows: list[Row] = []
    for remedy in remedies:
        before, after = (trial.copies[each.name] for each in (remedy.base, remedy.treated))
        kl = [each.measurement.kl.mean for each in (before, after)]
        rows.append(
            (
                remedy.treated.name,
                str(remedy.method),
                after.bits_per_weight,
                as_interval(kl[0]),
                as_interval(kl[1]),
                kl[0].value / kl[1].value if kl[1].value else None,
                as_interval(compared[remedy].kl),
                p_values[remedy],
                100 * fmean(errors[remedy.base.name].values()),
                100 * fmean(errors[remedy.treated.name].values()),
                verdicts[remedy],
            )
        )
    expected = [each for each in remedies if each.expected]
    contrary = [
        f"contradicted: {each.treated.name}, {verdicts[each]}: "
        f"{_why(each, trial, errors, on_a_grid)}"
        for each in expected
        if verdicts[each] != JUSTIFIED
    ]
    return Table(
        "repairs",
        "What each method repairs, at the same format, as served",
        (
            Column("stored as"),
            Column("what is added"),
            Column("bits a weight", spec=".4g"),
            Column("KL divergence before", "nats", ".3g"),
            Column("KL divergence", "nats", ".3g"),
            Column("smaller by", "times", ".3g"),
            Column("change, paired", "nats", ".3g"),
            Column("p, corrected", spec=".2g"),
            Column("layer error before", "%", ".2f"),
            Column("layer error", "%", ".2f"),
            Column("found to be"),
        ),
        tuple(rows),
        _finding(trial, verdicts),
        Expectation(
            f"{_listed(expected)} bring the model closer to the reference",
            not contrary if expected else None,
        ),
        notes=(
            *contrary,
            *notes,
            f"{_calibrated(calibration)}; {trial.measured_on}",
            "p by changes of sign, paired by window, corrected (Holm)",
            _STATIC_INPUTS,
        ),
        plots=(
            Plot("bars", "stored as", ("KL divergence before", "KL divergence"), "names", "log"),
        ),
    )


def verdict(comparison: Comparison, p_value: float) -> str:
    """A remedy is justified where the divergence falls by more than the interval, and the test."""
    if not comparison.kl_differs or p_value >= SIGNIFICANT:
        return SAME
    return JUSTIFIED if comparison.kl.value < 0 else HARMFUL


def _calibrated(calibration: Calibration) -> str:
    return f"calibrated with {calibration.tokens:,} tokens of {calibration.name}"


def _comparison(trial: Trial, remedy: Remedy) -> Comparison:
    return compare_measurements(
        trial.copies[remedy.base.name].measurement, trial.copies[remedy.treated.name].measurement
    )


def _finding(trial: Trial, verdicts: Mapping[Remedy, str]) -> str:
    def divergence(name: str) -> float:
        return trial.copies[name].measurement.kl.mean.value

    told = []
    for remedy, word in verdicts.items():
        if remedy.method is Method.STATIC_INPUTS:
            continue
        before, after = divergence(remedy.base.name), divergence(remedy.treated.name)
        told.append(f"{remedy.treated.name} {word} (from {before:.3g} to {after:.3g})")
    return (
        f"KL divergence in nats: {'; '.join(told)}. One scale for all inputs of a product costs "
        f"{divergence(STATIC.name):.3g} nats where a scale for each 32, as served, costs "
        f"{divergence(EIGHT_BITS.name):.3g}."
    )


def _listed(remedies: list[Remedy]) -> str:
    return ", ".join(remedy.treated.name for remedy in remedies)


def _why(remedy: Remedy, trial: Trial, errors: LayerErrors, on_a_grid: bool) -> str:
    """What the numbers say of why a remedy did not help."""
    before, after = (trial.copies[each.name] for each in (remedy.base, remedy.treated))
    if remedy.method is Method.LLM_INT8 and after.bits_per_weight == before.bits_per_weight:
        return "no input reaches 6 in calibration, so no column is kept apart"
    first, second = (by_part(errors[each.name]) for each in (remedy.base, remedy.treated))
    most = max(second, key=lambda part: second[part])
    if second[most] >= _UNREPAIRED * first[most]:
        grid = "; the weights leave the grid that they were stored on" if on_a_grid else ""
        return (
            f"of a layer's products `{most}` errs most, {first[most]:.2%} before and "
            f"{second[most]:.2%} with it{grid}"
        )
    return (
        f"single products err less, {fmean(second.values()):.2%} for {fmean(first.values()):.2%}, "
        "but what they do to each other adds up otherwise"
    )
