"""What rounding activations adds to what rounding weights costs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from farthing.lab.quality_trial import AS_STORED, as_interval, weights_only
from farthing.lab.table import Column, Expectation, Row, Table
from farthing.quality.comparison import compare_measurements

if TYPE_CHECKING:
    from farthing.lab.quality_trial import Trial

PART = 0.1
"""A share of what is lost that counts."""


def activations_table(trial: Trial, notes: tuple[str, ...]) -> Table:
    """The copies that were measured twice. The model as it is stored loses by activations alone."""
    stored = as_interval(trial.copies[AS_STORED].measurement.kl.mean)
    rows: list[Row] = [(AS_STORED, 0.0, stored, stored, 100.0 if stored.middle else None, "more")]
    shares = {}
    for name, copy in trial.served.items():
        exact = trial.copies.get(weights_only(name))
        if exact is None:
            continue
        served = copy.measurement
        added = compare_measurements(exact.measurement, served).kl
        same = added.low <= 0 <= added.high
        # What nobody can tell from nothing is no share of anything.
        shares[name] = 0.0 if same else added.value / served.kl.mean.value
        rows.append(
            (
                name,
                as_interval(exact.measurement.kl.mean),
                as_interval(served.kl.mean),
                as_interval(added),
                None if same else 100 * shares[name],
                "no difference" if same else "more" if added.value > 0 else "LESS",
            )
        )
    eight, four = shares["INT8_ROW"], shares["INT4_G128"]
    return Table(
        "activations",
        "KL divergence by weights alone, and as served: activations and cache are rounded, too",
        (
            Column("format"),
            Column("weights only", "nats", ".3g"),
            Column("as served", "nats", ".3g"),
            Column("added, paired", "nats", ".3g"),
            Column("share of what is lost", "%", ".1f"),
            Column("as served it is"),
        ),
        tuple(rows),
        f"Of what INT8 per row loses as served, rounded activations are {_told(eight)}; of what "
        f"INT4 in groups of 128 loses, {_told(four)}.",
        Expectation(
            f"beside 8-bit weights rounded activations are {PART:.0%} or more of what is lost, and "
            "beside 4-bit weights less",
            eight >= PART > four,
        ),
        notes=notes,
    )


def _told(share: float) -> str:
    return f"{share:.1%}" if share else "nothing that can be measured"
