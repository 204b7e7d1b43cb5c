"""farthing bench: prefill, decode and batches, beside what the machine could do."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING

from farthing.cli.options import add_backend_options, add_model, positive, seed
from farthing.cli.plan_options import add_price
from farthing.cli.process import say
from farthing.core import SPECULATIONS, ActivationMode, FarthingError, KVDtype

if TYPE_CHECKING:
    from farthing.cli.bench_report import Bench
    from farthing.engine.load import LoadProgress
    from farthing.lab.bench_guessing import GuessedText
    from farthing.lab.bench_points import Points
    from farthing.plan.memory import MemoryPlan

_DESCRIPTION = """\
Measure prompts of many lengths, decoding against many contexts, and many sequences at once, in
rounds. Before each point the machine's own limits are measured too: what memory delivers, what the
dot-product instructions multiply. Every speed is told with its share of these. What was measured is
stored as this model's profile on this machine, by which farthing plan and serve foretell times;
for it, where --decode and --batch are left out, batches over long contexts are measured as well.
With --speculate, four texts are written in turn with tokens guessed ahead and without."""

_EPILOG = """\
POINTS are numbers like 512,4096; none leaves the part out. A point that the model's context cannot
hold is left out of a part that was not given, and said; a given one is an error.

examples:
  farthing bench smollm2-135m
  farthing bench model.gguf --prefill 512,4096 --decode 128 --batch 1,8,32
  farthing bench model.gguf --prefill 512 --decode none --price-per-hour 0.40
  farthing bench model.gguf --prefill none --decode none --batch 1 --speculate ngram
  farthing bench model.gguf --decode 128,8192 --prefill none --batch none --kv-dtype int8 --json
"""

_LARGEST_PYTHON_BATCH = 32


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = _DESCRIPTION
    parser.epilog = _EPILOG
    add_model(parser)
    for flag, what in (
        ("--prefill", "lengths of prompts (default 16 to 4096)"),
        ("--decode", "contexts to generate 128 tokens at (default 16 to 8192)"),
        ("--batch", "numbers of sequences that decode together (default 1 to 64)"),
    ):
        parser.add_argument(flag, type=_points, metavar="POINTS", help=what)
    parser.add_argument(
        "--repeat", type=positive, default=3, metavar="N", help="how many rounds (default 3)"
    )
    add_backend_options(parser)
    parser.add_argument(
        "--seed", type=seed, default=0, metavar="N", help="of the random tokens (default 0)"
    )
    parser.add_argument(
        "--speculate",
        metavar="WAY",
        default=SPECULATIONS[-1],
        help="what guessing tokens ahead so gains on texts: auto, ngram, draft=MODEL or "
        "self=SCHEME, as farthing run has them (default off: not measured)",
    )
    add_price(parser)
    parser.add_argument("--json", action="store_true", help="everything as one JSON object")


def run(arguments: argparse.Namespace) -> int:
    from farthing.cli.bench_report import print_json, print_tables
    from farthing.cli.progress import terminal_progress
    from farthing.cli.threads import warn_of_threads

    warn_of_threads(arguments.threads)
    with terminal_progress() as progress:
        measured = _measure(arguments, progress)
    if arguments.json:
        print_json(measured)
    else:
        print_tables(measured)
    return 0


def _points(text: str) -> tuple[int, ...]:
    """An argparse type: whole numbers from 1, between commas; `none` is an empty list."""
    if text == "none":
        return ()
    return tuple(positive(part) for part in text.split(","))


def _measure(arguments: argparse.Namespace, progress: LoadProgress) -> Bench:
    """Loads the model as `farthing run` would, for the load's figures, then for measuring."""
    from farthing.backends.ceilings import Ceilings
    from farthing.backends.native import NativeBackend
    from farthing.cli.bench_report import Bench
    from farthing.engine.drafting import drafting_of
    from farthing.engine.load import load
    from farthing.files.catalog import resolve
    from farthing.files.checkpoint import open_checkpoint
    from farthing.lab.bench import bench, buffer_bytes
    from farthing.lab.bench_guessing import bench_guesses, prompts_within, room_for
    from farthing.lab.bench_ops import python_share
    from farthing.lab.bench_points import choose_points
    from farthing.lab.bench_prices import batch_prices
    from farthing.lab.bench_profile import profile_of
    from farthing.models.load import load_model
    from farthing.plan.machine import available_memory, processor
    from farthing.plan.memory import plan_memory
    from farthing.plan.precision import AS_STORED
    from farthing.plan.profile import profile_key, store_profile
    from farthing.plan.speed import Speed
    from farthing.plan.subject import ModelSubject

    guesses = drafting_of(arguments.speculate).way != "off"
    progress.phase("find")
    path = resolve(arguments.model, progress)
    progress.phase("open")
    model = load_model(open_checkpoint(path))
    points = choose_points(
        model.config.context_length, arguments.prefill, arguments.decode, arguments.batch
    )
    # The load that is told of is one without what a profile needs besides.
    context_length, sequences = replace(points, cross=()).needs(model.config.context_length)
    kv_dtype = KVDtype(arguments.kv_dtype)
    mode = None if arguments.activations is None else ActivationMode(arguments.activations)
    with load(
        path,
        threads=arguments.threads,
        kv_dtype=kv_dtype,
        activations=mode,
        context_length=context_length,
        sequences=sequences,
        progress=progress,
    ) as engine:
        report, tokenizer = engine.report, engine.tokenizer
        prompts = prompts_within(engine, model.config.context_length) if guesses else []
    if report is None:
        raise RuntimeError("a loaded engine has a report")
    threads = report.threads
    # Before all that takes minutes: what cannot guess for this model is refused here.
    guessed: list[GuessedText] = []
    if guesses:
        context_length, cache_tokens = room_for(prompts)
        with load(
            path,
            threads=threads,
            kv_dtype=kv_dtype,
            activations=mode,
            speculate=arguments.speculate,
            context_length=context_length,
            cache_tokens=cache_tokens,
            slots=1,
            progress=progress,
        ) as engine:
            guessed = bench_guesses(engine, prompts, arguments.repeat, progress.phase)

    def planned(points: Points) -> MemoryPlan:
        longest, texts = points.needs(model.config.context_length)
        return plan_memory(
            model,
            context_length=longest,
            sequences=texts,
            kv_dtype=kv_dtype,
            activations=mode,
            threads=threads,
            step_rows=max(8, *points.batch, *(count for count, _ in points.cross), 1),
        )

    plan = planned(points)
    if points.cross and plan.needed_bytes > available_memory():
        points = points.without_cross("there is no memory for them")
        plan = planned(points)
    progress.phase("load again")
    backend = NativeBackend(model, plan)
    try:
        progress.phase("ceilings")
        ceilings = Ceilings(plan.threads, buffer_bytes(available_memory()))
        try:
            result = bench(
                backend,
                ceilings,
                model.program,
                plan,
                points,
                repeats=arguments.repeat,
                seed=arguments.seed,
                progress=progress.phase,
            )
        finally:
            ceilings.close()
        key = profile_key(model, plan, cpu=processor(), isa=ceilings.tier, kernels=ceilings.kernels)
        profile = profile_of(result, key, plan.step_tokens)
        try:
            stored = str(store_profile(profile))
        except FarthingError as error:
            say(f"warning: the profile is not stored: {error}")
            stored = None
        most = min(_LARGEST_PYTHON_BATCH, max(points.batch, default=1))
        shares = []
        for count in sorted({1, most}):
            progress.phase(f"Python's share of {count}")
            shares.append(python_share(backend, tokenizer, count, arguments.seed))
    finally:
        backend.close()
    prices = None
    if arguments.price_per_hour is not None:
        subject = ModelSubject(model, AS_STORED, kv_dtype, activations=mode, threads=threads)
        speed = Speed(subject, profile.ceilings, profile)
        most = model.config.context_length
        prices = batch_prices(speed, result.batch, arguments.price_per_hour, most)
    return Bench(
        result,
        report,
        points,
        shares,
        arguments.repeat,
        arguments.seed,
        stored,
        prices,
        arguments.speculate,
        guessed,
    )
