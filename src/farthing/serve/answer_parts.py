"""The parts of one answer, taken apart as it is written: reasoning, text, and calls of tools."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from farthing.serve.reasoning import ReasoningParser
    from farthing.serve.state import ToolParser


class Parts(NamedTuple):
    """What has come of each; `calls` are deltas as the API streams them."""

    reasoning: str
    text: str
    calls: Sequence[Mapping[str, Any]]


class AnswerParser:
    """Takes one answer apart. Without `reasoning`, or `tools`, there is none of these in it.

    `shows_reasoning`: it is given back, and not only taken out.
    """

    def __init__(
        self,
        reasoning: ReasoningParser | None = None,
        tools: ToolParser | None = None,
        *,
        shows_reasoning: bool = True,
    ) -> None:
        self._reasoning = reasoning
        self._tools = tools
        self._shows = shows_reasoning

    @property
    def calls(self) -> bool:
        """Whether there may be calls."""
        return self._tools is not None

    @property
    def called(self) -> bool:
        """Whether there was a call, which makes the finish reason "tool_calls"."""
        return self._tools is not None and self._tools.called

    def push(self, text: str, *, last: bool) -> Parts:
        """What is certain with this piece; everything with the `last`."""
        reasoning, calls = "", list[Any]()
        if self._reasoning is not None:
            reasoning, text = self._reasoning.push(text)
            if last:
                more, rest = self._reasoning.finish()
                reasoning, text = reasoning + more, text + rest
        if self._tools is not None:
            text, some = self._tools.push(text)
            calls += some
            if last:
                rest, some = self._tools.finish()
                text += rest
                calls += some
        return Parts(reasoning if self._shows else "", text, calls)
