"""Which matrices `PATTERN=SCHEME` speaks of.

A matrix goes by its name in the Program without `.weight`: `embedding`, `head`,
`layers.3.query`, `layers.3.down`. It answers to shorter names, too: the half of the layer may stand
before the part (`layers.3.attention.query`, `layers.3.mlp.down`), the layer may be left out
(`query`, `mlp.down`), and a model whose head is its embedding calls it both `embedding` and `head`.

A pattern is such a name, in pieces between dots, of which each may be

- a name in which `*` stands for any characters of that piece,
- a number or a range of numbers, both ends included: `0-3`,
- several of these with commas between them: `0-1,28-29`.

It matches a matrix one of whose names begins with its pieces: `layers.0` is all of layer 0,
`attention` the attention of all layers. Where several patterns match, the last one counts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from farthing.core import FarthingError
from farthing.forge.schemes import KEEP, format_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from farthing.models.program import Program

_ATTENTION = ("query", "key", "value", "output")
_MLP = ("gate", "up", "down")
_RANGE = re.compile(r"(\d{1,6})-(\d{1,6})")
_PIECE = re.compile(r"[\w*,-]+")


@dataclass(frozen=True)
class Rule:
    """`pattern` and the scheme it asks for: a format, or "keep"."""

    pattern: str
    scheme: str


@dataclass(frozen=True)
class Choice:
    """What each matrix is to be stored as, by Program name; and what each rule matched."""

    schemes: Mapping[str, str]
    matched: tuple[tuple[Rule, tuple[str, ...]], ...]


def parse_rule(text: str) -> Rule:
    """`PATTERN=SCHEME` as a person types it. Raises `FarthingError` saying what is wrong."""
    pattern, equals, scheme = text.partition("=")
    pieces = pattern.split(".")
    if not equals or not all(_PIECE.fullmatch(piece) for piece in pieces):
        raise FarthingError(
            f"{text!r:.80} is no PATTERN=SCHEME: write for example head=int8, "
            "layers.0-1.*=q8_0 or mlp.down=keep"
        )
    return Rule(pattern, KEEP if scheme == KEEP else format_of(scheme))


def choose(program: Program, scheme: str, rules: Sequence[Rule]) -> Choice:
    """The schemes of all matrices: `scheme`, or what the last rule that matches says.

    Raises `FarthingError` for a rule that matches nothing, with the names that there are.
    """
    names = {name: tuple(_names(name, program)) for name in matrices(program)}
    schemes = dict.fromkeys(names, scheme)
    matched = []
    for rule in rules:
        found = tuple(name for name in names if _matches(rule.pattern, names[name]))
        if not found:
            raise FarthingError(
                f"no matrix of the model is called {rule.pattern!r:.80}; there are "
                f"{_existing(program)}; * stands for any name"
            )
        schemes |= dict.fromkeys(found, rule.scheme)
        matched.append((rule, found))
    return Choice(schemes, tuple(matched))


def matrices(program: Program) -> list[str]:
    """The Program's names of its matrices."""
    return [name for name, weight in program.weights.items() if len(weight.shape) == 2]


def short_name(weight: str) -> str:
    """A weight's name as patterns and reports have it."""
    return weight.removesuffix(".weight")


def _names(weight: str, program: Program) -> Iterator[tuple[str, ...]]:
    """All names of a matrix, in pieces."""
    pieces = tuple(short_name(weight).split("."))
    yield pieces
    if pieces[0] != "layers":
        if any(op.kind == "logits" and op.weights[0] == weight for op in program.ops):
            yield ("head",)
        return
    layer, part = pieces[:2], pieces[2:]
    yield part
    half = _half(part[0])
    if half is not None:
        yield (*layer, half, *part)
        yield (half, *part)


def _half(part: str) -> str | None:
    if part in _ATTENTION:
        return "attention"
    return "mlp" if part in _MLP else None


def _matches(pattern: str, names: Sequence[tuple[str, ...]]) -> bool:
    wanted = pattern.split(".")
    return any(
        len(wanted) <= len(name)
        and all(_piece_matches(piece, part) for piece, part in zip(wanted, name, strict=False))
        for name in names
    )


def _piece_matches(piece: str, part: str) -> bool:
    return any(_alternative_matches(each, part) for each in piece.split(","))


def _alternative_matches(alternative: str, part: str) -> bool:
    numbers = _RANGE.fullmatch(alternative)
    if numbers is None:
        return fnmatchcase(part, alternative)
    return part.isdecimal() and int(numbers[1]) <= int(part) <= int(numbers[2])


def _existing(program: Program) -> str:
    """The names of what stands outside of layers, and of a layer's parts, for a message."""
    outside: dict[str, None] = {}
    parts: dict[str, None] = {}
    layers: set[int] = set()
    for weight in matrices(program):
        full, *others = _names(weight, program)
        if full[0] == "layers":
            layers.add(int(full[1]))
            parts[".".join(full[2:])] = None
        else:
            outside.update(dict.fromkeys(".".join(name) for name in (full, *others)))
    return (
        f"{', '.join(outside)}, and in layers.{min(layers)} to layers.{max(layers)} "
        f"{', '.join(parts)}"
    )
