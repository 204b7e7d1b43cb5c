"""Text files of a bounded size."""

from __future__ import annotations

from typing import TYPE_CHECKING

from farthing.core import RequestError

if TYPE_CHECKING:
    from pathlib import Path

    from farthing.core import FarthingError


def read_bounded(
    path: Path,
    most_bytes: int,
    where: str | None = None,
    error: type[FarthingError] = RequestError,
) -> bytes:
    """The bytes of a file. Raises `error` where it cannot be read, or has more than `most_bytes`.

    `where` names the file in messages: its path, unless a person knows it by a flag.
    """
    where = str(path) if where is None else where
    try:
        with path.open("rb") as file:
            content = file.read(most_bytes + 1)
    except OSError as reason:
        raise error(f"{where} cannot be read: {reason.strerror}") from reason
    if len(content) > most_bytes:
        raise error(f"{where} has more than the {most_bytes:,} bytes that it may have")
    return content


def decoded(
    content: bytes, where: str, error: type[FarthingError] = RequestError, encoding: str = "utf-8"
) -> str:
    """The text that bytes are. Raises `error` naming the first that is not UTF-8."""
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as reason:
        raise error(
            f"{where} is not UTF-8 text ({reason.reason} at byte {reason.start}): convert it first"
        ) from None


def read_text(
    path: Path,
    most_bytes: int,
    where: str | None = None,
    error: type[FarthingError] = RequestError,
) -> str:
    """The text of a file, as `read_bounded` and `decoded` have it."""
    where = str(path) if where is None else where
    return decoded(read_bounded(path, most_bytes, where, error), where, error)
