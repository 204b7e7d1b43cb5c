"""The laboratory's sections by name. Each is a module of the lab whose `measure` gives its tables.

What a section cannot measure on a model it gives as `Skipped`, with the reason. They are imported
when they run: listing them costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from time import perf_counter
from typing import TYPE_CHECKING

from farthing.lab.table import Section, Skipped, Table

if TYPE_CHECKING:
    from farthing.lab.subject import Subject

SECTIONS = {
    "cache": "what the key-value cache saves: time, multiply-accumulates, memory",
    "phases": "prefill and decode, and how decoding slows as the context grows",
    "kv": "bytes of cache: the formula beside what is allocated, head layouts, waste",
    "batching": "many requests at once: the curve and its knee, static against continuous",
    "error": "what each storage format loses of the weights, and why",
    "matrix": "one weight matrix: its distribution, and what lies beyond six sigma",
    "outliers": "activations layer by layer: the dimensions that stand out, and their price",
    "remedies": "what each calibration method repairs, at the same bits",
    "quality": "what every format costs as served: perplexity, divergence, agreement, answers",
    "speculation": "guessing tokens ahead: acceptance of copies, predicted and measured gain",
    "distillation": "soft labels, what a temperature makes of them, what a student learned",
}

TAKEN_BY = {
    "text": ("cache", "outliers", "remedies", "quality", "distillation"),
    "matrix": ("matrix",),
    "prompts": ("speculation",),
    "draft": ("speculation",),
    "student": ("distillation",),
}
"""What a person may give to be looked at, and the sections that look at it."""

USUAL_SECONDS = {
    "cache": 25,
    "phases": 20,
    "kv": 2,
    "batching": 60,
    "error": 18,
    "matrix": 2,
    "outliers": 6,
    "remedies": 90,
    "quality": 150,
    "speculation": 50,
    "distillation": 3,
}
"""What sections take about of 135M parameters on two cores: how they compare says how far a run of
all is. One that is not here is taken to be as long as the longest."""


def measure_section(name: str, subject: Subject, command: str) -> Section:
    """Runs the section `name`; `command` is what a person types to get it again.

    Its intervals are those of its rounds alone: see `Report.widened`.

    Raises `KeyError` for a name that is not in `SECTIONS`, and `FarthingError` as measuring does.
    """
    about = SECTIONS[name]
    started, before = perf_counter(), len(subject.gauge.taken)
    subject.gauge.look()
    found = list(import_module(f"farthing.lab.{name}").measure(subject))
    subject.gauge.look()
    return Section(
        name,
        about,
        command,
        subject.seed,
        subject.provenance(),
        perf_counter() - started,
        tuple(each for each in found if isinstance(each, Table)),
        tuple(each for each in found if isinstance(each, Skipped)),
        tuple(subject.gauge.taken[before:]),
    )
