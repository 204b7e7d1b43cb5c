"""farthing tune: the settings that serve a load within an objective here, found by measuring."""

from __future__ import annotations

import shlex
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from farthing.cli.config import DEFAULT_SOURCE, FILE_NAME
from farthing.cli.plan_options import listed
from farthing.cli.process import say
from farthing.cli.tune_options import OUTPUT_TOKENS, PROMPT_TOKENS
from farthing.cli.tune_options import configure as _configure
from farthing.core import ActivationMode, DoesNotFitError, FarthingError, KVDtype, RequestError
from farthing.lab.tune_gate import USUAL_GATE

if TYPE_CHECKING:
    import argparse

    from farthing.cli.tune_report import Report
    from farthing.engine.load import LoadProgress
    from farthing.files.checkpoint import Checkpoint
    from farthing.lab.tune_choose import Usual
    from farthing.lab.tune_points import Load
    from farthing.lab.tune_variants import Variant
    from farthing.models.load import Model
    from farthing.plan.objective import Objective

configure = _configure


def run(arguments: argparse.Namespace) -> int:
    from farthing.cli.progress import terminal_progress
    from farthing.cli.tune_file import merged, read_file, write_file
    from farthing.cli.tune_json import print_json
    from farthing.cli.tune_report import evidence, print_tables, settings_of
    from farthing.plan.objective import objective

    _refuse_contradictions(arguments)
    wanted = objective(arguments.slo)
    output = Path(arguments.output or FILE_NAME)
    text = ""
    if not arguments.dry_run:
        # What would be refused in the end is refused before anything is measured.
        text = read_file(output)
        merged(text, _expected(arguments, wanted), [], str(output), force=arguments.force)
    try:
        with terminal_progress() as progress:
            report = _tuned(arguments, wanted, progress)
    except (KeyboardInterrupt, SystemExit):
        say("what was measured is kept: the same command goes on from there within a day")
        raise
    if not arguments.dry_run:
        report.profiles = _stored(report)
        if report.tuning.choice.best is not None:
            settings = settings_of(report)
            text = merged(text, settings, evidence(report), str(output), force=arguments.force)
            write_file(output, text)
            report.written = str(output)
    (print_json if arguments.json else print_tables)(report)
    return 0 if report.tuning.choice.best is not None else DoesNotFitError.exit_code


def _expected(arguments: argparse.Namespace, wanted: Objective) -> dict[str, object]:
    """The settings that will be written, as far as they are known."""
    from farthing.cli.tune_report import settings_as

    unknown = "found by measuring"
    return settings_as(
        model=unknown if arguments.candidates else arguments.model,
        slots=unknown,
        cache_tokens=unknown,
        kv_dtype=unknown,
        threads=unknown,
        step_seconds=unknown,
        activations=arguments.activations,
        most_wait_seconds=wanted.ttft,
    )


def _stored(report: Report) -> list[str]:
    from farthing.lab.tune import store_profiles

    try:
        return store_profiles(report.tuning)
    except FarthingError as error:
        say(f"warning: the profiles are not stored: {error}")
        return []


def _refuse_contradictions(arguments: argparse.Namespace) -> None:
    """Raises `RequestError` for flags that ask for different things."""
    if arguments.lengths is not None:
        for name in ("prompt_tokens", "output_tokens"):
            if getattr(arguments, name) is not None:
                flag = f"--{name.replace('_', '-')}"
                raise RequestError(f"--lengths says how long texts are: leave out {flag}")
    if arguments.dry_run:
        for flag, given in (("--output", arguments.output), ("--force", arguments.force)):
            if given:
                raise RequestError(f"--dry-run writes nothing: leave out {flag}, or --dry-run")
    if arguments.quality is not None and not arguments.candidates:
        raise RequestError("--quality is what --candidates may lose: give some, or leave it out")


def _tuned(arguments: argparse.Namespace, wanted: Objective, progress: LoadProgress) -> Report:
    from farthing.cli.tune_report import Report
    from farthing.cli.tune_server import measure_server
    from farthing.files.catalog import resolve
    from farthing.lab.tune import Wish, tune
    from farthing.lab.tune_gate import Reference, gate
    from farthing.lab.tune_variants import make_variants, require_context
    from farthing.models.load import load_model
    from farthing.plan.machine import available_memory
    from farthing.text.load import load_tokenizer

    limits = gate(arguments.quality or USUAL_GATE)
    kv_dtypes, threads = _kv_dtypes(arguments), _threads(arguments)
    mode = None if arguments.activations is None else ActivationMode(arguments.activations)
    refused: list[str] = []
    with ExitStack() as stack:
        progress.phase("find")
        path = resolve(arguments.model, progress)
        progress.phase("open")
        checkpoint = _opened(path, stack)
        model = load_model(checkpoint)
        load = _load(arguments, model)
        if wanted.ttft is None and all(answer == 1 for _, answer in load.lengths):
            raise RequestError(
                "--slo asks how fast answers go on, and all have a single token: give more "
                "--output-tokens, or a ttft"
            )
        models = [(arguments.model, model)]
        reference = None
        for name in arguments.candidates:
            progress.phase(f"the receipt of {name}")
            other = _opened(resolve(name, progress), stack)
            reference = reference or Reference(checkpoint)
            if why := reference.refusal(other, limits):
                refused.append(f"{name} is not chosen among: {why}")
            else:
                models.append((name, load_model(other)))
        for _, each in models:
            require_context(load, each.config.context_length)
        variants = make_variants(models, kv_dtypes, threads, mode)
        wish = Wish(
            load,
            wanted,
            arguments.margin / 100,
            arguments.seconds,
            arguments.seed,
            arguments.price_per_hour,
            usual_of(variants[0], load),
        )
        tuning = tune(
            variants,
            load_tokenizer(checkpoint),
            wish,
            server=measure_server,
            room=available_memory(),
            progress=progress.phase,
        )
        left_out = [*refused, *tuning.left_out]
        return Report(tuning, wish, arguments.model, path, _command(arguments), left_out)


def usual_of(variant: Variant, load: Load) -> Usual | None:
    """What a server does that is told nothing but how `variant` runs; None where that finds no
    memory.
    """
    from farthing.lab.tune_choose import Usual
    from farthing.lab.tune_variants import needed_tokens
    from farthing.plan.grid import largest
    from farthing.plan.memory import DRAFT_ROWS
    from farthing.serve.admission import objective_of
    from farthing.serve.settings import Settings
    from farthing.serve.sizing import choose_sizes

    sizes = choose_sizes(
        variant.model,
        kv_dtype=variant.kv_dtype,
        activations=variant.activations,
        threads=variant.threads,
        draft_rows=DRAFT_ROWS,
    )
    if not sizes.fits:
        return None
    slots, tokens = sizes.plan.slots, sizes.plan.cache_tokens
    texts = largest(lambda texts: needed_tokens(load, texts) <= tokens, min(slots, load.users))
    step_seconds = objective_of(Settings()).latency_target
    return Usual(variant.name, slots, step_seconds, texts, tokens)


def _opened(path: Path, stack: ExitStack) -> Checkpoint:
    """The checkpoint, closed with the stack."""
    from farthing.files.checkpoint import open_checkpoint

    checkpoint = open_checkpoint(path)
    stack.push(checkpoint)
    return checkpoint


def _load(arguments: argparse.Namespace, model: Model) -> Load:
    from farthing.lab.tune_points import Load
    from farthing.plan.traffic import read_lengths

    if arguments.lengths is not None:
        return Load(arguments.users, tuple(read_lengths(Path(arguments.lengths))))
    most = model.config.context_length
    prompt = arguments.prompt_tokens or max(1, min(PROMPT_TOKENS, most // 2))
    output = arguments.output_tokens or max(1, min(OUTPUT_TOKENS, most // 4))
    return Load(arguments.users, ((prompt, output),))


def _kv_dtypes(arguments: argparse.Namespace) -> list[KVDtype]:
    from farthing.cli.plan_question import kv_dtypes_of

    return kv_dtypes_of(arguments)


def _threads(arguments: argparse.Namespace) -> list[int]:
    from farthing.plan.machine import usable_cores

    cores = usable_cores()
    wanted = listed(arguments.threads) or (cores, max(1, cores // 2))
    if max(wanted) > cores:
        raise RequestError(
            f"--threads {max(wanted)} is more than the {cores} cores that this process may use"
        )
    return list(dict.fromkeys(wanted))


def _command(arguments: argparse.Namespace) -> str:
    """The command as it could be typed again."""
    words = ["farthing", "tune", arguments.model]
    for name, source in arguments.sources.items():
        value = getattr(arguments, name)
        if source == DEFAULT_SOURCE or name == "model" or value is False:
            continue
        for each in value if isinstance(value, list) else [value]:
            words.append(f"--{name.replace('_', '-')}")
            if each is not True:
                words.append(",".join(map(str, each)) if isinstance(each, tuple) else str(each))
    return shlex.join(words)
