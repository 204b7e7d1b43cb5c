"""Formats with and without the methods that are to repair what they lose."""

from __future__ import annotations

from dataclasses import dataclass

from farthing.files.formats import spelling
from farthing.forge.methods import Method


@dataclass(frozen=True)
class Step:
    """A format, and the methods that it is made with in the order of `Method`."""

    scheme: str
    methods: tuple[Method, ...] = ()

    def with_method(self, method: Method) -> Step:
        """The same with one method more."""
        return Step(self.scheme, tuple(each for each in Method if each in (*self.methods, method)))

    @property
    def name(self) -> str:
        """For people: int4-g128 + gptq."""
        return " + ".join((spelling(self.scheme), *self.methods))


@dataclass(frozen=True)
class Remedy:
    """`base`, and the method that is added to it; `expected` to bring the model closer again."""

    base: Step
    method: Method
    expected: bool = True

    @property
    def treated(self) -> Step:
        """With the method."""
        return self.base.with_method(self.method)


FOUR_BITS = Step("INT4_G128")
EIGHT_BITS = Step("INT8_ROW")
STATIC = EIGHT_BITS.with_method(Method.STATIC_INPUTS)

REMEDIES = (
    Remedy(FOUR_BITS, Method.GPTQ),
    Remedy(FOUR_BITS, Method.AWQ),
    Remedy(FOUR_BITS, Method.ROTATE, expected=False),
    Remedy(EIGHT_BITS, Method.STATIC_INPUTS, expected=False),
    Remedy(STATIC, Method.SMOOTHQUANT),
    Remedy(STATIC, Method.LLM_INT8),
    Remedy(STATIC, Method.ROTATE),
)
"""Static inputs are no remedy but the trouble that the last three are made for."""

STEPS = tuple(dict.fromkeys(step for remedy in REMEDIES for step in (remedy.base, remedy.treated)))
