"""The laboratory's sections by name. Each is a module of the lab whose `measure` gives its tables.

They are imported when they run: listing them costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from time import perf_counter
from typing import TYPE_CHECKING

from farthing.lab.table import Section

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
}


def measure_section(name: str, subject: Subject, command: str) -> Section:
    """Runs the section `name`; `command` is what a person types to get it again.

    Raises `KeyError` for a name that is not in `SECTIONS`, and `FarthingError` as measuring does.
    """
    about = SECTIONS[name]
    started = perf_counter()
    tables = tuple(import_module(f"farthing.lab.{name}").measure(subject))
    seconds = perf_counter() - started
    return Section(name, about, command, subject.seed, subject.provenance(), seconds, tables)
