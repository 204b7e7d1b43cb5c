"""farthing lab: what the engine rests on, measured on a person's own model and machine."""

from __future__ import annotations

import argparse
import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from farthing.cli.options import add_backend_options, checked_text, positive, seed
from farthing.core import ActivationMode, KVDtype, RequestError

if TYPE_CHECKING:
    from farthing.engine.load import LoadProgress
    from farthing.lab.table import Section

_DESCRIPTION = """\
Measure what the key-value cache, batching and quantisation do, on this model and this machine. Each
TABLE is one section of measurements; under every table stands what was found, made from its
numbers, and what was expected. Without TABLE, the tables are listed."""

_EPILOG = """\
examples:
  farthing lab
  farthing lab cache smollm2-135m
  farthing lab error float --json
"""

_MOST_TEXT_BYTES = 64 << 20


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = _DESCRIPTION
    parser.epilog = _EPILOG
    parser.add_argument("table", metavar="TABLE", nargs="?", help="which measurements")
    parser.add_argument(
        "model",
        metavar="MODEL",
        nargs="?",
        help="a .gguf file, a folder of safetensors, a hub id or a catalog name (smollm2-135m)",
    )
    parser.add_argument(
        "--rounds",
        type=positive,
        default=3,
        metavar="N",
        help="how often whatever is timed is timed (default 3)",
    )
    parser.add_argument(
        "--seed", type=seed, default=0, metavar="N", help="of all that is random (default 0)"
    )
    parser.add_argument(
        "--text", metavar="FILE", help="read this text instead of the laboratory's own"
    )
    parser.add_argument(
        "--matrix", metavar="NAME", help="the weight that `matrix` looks at, like layers.0.down"
    )
    add_backend_options(parser)
    parser.add_argument("--json", action="store_true", help="everything as one JSON object")


def run(arguments: argparse.Namespace) -> int:
    from farthing.cli.lab_report import print_section
    from farthing.cli.progress import terminal_progress
    from farthing.lab.sections import SECTIONS

    if arguments.table is None:
        _list(SECTIONS, arguments.json)
        return 0
    if arguments.table not in SECTIONS:
        raise RequestError(
            f"there is no table {arguments.table!r:.60}: take one of {', '.join(SECTIONS)}"
        )
    if arguments.model is None:
        raise RequestError(
            f"say of which model: farthing lab {arguments.table} MODEL; smollm2-135m is a good "
            "first one"
        )
    with terminal_progress(quiet=arguments.json) as progress:
        section = _measure(arguments, progress)
    if arguments.json:
        print(json.dumps(section.as_json()))
    else:
        print_section(section)
    return 0


def _list(sections: dict[str, str], as_json: bool) -> None:
    if as_json:
        print(json.dumps(sections))
        return
    width = max(map(len, sections))
    for name, about in sections.items():
        print(f"{name:{width}}  {about}")
    print("\nfarthing lab TABLE MODEL measures one of them")


def _measure(arguments: argparse.Namespace, progress: LoadProgress) -> Section:
    from farthing.lab.sections import measure_section
    from farthing.lab.subject import Subject

    subject = Subject(
        arguments.model,
        progress=progress,
        threads=arguments.threads,
        kv_dtype=KVDtype(arguments.kv_dtype),
        activations=None
        if arguments.activations is None
        else ActivationMode(arguments.activations),
        rounds=arguments.rounds,
        seed=arguments.seed,
        text=_text(arguments.text),
        matrix=None if arguments.matrix is None else checked_text(arguments.matrix, "--matrix"),
    )
    return measure_section(arguments.table, subject, _command(arguments))


def _text(path: str | None) -> str | None:
    from farthing.files.text_files import read_text

    return None if path is None else read_text(Path(path), _MOST_TEXT_BYTES, f"--text {path}")


def _command(arguments: argparse.Namespace) -> str:
    """What a person types to get the section again, with every setting that matters."""
    parts = ["farthing", "lab", arguments.table, arguments.model]
    for name in ("rounds", "seed", "threads", "kv_dtype", "activations", "text", "matrix"):
        value = getattr(arguments, name)
        if value is not None:
            parts += [f"--{name.replace('_', '-')}", str(value)]
    return shlex.join(parts)
