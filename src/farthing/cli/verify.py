"""farthing verify: the exactness contract, checked on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from farthing.cli.options import add_model, positive, whole
from farthing.core import CheckFailedError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator
    from pathlib import Path

    from farthing.core import KVDtype
    from farthing.engine.load import LoadProgress
    from farthing.lab.verify import BreakableBackend, Check

_DESCRIPTION = """\
Make one text in many ways (recomputed at each step, cached, in chunks, among neighbours, with other
threads; greedy and sampled; every type of cache) and compare tokens and logits bit by bit. Then
break the cache and the arithmetic on purpose: the checks must notice. Exit code 1 if one fails."""

_EPILOG = """\
examples:
  farthing verify smollm2-135m
  farthing verify model.gguf --tokens 16 --json
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = _DESCRIPTION
    parser.epilog = _EPILOG
    add_model(parser)
    parser.add_argument(
        "--tokens",
        type=_tokens,
        default=4,
        metavar="N",
        help="how many tokens are made each way (default 4, at least 3)",
    )
    parser.add_argument("--threads", type=positive, metavar="N", help="default: all usable cores")
    parser.add_argument("--json", action="store_true", help="the checks as one JSON object")


def run(arguments: argparse.Namespace) -> int:
    from farthing.cli.progress import terminal_progress

    with terminal_progress() as progress:
        subject = _Subject(arguments.model, arguments.tokens, arguments.threads, progress)
        checks = []
        for check in subject.checks():
            checks.append(check)
            progress.phase(f"done: {check.kv_dtype.value}, {check.name}")
    failed = sum(not check.passed for check in checks)
    if arguments.json:
        _print_json(subject, checks)
    else:
        _print_table(subject, checks)
    if failed:
        raise CheckFailedError(f"{failed} of {len(checks)} checks failed on this machine")
    return 0


def _tokens(text: str) -> int:
    import argparse

    number = whole(text)
    if not 3 <= number <= 1000:
        raise argparse.ArgumentTypeError(f"must be from 3 to 1000, not {number}")
    return number


class _Subject:
    """The model under test; makes a native backend for each way it is to run."""

    def __init__(
        self, model: str, tokens: int, threads: int | None, progress: LoadProgress
    ) -> None:
        from farthing.files.catalog import resolve
        from farthing.files.checkpoint import open_checkpoint
        from farthing.lab.passage import PASSAGE
        from farthing.lab.verify import prompt_of
        from farthing.models.load import load_model
        from farthing.plan.machine import usable_cores
        from farthing.text.load import load_tokenizer

        self.tokens = tokens
        self.threads = usable_cores() if threads is None else threads
        self.isa = ""
        progress.phase("find")
        self.path: Path = resolve(model, progress)
        progress.phase("open")
        checkpoint = open_checkpoint(self.path)
        self.model = load_model(checkpoint)
        self.prompt = prompt_of(load_tokenizer(checkpoint).encode(PASSAGE))

    def checks(self) -> Iterator[Check]:
        """Runs the checks, yielding each as soon as it is known."""
        from farthing.lab.verify import verify
        from farthing.plan.memory import kv_dtypes

        able = kv_dtypes(self.model.program)
        return verify(self.make_backend, self.prompt, self.tokens, self.threads, able)

    def make_backend(self, kv_dtype: KVDtype, threads: int) -> BreakableBackend:
        """A native backend with room for the text and its neighbours."""
        from farthing.backends.native import NativeBackend
        from farthing.lab.verify import SEQUENCES
        from farthing.plan.memory import plan_memory

        plan = plan_memory(
            self.model,
            context_length=len(self.prompt) + self.tokens,
            sequences=SEQUENCES,
            kv_dtype=kv_dtype,
            threads=threads,
        )
        backend = NativeBackend(self.model, plan)
        self.isa = backend.tier
        return backend


def _print_json(subject: _Subject, checks: list[Check]) -> None:
    import json
    from dataclasses import asdict

    from farthing.lab.facts import facts
    from farthing.lab.verify import SAMPLED

    everything = {
        **facts(subject.model.name, subject.path, subject.threads, subject.isa),
        "seed": SAMPLED.seed,
        "prompt_tokens": len(subject.prompt),
        "tokens": subject.tokens,
        "passed": all(check.passed for check in checks),
        "checks": [{**asdict(check), "kv_dtype": check.kv_dtype.value} for check in checks],
    }
    print(json.dumps(everything, indent=2))


def _print_table(subject: _Subject, checks: list[Check]) -> None:
    from rich.table import Table

    from farthing.cli.terminal import visible, write_table

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("cache")
    table.add_column("check")
    table.add_column("reference", justify="right")
    table.add_column("this way", justify="right")
    table.add_column("verdict")
    shown = None
    for check in checks:
        table.add_row(
            check.kv_dtype.value if shown != check.kv_dtype else "",
            check.name,
            f"{check.reference_seconds:.2f} s",
            f"{check.seconds:.2f} s",
            _verdict(check),
        )
        shown = check.kv_dtype
    threads = f"{subject.threads} thread{'s' if subject.threads > 1 else ''}"
    text = f"{len(subject.prompt)} prompt tokens and {subject.tokens} more, greedy and sampled"
    print(f"{visible(subject.model.name)}: {text}, {subject.isa}, {threads}")
    write_table(table)
    for check in checks:
        if not check.passed or check.fault:
            print(f"{check.kv_dtype.value}, {check.name}: {check.detail}")


def _verdict(check: Check) -> str:
    """What the table says; a fault passes when it is noticed."""
    if check.fault:
        return "[green]noticed[/]" if check.passed else "[red bold]NOT NOTICED[/]"
    return "[green]identical[/]" if check.passed else "[red bold]DIFFERENT[/]"
