"""farthing plan: what fits, for how many, how fast, at what price, before anything is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from farthing.cli.config import DEFAULT_SOURCE
from farthing.cli.plan_options import configure as _configure
from farthing.cli.plan_options import listed
from farthing.cli.plan_question import (
    asked_of,
    kv_dtypes_of,
    precisions_of,
    refuse_contradictions,
    traffics_of,
)
from farthing.cli.threads import warn_of_threads
from farthing.core import ActivationMode, DoesNotFitError, UnsupportedModelError
from farthing.files.formats import spelling
from farthing.plan.profile import Ceilings

if TYPE_CHECKING:
    import argparse

    from farthing.cli.plan_machine import Machine
    from farthing.cli.plan_question import Asked
    from farthing.core import KVDtype
    from farthing.plan.grid import Cell, Question
    from farthing.plan.nearest import Nearest
    from farthing.plan.objective import Objective
    from farthing.plan.precision import Precision
    from farthing.plan.speed import Speed
    from farthing.plan.subject import Subject

configure = _configure


@dataclass(frozen=True)
class Answer:
    """Everything there is to tell. `answer_tokens` are those of each answer where they were
    given; `nearest` is filled where nothing fits; `served_with` are the flags with which a server
    allocates what was planned; `remarks` are sentences on what was planned otherwise than asked.
    """

    asked: Asked
    machine: Machine
    question: Question
    answer_tokens: int | None
    cells: list[Cell]
    subjects: list[tuple[Subject, Speed | None]]
    why_no_profile: tuple[str, ...]
    room_source: str
    nearest: list[Nearest]
    reachable: str
    served_with: tuple[str, ...]
    remarks: tuple[str, ...]


def run(arguments: argparse.Namespace) -> int:
    refuse_contradictions(arguments)
    if arguments.examples:
        from farthing.cli.plan_examples import print_examples

        print_examples(kv_dtypes_of(arguments)[0], as_json=arguments.json)
        return 0
    plot = None
    if arguments.plot is not None:
        from farthing.cli.plan_plot import plot_file, write_frontier

        plot = plot_file(arguments.plot, arguments.lengths)
    answer = _answer(arguments)
    if plot is not None:
        write_frontier(answer, plot)
    from farthing.cli.plan_report import print_json, print_tables

    (print_json if arguments.json else print_tables)(answer)
    fits = any(cell.answers for cell in answer.cells)
    return 0 if fits else DoesNotFitError.exit_code


def _answer(arguments: argparse.Namespace) -> Answer:
    from farthing.cli.plan_machine import given_machine, this_machine
    from farthing.engine.limits import Policy
    from farthing.plan.grid import Question, grid
    from farthing.plan.machine import memory_room
    from farthing.plan.objective import objective

    wanted = None if arguments.slo is None else objective(arguments.slo)
    precisions, kv_dtypes = precisions_of(arguments), kv_dtypes_of(arguments)
    asked = asked_of(arguments)
    traffics = traffics_of(arguments, asked.context_length)
    if not isinstance(arguments.ceilings, Ceilings):  # which are another machine's
        warn_of_threads(arguments.threads)
    made, remarks = _subjects(arguments, asked, precisions, kv_dtypes)
    room = memory_room()
    if arguments.memory is not None:
        size, source = arguments.memory, "as asked"
    elif room.limit is not None and room.limit < room.system:
        size, source = room.limit, f"left by the cgroup's limit, of {room.system / 2**30:,.1f} GiB"
    else:
        size, source = room.bytes, "free on this machine now"
    if arguments.ceilings is not None:
        machine = given_machine(arguments.ceilings, arguments.threads)
    else:
        machine = this_machine(arguments.threads)
    target = Policy.latency_target if wanted is None or wanted.tpot is None else wanted.tpot
    question = Question(
        size,
        traffics,
        listed(arguments.users),
        wanted,
        arguments.price_per_hour,
        target,
    )
    subjects: list[tuple[Subject, Speed | None]] = []
    reasons: dict[str, None] = {}
    for subject in made:
        speed, why = machine.speed(subject)
        subjects.append((subject, speed))
        if why:
            reasons[f"{subject.weights}, {subject.kv_dtype.value} cache: {why}"] = None
    cells = grid(subjects, question)
    nearest, reachable = _otherwise(arguments, asked, subjects, question, cells)
    return Answer(
        asked,
        machine,
        question,
        arguments.answer,
        cells,
        subjects,
        tuple(reasons),
        source,
        nearest,
        reachable,
        _served_with(arguments),
        remarks,
    )


def _served_with(arguments: argparse.Namespace) -> tuple[str, ...]:
    """What was given of the flags that `serve` has too, and that change what it allocates."""
    flags: list[str] = []
    for name in ("threads", "activations", "speculate"):
        if arguments.sources.get(name, DEFAULT_SOURCE) != DEFAULT_SOURCE:
            flags += [f"--{name}", str(getattr(arguments, name))]
    return tuple(flags)


def _subjects(
    arguments: argparse.Namespace,
    asked: Asked,
    precisions: list[Precision],
    kv_dtypes: list[KVDtype],
) -> tuple[list[Subject], tuple[str, ...]]:
    """All that can be planned of what was asked for, and what is to say of the rest.

    Raises what the last precision raised where there is nothing left to plan.
    """
    from farthing.plan.precision import fallbacks

    made: list[Subject] = []
    remarks: list[str] = []
    for number, wanted in enumerate(precisions, 1):
        try:
            made += [_subject(arguments, asked, wanted, kv_dtype) for kv_dtype in kv_dtypes]
        except UnsupportedModelError as error:
            if number == len(precisions) and not made:
                raise
            remarks.append(f"{wanted.name} is left out: {error}")
            continue
        for other, count in ({} if asked.model is None else fallbacks(asked.model, wanted)).items():
            remarks.append(
                f"{wanted.name}: {count} matri{'x' if count == 1 else 'ces'} with rows that are no "
                f"whole blocks of 256 would be {spelling(other)}, as farthing quantize writes them"
            )
    return made, tuple(remarks)


def _subject(
    arguments: argparse.Namespace, asked: Asked, wanted: Precision, kv_dtype: KVDtype
) -> Subject:
    from farthing.plan.machine import usable_cores
    from farthing.plan.subject import ModelSubject, ShapeSubject

    mode = None if arguments.activations is None else ActivationMode(arguments.activations)
    threads = arguments.threads or usable_cores()
    if not isinstance(arguments.ceilings, Ceilings):
        threads = min(threads, usable_cores())
    if asked.shape is not None:
        return ShapeSubject(asked.shape, wanted, kv_dtype, activations=mode, reserve=asked.reserve)
    assert asked.model is not None, "a plan is about a model or a shape"
    return ModelSubject(
        asked.model,
        wanted,
        kv_dtype,
        activations=mode,
        threads=threads,
        file_bytes=asked.file_bytes,
        reserve=asked.reserve,
        draft_rows=asked.draft_rows,
        draft=asked.draft,
    )


def _otherwise(
    arguments: argparse.Namespace,
    asked: Asked,
    subjects: list[tuple[Subject, Speed | None]],
    question: Question,
    cells: list[Cell],
) -> tuple[list[Nearest], str]:
    """What fits instead of the smallest that was asked for, and what of an --slo is reachable."""
    from farthing.plan.nearest import nearest

    if any(cell.answers for cell in cells):
        return [], ""
    timed = [cell for cell in cells if cell.timing is not None]
    if timed:
        return [], _reachable(timed, question.objective)
    least = min(cells, key=lambda cell: cell.needed_bytes)
    subject = next(
        subject
        for subject, _ in subjects
        if (subject.weights, subject.kv_dtype.value) == (least.weights, least.kv_dtype)
    )
    traffic = next(each for each in question.traffics if each.context == least.context)
    return (
        nearest(
            subject,
            traffic,
            least.users,
            question,
            lambda wanted, kv_dtype: _subject(arguments, asked, wanted, kv_dtype),
        ),
        "",
    )


def _reachable(cells: list[Cell], wanted: Objective | None) -> str:
    """What is out of reach, and what is not."""
    from farthing.plan.objective import shown_time

    best = max(cells, key=lambda cell: cell.most_users)
    if best.most_users:
        return (
            f"--slo {wanted} is not kept for so many users; up to {best.most_users:,} have it "
            f"(--users {best.most_users}), with {best.weights} weights, {best.kv_dtype} cache and "
            f"{best.context:,} tokens of context"
        )
    timings = [cell.timing for cell in cells if cell.timing is not None]
    first = min(each.first_token for each in timings)
    step = min(each.step for each in timings)
    return (
        f"--slo {wanted} is out of reach of what was asked for: the best of it has its first token "
        f"after {shown_time(first)} and one every {shown_time(step)}; shorter prompts "
        "(--context) or smaller weights (--weights) are faster"
    )
