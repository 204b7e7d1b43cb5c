"""Names that no two things have: requests, answers, calls."""

from __future__ import annotations

import random

_draw = random.Random()


def new_id() -> str:
    """32 hexadecimal digits, drawn anew. No secret: who has seen some can guess others.

    The system is not asked for randomness: that gives up the interpreter's lock, and a thread that
    computes would take it, several times in every request.
    """
    return f"{_draw.getrandbits(128):032x}"
