"""How training went, as a picture: divergence and acceptance on the held-out text over tokens."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from farthing.forge.trainer import Point

_WIDTH, _HEIGHT = 720, 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 64, 56, 48
_STYLE = "text{font:12px sans-serif;fill:#222}.title{font-size:15px}polyline{fill:none}"
# Okabe and Ito's blue and vermilion.
_DIVERGENCE, _ACCEPTANCE = "#0072b2", "#d55e00"


def curve(history: Sequence[Point], title: str) -> str:
    """An SVG picture. Divergence is read at the left, from 0; acceptance at the right."""
    return "\n".join(_drawing(history, title)) + "\n"


def _drawing(history: Sequence[Point], title: str) -> Iterator[str]:
    title = escape(title)
    most_tokens = max(1, history[-1].tokens)
    most = max(point.divergence for point in history) or 1.0
    low, right, bottom = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT, _HEIGHT - _BOTTOM + 18

    def x(tokens: int) -> float:
        return _LEFT + tokens / most_tokens * (right - _LEFT)

    def y(share: float) -> float:
        return low - share * (low - _TOP)

    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">'
        f'<style>{_STYLE}</style><rect width="100%" height="100%" fill="#fff"/>'
    )
    yield f"<title>{title}</title>"
    yield f'<text class="title" x="{_LEFT}" y="24">{title}</text>'
    yield f'<text x="{_LEFT}" y="44" style="fill:{_DIVERGENCE}">divergence, nats</text>'
    yield (
        f'<text x="{right}" y="44" text-anchor="end" style="fill:{_ACCEPTANCE}">acceptance</text>'
    )
    for step in range(5):
        share, height = step / 4, y(step / 4)
        yield f'<path d="M{_LEFT} {height:.1f}H{right}" stroke="#ddd"/>'
        left = f'<text x="{_LEFT - 8}" y="{height + 4:.1f}" text-anchor="end">'
        yield f"{left}{share * most:.2f}</text>"
        yield f'<text x="{right + 8}" y="{height + 4:.1f}">{share:.0%}</text>'
        tokens = round(share * most_tokens)
        yield f'<text x="{x(tokens):.1f}" y="{bottom}" text-anchor="middle">{tokens:,}</text>'
    yield f'<text x="{_LEFT}" y="{_HEIGHT - 8}">tokens learnt from</text>'
    for colour, shares in (
        (_DIVERGENCE, [point.divergence / most for point in history]),
        (_ACCEPTANCE, [point.acceptance for point in history]),
    ):
        drawn = " ".join(
            f"{x(point.tokens):.1f},{y(share):.1f}"
            for point, share in zip(history, shares, strict=True)
        )
        yield f'<polyline stroke="{colour}" stroke-width="2" points="{drawn}"/>'
    yield "</svg>"
