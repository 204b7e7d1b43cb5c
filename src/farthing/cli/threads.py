"""What --threads asks for, where the machine has fewer cores."""

from __future__ import annotations

from farthing.cli.process import say
from farthing.plan.machine import usable_cores


def warn_of_threads(asked: int | None) -> None:
    """Tells on stderr where more threads are asked for than will run; None asks for all."""
    usable = usable_cores()
    if asked is not None and asked > usable:
        say(
            f"warning: {asked} threads are asked for, and {usable} will run: so many cores are "
            "usable"
        )
