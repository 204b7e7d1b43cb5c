"""The frontier of a plan as a picture: how many users fit at each context, by precision."""

from __future__ import annotations

from dataclasses import dataclass, replace
from html import escape
from math import log2
from typing import TYPE_CHECKING

from farthing.cli.output_file import output_file
from farthing.core import RequestError
from farthing.files.replacing import replacing
from farthing.plan.grid import Question, most_users
from farthing.plan.traffic import fixed_traffic

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from farthing.cli.plan import Answer

_WIDTH, _HEIGHT = 800, 440
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 240, 50, 50
# Okabe and Ito's colours, which people of every kind of sight tell apart.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
_STEPS_A_DOUBLING = 2
_STYLE = (
    "text{font:12px sans-serif;fill:#222}.title{font-size:15px}.grid{stroke:#ddd}"
    ".line{fill:none;stroke-width:2}.slo{stroke-dasharray:6 4}"
)


@dataclass(frozen=True)
class _Line:
    """Users that fit at each context; where it `is_judged`, with the SLO kept."""

    label: str
    colour: str
    is_judged: bool
    points: list[tuple[int, int]]


def plot_file(name: str, lengths: str | None) -> Path:
    """Where a plot goes. Raises `RequestError` where none could be written, or drawn."""
    path = output_file(name, "--plot")
    if path.suffix.lower() != ".svg":
        raise RequestError(f"--plot writes SVG: call the file {path.stem or 'frontier'}.svg")
    if lengths is not None:
        raise RequestError("--plot draws users over contexts: leave out --lengths")
    return path


def write_frontier(answer: Answer, path: Path) -> None:
    """Writes an SVG file. Raises `FarthingError` where it cannot be written."""
    with replacing(path, private=False) as file:
        file.write(frontier(answer).encode())


def frontier(answer: Answer) -> str:
    """The picture: a line for each precision and kind of cache, dashed where an SLO is kept."""
    lines: list[_Line] = []
    plain = replace(answer.question, objective=None)
    contexts = _contexts(answer)
    shared = answer.question.traffics[0].shared
    for number, (subject, speed) in enumerate(answer.subjects):
        colour = _COLOURS[number % len(_COLOURS)]
        name = f"{subject.weights}, {subject.kv_dtype.value} cache"
        variants: list[tuple[str, bool, Question]] = [(name, False, plain)]
        if answer.question.objective is not None and speed is not None:
            variants.append((f"{name}, slo kept", True, answer.question))
        for label, is_judged, question in variants:
            points = []
            for context in contexts:
                traffic = fixed_traffic(context, answer.answer_tokens, shared)
                points.append((context, most_users(subject, speed, traffic, question)))
            drawn = [point for point in points if point[1] > 0]
            lines.append(_Line(label, colour, is_judged, drawn))
    return "\n".join(_drawing(answer, contexts, lines)) + "\n"


def _contexts(answer: Answer) -> list[int]:
    """Evenly spread over the logarithm, from the shortest to the longest that was asked for."""
    asked = [traffic.context for traffic in answer.question.traffics]
    first, last = min(asked), max(asked)
    steps = max(1, round(_STEPS_A_DOUBLING * log2(last / first)))
    spread = {round(first * (last / first) ** (step / steps)) for step in range(steps + 1)}
    return sorted(spread | set(asked))


def _drawing(answer: Answer, contexts: list[int], lines: list[_Line]) -> Iterator[str]:
    most = max([2, *(users for line in lines for _, users in line.points)])
    first, last = log2(contexts[0]), max(log2(contexts[-1]), log2(contexts[0]) + 1)

    def x(context: int) -> float:
        return _LEFT + (log2(context) - first) / (last - first) * (_WIDTH - _LEFT - _RIGHT)

    def y(users: int) -> float:
        return _HEIGHT - _BOTTOM - log2(users) / log2(most) * (_HEIGHT - _TOP - _BOTTOM)

    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        f'role="img"><style>{_STYLE}</style><rect width="100%" height="100%" fill="#fff"/>'
    )
    memory = f"{answer.question.room / 2**30:,.1f} GiB"
    title = f"How many users fit: {answer.asked.name} in {memory}"
    yield f"<title>{escape(title)}</title>"
    yield f'<text class="title" x="{_LEFT}" y="26">{escape(title)}</text>'
    for context in _ticks(contexts[0], contexts[-1], 2):
        yield _line(x(context), _TOP, x(context), _HEIGHT - _BOTTOM)
        yield (
            f'<text x="{x(context):.1f}" y="{_HEIGHT - _BOTTOM + 18}" text-anchor="middle">'
            f"{_short(context)}</text>"
        )
    for users in _ticks(1, most, 4 if most < 4096 else 8):
        yield _line(_LEFT, y(users), _WIDTH - _RIGHT, y(users))
        yield f'<text x="{_LEFT - 8}" y="{y(users) + 4:.1f}" text-anchor="end">{users:,}</text>'
    yield f'<text x="{_LEFT}" y="{_HEIGHT - 10}">tokens of context for each user</text>'
    yield f'<text x="{_LEFT - 60}" y="{_TOP - 8}">users</text>'
    for number, line in enumerate(lines):
        style = f'class="line{" slo" if line.is_judged else ""}" stroke="{line.colour}"'
        places = [(x(context), y(users)) for context, users in line.points]
        drawn = " ".join(f"{across:.1f},{down:.1f}" for across, down in places)
        yield f'<polyline {style} points="{drawn}"/>'
        if len(places) == 1:
            # A line through one point has no length.
            [(across, down)] = places
            look = 'fill="none" r="7"' if line.is_judged else f'fill="{line.colour}" r="4"'
            place = f'cx="{across:.1f}" cy="{down:.1f}"'
            yield f'<circle {place} stroke="{line.colour}" {look}/>'
        height = _TOP + 20 * number
        right = _WIDTH - _RIGHT + 12
        yield f'<polyline {style} points="{right},{height} {right + 20},{height}"/>'
        shown = line.label if line.points else f"{line.label}: none"
        yield f'<text x="{right + 26}" y="{height + 4}">{escape(shown)}</text>'
    yield "</svg>"


def _ticks(first: int, last: int, step: int) -> Iterable[int]:
    """Powers of `step` from the first to the last."""
    tick = 1
    while tick <= last:
        if tick >= first:
            yield tick
        tick *= step


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="grid" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _short(tokens: int) -> str:
    return f"{tokens // 1024:,}k" if tokens >= 1024 else str(tokens)
