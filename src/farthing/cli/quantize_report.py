"""What farthing quantize tells when it is done: for people, and as JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from farthing.cli.process import say
from farthing.files.formats import spelling
from farthing.files.receipt import to_json
from farthing.forge.methods import Method
from farthing.forge.patterns import short_name
from farthing.forge.schemes import spelled
from farthing.lab.facts import facts, model_hash
from farthing.plan.machine import usable_cores

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from farthing.forge.report import QuantizeReport, Share
    from farthing.forge.wish import Wish

_MOST_NAMES = 4


def print_json(report: QuantizeReport, source: Path, wish: Wish) -> None:
    """One JSON object with everything that is known of the run."""
    calibration = report.calibration
    everything = {
        # Rotations have a fixed seed, and nothing else is drawn at random.
        **facts(report.model, source, threads=usable_cores(), isa="numpy"),
        "seed": 0 if Method.ROTATE in report.methods else None,
        "scheme": spelling(wish.scheme),
        "methods": [str(method) for method in report.methods],
        "calibration": None
        if calibration is None
        else {
            "text": calibration.name,
            "sha256": calibration.sha256,
            "tokens": calibration.tokens,
        },
        "keep": [
            {"pattern": rule.pattern, "scheme": spelled(rule.scheme), "matrices": _names(matched)}
            for rule, matched in report.rules
        ],
        "fallbacks": _names(report.fallbacks),
        "remarks": [*report.remarks],
        "resumed_tensors": report.resumed,
        "source": {
            "bytes": report.source_bytes,
            "bits_per_weight": report.source_bits_per_weight,
            "rounded_before": report.source_was_rounded,
            "matrices": _share_facts(report.source_matrices),
        },
        "result": {
            "path": str(report.path),
            "container": report.container,
            "sha256": model_hash(report.path),
            "bytes": report.bytes,
            "bits_per_weight": report.bits_per_weight,
            "matrices": _share_facts(report.matrices),
            "others": _share_facts(report.others),
            "beside_matrices_bytes": report.beside_bytes,
        },
        "receipt": None if report.receipt is None else json.loads(to_json(report.receipt)),
    }
    print(json.dumps(everything, indent=2))


def print_report(report: QuantizeReport, source: Path) -> None:
    """The formats before and after, and what a person should know of how they came about."""
    for title, found, size, bits, path in (
        (
            "source",
            report.source_matrices,
            report.source_bytes,
            report.source_bits_per_weight,
            source,
        ),
        ("result", report.matrices, report.bytes, report.bits_per_weight, report.path),
    ):
        print(f"{title}  {size / 1e6:,.1f} MB  {bits:.4f} bits a weight  {path}")
        for name, share in found.items():
            matrices = f"{share.tensors} matri{'ces' if share.tensors > 1 else 'x'}"
            print(
                f"  {name:16}{share.bits_per_weight:8.4f} bits a weight   {matrices}, "
                f"{share.weights / 1e6:,.1f}M weights"
            )
    if report.beside_bytes:
        print(f"  beside them     {report.beside_bytes / 1e6:8.3f} MB of input scales and columns")
    for line in _remarks(report):
        print(line)
    if report.receipt is not None:
        print(f"receipt {report.receipt.summary()}")
    if report.source_was_rounded:
        say(
            f"warning: the source has {report.source_bits_per_weight:.4g} bits a weight, so its "
            "weights were rounded before and are now rounded again: what this costs says nothing "
            "about the scheme on weights of 16 bits"
        )
    elif report.receipt is not None:
        for warning in report.receipt.warnings:
            say(f"warning: {warning}")


def _remarks(report: QuantizeReport) -> Iterator[str]:
    for rule, matched in report.rules:
        yield f"keep    {rule.pattern}={spelled(rule.scheme)}: {_listed(matched)}"
    if report.fallbacks:
        yield (
            f"rows    that are no whole blocks of 256 have llama.cpp's next format: "
            f"{_listed(report.fallbacks)}"
        )
    if report.calibration is not None:
        by = ", ".join(report.methods) or "the search for scales"
        calibration = report.calibration
        yield f"text    {calibration.name}, {calibration.tokens:,} tokens, for {by}"
    elif report.methods:
        yield f"method  {', '.join(report.methods)}"
    for remark in report.remarks:
        yield f"note    {remark}"
    if report.resumed:
        yield f"went on from a killed run, which had written {report.resumed:,} tensors"


def _names(weights: Sequence[str]) -> list[str]:
    return [short_name(weight) for weight in weights]


def _listed(weights: Sequence[str]) -> str:
    names = _names(weights)
    if len(names) <= _MOST_NAMES:
        return ", ".join(names)
    return f"{len(names)} matrices, {names[0]} to {names[-1]}"


def _share_facts(found: Mapping[str, Share]) -> list[dict[str, Any]]:
    return [
        {
            "format": name,
            "tensors": share.tensors,
            "weights": share.weights,
            "bytes": share.bytes,
            "bits_per_weight": share.bits_per_weight,
        }
        for name, share in found.items()
    ]
