"""Schemes as a person types them: int4-g128, q8_0, and short words for the usual one of a kind."""

from __future__ import annotations

from farthing.core import UnsupportedModelError
from farthing.files.formats import as_spelled, spelling
from farthing.quant.formats import WRITABLE_FORMATS

KEEP = "keep"
"""In place of a scheme: as the tensor stands in the source."""

SHORT = {"int8": "INT8_ROW", "int4": "INT4_G128", "nf4": "NF4_B64"}
"""The usual one of a kind, by its word."""


def spelled(scheme: str) -> str:
    """A format as a person types it, or "keep"."""
    return scheme if scheme == KEEP else spelling(scheme)


def format_of(scheme: str) -> str:
    """The writable format that a person calls `scheme`.

    Raises `UnsupportedModelError` with those there are.
    """
    known = {spelling(name): name for name in WRITABLE_FORMATS} | SHORT
    found = known.get(as_spelled(scheme))
    if found is None:
        raise UnsupportedModelError(
            f"no scheme that can be written is called {scheme!r:.40}; there are {', '.join(known)}"
        )
    return found
