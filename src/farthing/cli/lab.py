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
    from farthing.lab.subject import Subject

_DESCRIPTION = """\
Measure what the key-value cache, batching and quantisation do, on this model and this machine. Each
TABLE is one section of measurements; under every table stands what was found, made from its
numbers, and what was expected. Without TABLE, the tables are listed. `all` measures every one of
them: what is finished is kept, so the same command goes on after an interruption, and what fails is
told while the rest goes on. `compare` sets what two runs printed with --json side by side."""

_EPILOG = """\
examples:
  farthing lab
  farthing lab cache smollm2-135m
  farthing lab error float --json
  farthing lab all smollm2-135m --html report.html
  farthing lab all smollm2-135m --json > today.json
  farthing lab compare yesterday.json today.json
"""

ALL, COMPARE = "all", "compare"
"""In place of a table."""

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
    parser.add_argument("other", metavar="OTHER", nargs="?", help=argparse.SUPPRESS)
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
        "--text",
        metavar="FILE",
        help="read this text instead of the laboratory's own, in the tables that read one",
    )
    parser.add_argument(
        "--matrix", metavar="NAME", help="the weight that `matrix` looks at, like layers.0.down"
    )
    parser.add_argument(
        "--prompts",
        metavar="FILE",
        help="what `speculation` decodes instead of its own prompts: one a line, or a batch as "
        "farthing run --file takes it",
    )
    parser.add_argument(
        "--draft", metavar="MODEL", help="a smaller model that guesses, too, in `speculation`"
    )
    parser.add_argument(
        "--student", metavar="MODEL", help="what `distillation` compares with MODEL, its teacher"
    )
    add_backend_options(parser)
    parser.add_argument(
        "--html", metavar="FILE", help="write a page with tables and plots that needs nothing else"
    )
    parser.add_argument(
        "--fresh", action="store_true", help="with `all`: measure what is finished once more"
    )
    parser.add_argument("--json", action="store_true", help="everything as one JSON object")


def run(arguments: argparse.Namespace) -> int:
    from farthing.lab.sections import SECTIONS

    if arguments.table in (None, COMPARE, *SECTIONS):
        _refuse_what_is_not_taken(arguments)
    if arguments.table is None:
        _list(SECTIONS, arguments.json)
        return 0
    if arguments.fresh and arguments.table != ALL:
        raise RequestError("--fresh goes with `all` alone: a single table is always measured anew")
    if arguments.table == COMPARE:
        return _compare(arguments)
    if arguments.table not in (ALL, *SECTIONS):
        raise RequestError(
            f"there is no table {arguments.table!r:.60}: take one of {', '.join(SECTIONS)}, or all"
        )
    if arguments.model is None:
        raise RequestError(
            f"say of which model: farthing lab {arguments.table} MODEL; smollm2-135m is a good "
            "first one"
        )
    if arguments.other is not None:
        raise RequestError(
            f"{arguments.other!r:.60} is too much: farthing lab {arguments.table} takes one MODEL"
        )
    return _measure(arguments)


def _refuse_what_is_not_taken(arguments: argparse.Namespace) -> None:
    """Nobody should take for looked at what their table never sees."""
    from farthing.lab.sections import TAKEN_BY

    for name, takers in TAKEN_BY.items():
        if getattr(arguments, name) is not None and arguments.table not in takers:
            here = "the list of tables" if arguments.table is None else f"`{arguments.table}`"
            raise RequestError(
                f"--{name} is nothing to {here}: leave it out, or take {', '.join(takers)} or {ALL}"
            )


def _compare(arguments: argparse.Namespace) -> int:
    from farthing.cli.lab_compare import run_compare

    if arguments.other is None:
        raise RequestError(
            "say which two reports: farthing lab compare A.json B.json (from farthing lab all "
            "MODEL --json)"
        )
    if arguments.html is not None:
        raise RequestError("--html shows what is measured, and `compare` measures nothing")
    return run_compare(
        checked_text(arguments.model, "A.json"),
        checked_text(arguments.other, "B.json"),
        as_json=arguments.json,
    )


def _list(sections: dict[str, str], as_json: bool) -> None:
    if as_json:
        print(json.dumps(sections))
        return
    width = max(map(len, sections))
    for name, about in sections.items():
        print(f"{name:{width}}  {about}")
    print("\nfarthing lab TABLE MODEL measures one of them, farthing lab all MODEL every one")


def _measure(arguments: argparse.Namespace) -> int:
    from farthing.cli.lab_all import measured, print_all, write_page
    from farthing.cli.lab_report import print_section
    from farthing.cli.output_file import output_file
    from farthing.cli.progress import terminal_progress
    from farthing.cli.threads import warn_of_threads
    from farthing.lab.report.contents import Report
    from farthing.lab.report.work import now
    from farthing.lab.sections import measure_section

    warn_of_threads(arguments.threads)
    page = None if arguments.html is None else output_file(arguments.html, "--html")

    def command_of(name: str) -> str:
        return _command(arguments, name)

    if arguments.table == ALL:
        with terminal_progress() as progress:
            report = measured(
                arguments.fresh, page, lambda: _subject(arguments, progress), command_of
            )
        return print_all(report, as_json=arguments.json, short=page is not None)
    with terminal_progress() as progress:
        started = now()
        subject = _subject(arguments, progress)
        progress.phase(f"measuring {arguments.table}")
        section = measure_section(arguments.table, subject, command_of(arguments.table))
    report = Report(
        section.provenance, section.command, section.seed, started, now(), (section,)
    ).widened()
    [section] = report.sections
    if page is not None:
        write_page(report, page)
    if arguments.json:
        print(json.dumps(section.as_json()))
    else:
        print_section(section)
    return 0 if section.tables else 1


def _subject(arguments: argparse.Namespace, progress: LoadProgress) -> Subject:
    from farthing.cli.lab_prompts import read_prompts
    from farthing.lab.subject import Subject

    return Subject(
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
        prompts=() if arguments.prompts is None else read_prompts(Path(arguments.prompts)),
        draft=arguments.draft,
        student=arguments.student,
    )


def _text(path: str | None) -> str | None:
    from farthing.files.text_files import read_text

    return None if path is None else read_text(Path(path), _MOST_TEXT_BYTES, f"--text {path}")


def _command(arguments: argparse.Namespace, table: str) -> str:
    """What a person types to get a table again, with every setting that matters."""
    from farthing.lab.sections import TAKEN_BY

    parts = ["farthing", "lab", table, arguments.model]
    taken = [name for name, takers in TAKEN_BY.items() if table in (ALL, *takers)]
    for name in ("rounds", "seed", "threads", "kv_dtype", "activations", *taken):
        value = getattr(arguments, name)
        if value is not None:
            parts += [f"--{name.replace('_', '-')}", str(value)]
    return shlex.join(parts)
