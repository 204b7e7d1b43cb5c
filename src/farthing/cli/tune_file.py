"""Putting chosen settings into a `farthing.toml` that a person may have written in.

They stand between two comments in the table of `farthing serve`, with what was measured beside
them. Everything else stays as it is. What the person has set and tune would set otherwise is not
touched, unless forced: then it becomes a comment. What comes out is read again before it is
written, and has to say what it should.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from typing import TYPE_CHECKING, Any

from farthing.core import RequestError
from farthing.files.replacing import replacing
from farthing.files.text_files import read_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

TABLE = "serve"
BEGIN = "# farthing tune: from here to its end, written anew by the next run"
END = "# farthing tune: end"

_MOST_BYTES = 1 << 20
_HEADING = re.compile(r"\s*\[")
_TABLE = re.compile(rf"\s*\[\s*[\"']?{TABLE}[\"']?\s*\]\s*(#.*)?$")
_KEY = re.compile(r"\s*[\"']?([\w-]+)[\"']?\s*=")


def read_file(path: Path) -> str:
    """The file's text, empty where it is not there yet.

    Raises `RequestError` for what is no TOML, and where nothing could be written in its place.
    """
    if path.is_dir():
        raise RequestError(f"{path} is a folder: give --output a file")
    folder = path.parent
    if not folder.is_dir():
        raise RequestError(f"there is no folder {folder} for {path.name}: make it first")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise RequestError(
            f"the folder {folder} cannot be written to: give --output a file in another"
        )
    if not path.exists():
        return ""
    text = read_text(path, _MOST_BYTES)
    _parsed(text, str(path))
    return text


def merged(
    text: str, settings: Mapping[str, object], evidence: Sequence[str], where: str, *, force: bool
) -> str:
    """`text` with `settings` in the table of serve, and `evidence` above them as comments.

    What a person has set there to the same already is left to them. Raises `RequestError` for what
    is set to something else, unless forced; and where the table is written so that nothing can be
    added to it.
    """
    _parsed(text, where)
    lines = _without_block(text.removesuffix("\n").split("\n") if text else [], where)
    # Lines end as theirs do: with a carriage return too where an editor has put one.
    returned = "\r" if lines and lines[0].endswith("\r") else ""
    before = _parsed("\n".join([*lines, ""]), where)
    first, end = _table(lines)
    theirs = before.get(TABLE, {})
    if not isinstance(theirs, dict):
        raise RequestError(f"{where} sets {TABLE}, which is a table: give --output another file")
    ours = {key: value for key, value in settings.items() if theirs.get(key) != value}
    _settle(lines, first, end, ours, where, force=force)
    block = [BEGIN, *(f"# {_shown(line)}".rstrip() for line in evidence)]
    block += [f"{key} = {_written(value)}" for key, value in ours.items()]
    block.append(END)
    if first == end:
        gap = [""] if lines and lines[-1].strip() else []
        block = [*gap, f"[{TABLE}]", *block]
        end = len(lines)
    new = [*lines[:end], *(f"{line}{returned}" for line in block), *lines[end:]]
    result = "\n".join(new) + "\n"
    _require(result, {**before, TABLE: {**theirs, **settings}}, where)
    return result


def write_file(path: Path, text: str) -> None:
    """Puts the text in place of the file at once, and keeps who may read it.

    Raises `FarthingError` where it cannot be written.
    """
    with replacing(path.resolve(), private=False) as file:
        file.write(text.encode())


def _parsed(text: str, where: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise RequestError(
            f"{where} is not TOML ({error}): mend it, or give --output another file"
        ) from None


def _without_block(lines: list[str], where: str) -> list[str]:
    """The lines but those that an earlier run wrote."""
    starts = [at for at, line in enumerate(lines) if line.strip() == BEGIN]
    ends = [at for at, line in enumerate(lines) if line.strip() == END]
    if not starts and not ends:
        return list(lines)
    if len(starts) != 1 or len(ends) != 1 or ends[0] < starts[0]:
        raise RequestError(
            f"{where} has only a part of what farthing tune wrote: remove all lines from "
            f"{BEGIN!r} to {END!r}, or give --output another file"
        )
    return lines[: starts[0]] + lines[ends[0] + 1 :]


def _table(lines: Sequence[str]) -> tuple[int, int]:
    """The lines of serve's table, from its heading up to the last that is not empty; two equal
    numbers where there is none.
    """
    heads = [at for at, line in enumerate(lines) if _TABLE.match(line)]
    if not heads:
        return 0, 0
    first = heads[0]
    following = (at for at in range(first + 1, len(lines)) if _HEADING.match(lines[at]))
    end = next(following, len(lines))
    while end > first + 1 and not lines[end - 1].strip():
        end -= 1
    return first, end


def _settle(
    lines: list[str],
    first: int,
    end: int,
    settings: Mapping[str, object],
    where: str,
    *,
    force: bool,
) -> None:
    """Makes comments of keys in the table that stand in the way, or raises `RequestError`."""
    in_the_way = {
        at: match[1]
        for at in range(first + 1, end)
        if (match := _KEY.match(lines[at])) and match[1] in settings
    }
    if in_the_way and not force:
        listed = ", ".join(in_the_way.values())
        raise RequestError(
            f"{where} sets {listed} in [{TABLE}], which farthing tune would set: remove that, let "
            "--force make comments of it, or give --output another file"
        )
    for at in in_the_way:
        lines[at] = f"# before farthing tune: {lines[at]}"


def _shown(line: str) -> str:
    """As a comment may hold it."""
    return "".join(each if each.isprintable() else "?" for each in line)


def _written(value: object) -> str:
    """A value as TOML has it; a basic string is written as JSON writes one."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)


def _require(text: str, wanted: Mapping[str, Any], where: str) -> None:
    """Raises `RequestError` unless the text says what it should."""
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        found = {}
    if found != wanted:
        raise RequestError(
            f"{where} is written so that nothing can be added to its table of {TABLE}: write that "
            f"as [{TABLE}] on a line of its own, or give --output another file"
        )
