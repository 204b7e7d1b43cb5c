"""A model's text on its way to a person."""

from __future__ import annotations

import sys

# What a model writes must not move the cursor or talk to the terminal: ESC is shown as ^[.
_CARETS = {code: f"^{chr(code ^ 64)}" for code in (*range(32), 127) if chr(code) not in "\n\t"}
_CARETS |= {code: f"\\x{code:02x}" for code in range(128, 160)}


def write(text: str) -> None:
    """Writes a piece of a model's text at once; on a terminal, its control characters are shown.

    A pipe or a file gets the text as it is.
    """
    sys.stdout.write(text.translate(_CARETS) if sys.stdout.isatty() else text)
    sys.stdout.flush()
