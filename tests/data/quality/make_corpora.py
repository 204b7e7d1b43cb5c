"""Write the package's two corpora from the Debian packages that carry them: run once by hand.

    apt-get download r-cran-janeaustenr=1.0.0-1 golang-1.19-src=1.19.8-2
    dpkg -x r-cran-janeaustenr_*.deb austen && dpkg -x golang-1.19-src_*.deb go
    python make_corpora.py austen go

Paragraphs become one line each, with an empty line between them; marks of italics and the places
of illustrations, which transcribers added, go. Nothing else is changed.
"""

from __future__ import annotations

import re
import struct
import sys
import zlib
from itertools import groupby
from pathlib import Path

DATA = Path(__file__).parents[3] / "src" / "farthing" / "quality" / "data"
NOVELS = "usr/lib/R/site-library/janeaustenr/data/Rdata.rdb"
OPTICKS = "usr/share/go-1.19/src/testdata/Isaac.Newton-Opticks.txt"


def novels(database: bytes) -> list[list[str]]:
    """The character vectors of an R package's data, each a novel's lines."""
    found = []
    while database:
        # A record is its length, big-endian, and a zlib stream of serialised R, version 3.
        stream = zlib.decompressobj()
        found.append(_character_vector(stream.decompress(database[4:])))
        database = stream.unused_data
    return found


def _character_vector(data: bytes) -> list[str]:
    encoding = struct.unpack_from(">i", data, 14)[0]
    offset = 18 + encoding
    kind, count = struct.unpack_from(">ii", data, offset)
    assert kind & 0xFF == 16
    offset += 8
    lines = []
    for _ in range(count):
        length = struct.unpack_from(">i", data, offset + 4)[0]
        lines.append(data[offset + 8 : offset + 8 + length].decode())
        offset += 8 + length
    return lines


def paragraphs(lines: list[str]) -> str:
    """One line a paragraph, an empty line between two."""
    made = []
    for full, group in groupby((line.strip() for line in lines), bool):
        text = re.sub(r" {2,}", " ", " ".join(group).replace("_", ""))
        if full and not text.startswith("[Illustration"):
            made.append(text)
    return "\n\n".join(made) + "\n"


def main(austen: Path, go: Path) -> None:
    persuasion = next(
        lines for lines in novels((austen / NOVELS).read_bytes()) if lines[0] == "Persuasion"
    )
    first, end = persuasion.index("Chapter 1"), persuasion.index("Chapter 13")
    (DATA / "persuasion.txt").write_text(paragraphs(persuasion[first:end]), encoding="utf-8")
    opticks = (go / OPTICKS).read_text(encoding="utf-8").splitlines()
    first = opticks.index("THE FIRST BOOK OF OPTICKS")
    second_part = opticks.index("THE FIRST BOOK OF OPTICKS", first + 1)
    end = opticks.index("_PROP._ VI. PROB. II.", second_part)
    (DATA / "opticks.txt").write_text(paragraphs(opticks[first:end]), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
