"""Schemes as a person types them: int4-g128, q8_0, and short words for the usual one of a kind."""

from __future__ import annotations

from farthing.core import UnsupportedModelError
from farthing.files.formats import OWN_FORMATS
from farthing.quant.formats import WRITABLE_FORMATS

KEEP = "keep"
"""In place of a scheme: as the tensor stands in the source."""

SHORT = {"int8": "INT8_ROW", "int4": "INT4_G128", "nf4": "NF4_B64"}
"""The usual one of a kind, by its word."""

FALLBACKS = {
    "Q2_K": "IQ4_NL",
    "Q3_K": "IQ4_NL",
    "Q4_K": "Q5_0",
    "Q5_K": "Q5_1",
    "Q6_K": "Q8_0",
}
"""What a matrix is stored as whose rows are no whole blocks of 256: llama.cpp's own choice."""


def spelling(format_name: str) -> str:
    """INT4_G128 as a person types it, int4-g128; GGUF's names keep their underscore: q4_0."""
    spelled = format_name.lower()
    return spelled.replace("_", "-") if format_name in OWN_FORMATS else spelled


def spelled(scheme: str) -> str:
    """A format as a person types it, or "keep"."""
    return scheme if scheme == KEEP else spelling(scheme)


def format_of(scheme: str) -> str:
    """The writable format that a person calls `scheme`.

    Raises `UnsupportedModelError` with those there are.
    """
    known = {spelling(name): name for name in WRITABLE_FORMATS} | SHORT
    found = known.get(scheme.lower())
    if found is None:
        raise UnsupportedModelError(
            f"no scheme that can be written is called {scheme!r:.40}; there are {', '.join(known)}"
        )
    return found
