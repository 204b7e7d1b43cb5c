"""farthing quantize: write a model again in another format."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from farthing.cli.options import add_model

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping
    from pathlib import Path

    from farthing.forge.quantize import QuantizeReport, Share

_DESCRIPTION = """\
Store every matrix of a model in one scheme, the embedding and the head included. Norms and biases
stay as they are. A GGUF file becomes a GGUF file where GGUF has the scheme; everything else becomes
a folder of safetensors, which all commands take as MODEL."""

_EXAMPLES = """
examples:
  farthing quantize folder-of-safetensors smaller --scheme int4-g128
  farthing quantize model-bf16.gguf model-q4_0.gguf --scheme q4_0 --embedding q8_0
  farthing quantize smollm2-135m smollm2-nf4 --scheme nf4-b64 --json
"""

_KEEP = "keep"


def configure(parser: argparse.ArgumentParser) -> None:
    from farthing.files.formats import STORAGE_FORMATS
    from farthing.quant.formats import WRITABLE_FORMATS

    schemes = {_spelling(name): STORAGE_FORMATS[name].bits for name in WRITABLE_FORMATS}
    parser.description = _DESCRIPTION
    table = "\n".join(f"  {scheme:16}{bits}" for scheme, bits in schemes.items())
    parser.epilog = (
        f"schemes and their bits a weight (K: the length of a row):\n{table}\n{_EXAMPLES}"
    )
    add_model(parser)
    parser.add_argument("out", metavar="OUT", help="the .gguf file or the folder to write")
    parser.add_argument(
        "--scheme", required=True, choices=schemes, metavar="SCHEME", help="see the list below"
    )
    parser.add_argument(
        "--embedding",
        choices=(*schemes, _KEEP),
        metavar="SCHEME",
        help="another scheme for the embedding and the head; keep: as in the source",
    )
    parser.add_argument("--force", action="store_true", help="replace a model that is at OUT")
    parser.add_argument("--json", action="store_true", help="the result as one JSON object")


def run(arguments: argparse.Namespace) -> int:
    from farthing.cli.progress import terminal_progress
    from farthing.files.catalog import resolve
    from farthing.files.checkpoint import open_checkpoint
    from farthing.forge.quantize import quantize

    with terminal_progress(quiet=arguments.json) as progress:
        source = resolve(arguments.model, progress)
        with open_checkpoint(source) as checkpoint:
            report = quantize(
                checkpoint,
                arguments.out,
                _format_name(arguments.scheme),
                embedding=arguments.embedding and _format_name(arguments.embedding),
                force=arguments.force,
                progress=lambda name, done: progress.phase(f"quantise {done:.0%}, {name}"),
            )
    if arguments.json:
        _print_json(report, source, arguments)
    else:
        _print_report(report, source)
    return 0


def _spelling(format_name: str) -> str:
    """INT4_G128 as a person types it, int4-g128; GGUF's names keep their underscore: q4_0."""
    from farthing.files.formats import OWN_FORMATS

    spelled = format_name.lower()
    return spelled.replace("_", "-") if format_name in OWN_FORMATS else spelled


def _format_name(scheme: str) -> str:
    return scheme if scheme == _KEEP else scheme.upper().replace("-", "_")


def _print_json(report: QuantizeReport, source: Path, arguments: argparse.Namespace) -> None:
    import json

    from farthing.lab.facts import facts, model_hash

    everything = {
        # numpy encodes, on one thread, and draws nothing at random.
        **facts(report.model, source, threads=1, isa="numpy"),
        "seed": None,
        "scheme": arguments.scheme,
        "embedding": arguments.embedding or arguments.scheme,
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
        },
    }
    print(json.dumps(everything, indent=2))


def _share_facts(shares: Mapping[str, Share]) -> list[dict[str, Any]]:
    return [
        {
            "format": name,
            "tensors": share.tensors,
            "weights": share.weights,
            "bytes": share.bytes,
            "bits_per_weight": share.bits_per_weight,
        }
        for name, share in shares.items()
    ]


def _print_report(report: QuantizeReport, source: Path) -> None:
    for title, shares, size, path in (
        ("source", report.source_matrices, report.source_bytes, source),
        ("result", report.matrices, report.bytes, report.path),
    ):
        print(f"{title}  {size / 1e6:,.1f} MB  {path}")
        for name, share in shares.items():
            matrices = f"{share.tensors} matri{'ces' if share.tensors > 1 else 'x'}"
            print(
                f"  {name:16}{share.bits_per_weight:8.4f} bits a weight   {matrices}, "
                f"{share.weights / 1e6:,.1f}M weights"
            )
    if report.source_was_rounded:
        print(
            f"warning: the source has {report.source_bits_per_weight:.4g} bits a weight, so its "
            "weights were rounded before and are now rounded again: what this costs says nothing "
            "about the scheme on weights of 16 bits",
            file=sys.stderr,
        )
