"""Where a plan's speeds come from: this machine's stored profile, a quick measurement, numbers."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from math import isfinite
from statistics import median
from typing import TYPE_CHECKING

from farthing.core import ActivationMode
from farthing.plan.machine import available_memory, processor, usable_cores
from farthing.plan.profile import Ceilings, find_profile, profile_key
from farthing.plan.speed import Speed
from farthing.plan.subject import ModelSubject

if TYPE_CHECKING:
    from farthing.plan.subject import Subject

_ROUNDS = 3


@dataclass(frozen=True)
class Machine:
    """What predictions rest on; `isa` is None where nothing is predicted."""

    ceilings: Ceilings | None
    source: str
    threads: int
    isa: str | None
    kernels: str | None

    def speed(self, subject: Subject) -> tuple[Speed | None, str]:
        """How fast the subject goes here, and why no profile says so, in words."""
        if self.ceilings is None:
            return None, ""
        if self.isa is None or self.kernels is None or not isinstance(subject, ModelSubject):
            return Speed(subject, self.ceilings), ""
        key = profile_key(
            subject.model,
            subject.plan,
            cpu=processor(),
            isa=self.isa,
            kernels=self.kernels,
        )
        profile, why = find_profile(key)
        if profile is None:
            return Speed(subject, self.ceilings), why
        return Speed(subject, profile.ceilings, profile), ""


def ceilings(text: str) -> Ceilings | str:
    """An argparse type: `read=40e9,int8=1e12,bf16=5e11,fp32=2e11`, or `none`."""
    if text == "none":
        return text
    found: dict[str, float] = {}
    names = ("read", *(mode.value for mode in ActivationMode))
    for part in text.split(","):
        name, _, value = part.strip().partition("=")
        try:
            number = float(value)
        except ValueError:
            number = 0.0
        if name not in names or name in found or not (isfinite(number) and number > 0):
            raise argparse.ArgumentTypeError(
                f"must look like read=40e9,int8=1e12,bf16=5e11,fp32=2e11, all above 0: not "
                f"{part.strip()!r:.40}"
            )
        found[name] = number
    missing = [name for name in names if name not in found]
    if missing:
        raise argparse.ArgumentTypeError(f"leaves out {', '.join(missing)}")
    rates = {mode: found[mode.value] for mode in ActivationMode}
    return Ceilings(found["read"], rates)


def given_machine(given: Ceilings | str, threads: int | None) -> Machine:
    """A machine of which only numbers are known; of "none" no speeds are predicted."""
    count = threads or usable_cores()
    if isinstance(given, str):
        return Machine(None, "no speeds, as asked", count, None, None)
    return Machine(given, "the ceilings that were given", count, None, None)


def this_machine(threads: int | None) -> Machine:
    """The one this runs on, measured within a second or two."""
    from farthing.backends.ceilings import Ceilings as Measurement
    from farthing.lab.bench import buffer_bytes

    count = min(threads or usable_cores(), usable_cores())
    measurement = Measurement(count, buffer_bytes(available_memory()))
    try:
        reads = [max(measurement.read().values()) for _ in range(_ROUNDS)]
        rates = [measurement.multiply() for _ in range(_ROUNDS)]
    finally:
        measurement.close()
    return Machine(
        Ceilings(median(reads), {mode: median(each[mode] for each in rates) for mode in rates[0]}),
        "this machine's ceilings, measured now",
        count,
        measurement.tier,
        measurement.kernels,
    )
