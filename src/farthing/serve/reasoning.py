"""Reasoning: what some models write before an answer, told apart from it as it is written.

How a model marks it is found in its chat template: by trying, as with tools (`tool_templates.py`),
or by the tag that most have. Only what stands at the beginning of an answer is reasoning; a tag
that comes later is text. How the text is cut into pieces makes no difference.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from farthing.core import RequestError
from farthing.serve.errors import ApiError
from farthing.serve.tool_parser import MOST_SPACE, overlap

if TYPE_CHECKING:
    from collections.abc import Sequence

    from farthing.text.chat import ChatTemplate
    from farthing.text.tokenizer import Tokenizer

_TAIL_TOKENS = 16
"""Of a prompt: an opening tag, as several tokens, and white space."""


@dataclass(frozen=True)
class Tags:
    """What stands before and after a model's reasoning."""

    opening: str
    closing: str


USUAL = Tags("<think>", "</think>")

_EFFORT = "reasoning_effort"
_SWITCHES = ("enable_thinking", "thinking")
"""What templates call the variables for it: gpt-oss, Qwen and SmolLM3, DeepSeek and Granite."""

_HINTS = ("think", "reason")
_TAG = r"<[^<>\s]{1,40}>|\[[^\[\]\s]{1,40}\]"
_PROBE = re.compile(rf"(?P<opening>{_TAG})\s*probe_reasoning\s*(?P<closing>{_TAG})")


def tags_of(template: ChatTemplate | None, tokenizer: Tokenizer) -> Tags | None:
    """How the model that the template belongs to marks its reasoning; None where it does not.

    Tags that are control tokens are in no text that is decoded, so nothing can go by them.
    """
    if template is None or not any(hint in template.source.lower() for hint in _HINTS):
        return None
    found = _PROBE.search(_rendered(template))
    if found is not None:
        tags = Tags(found["opening"], found["closing"])
    elif USUAL.closing in template.source:
        tags = USUAL
    else:
        return None
    return tags if all(_is_text(each, tokenizer) for each in (tags.opening, tags.closing)) else None


def effort_variables(
    effort: str, template: ChatTemplate, tokenizer: Tokenizer
) -> dict[str, object]:
    """The variables by which a template is told how much to reason: "none", "low", ...

    One that knows efforts is given the word; one that knows reasoning only as on or off has it on
    for all but "none". Raises `ApiError` 400 for one that has no such switch, unless there is
    nothing to switch off.
    """
    read = template.variables()
    chosen: dict[str, object] = {name: effort != "none" for name in _SWITCHES if name in read}
    if _EFFORT in read:
        chosen[_EFFORT] = effort
    if chosen or (effort == "none" and tags_of(template, tokenizer) is None):
        return chosen
    raise ApiError(
        400,
        f"reasoning_effort {effort!r} cannot be followed: this model's chat template has no switch "
        "for reasoning, so it reasons as it was trained to, or not at all: leave it out",
        param="reasoning_effort",
        code="unsupported_parameter",
    )


def _rendered(template: ChatTemplate) -> str:
    names = ("reasoning_content", "reasoning", "thinking")
    answer = {"role": "assistant", "content": "probe_answer"}
    chat = [
        {"role": "user", "content": "probe_question"},
        {**answer, **dict.fromkeys(names, "probe_reasoning")},
    ]
    try:
        return template.render(chat, add_generation_prompt=False)
    except RequestError:
        return ""


def _is_text(tag: str, tokenizer: Tokenizer) -> bool:
    ids = tokenizer.encode(tag, add_special_tokens=False, parse_special=True)
    return tokenizer.decode(ids).strip() == tag


def is_begun(prompt: Sequence[int], tags: Tags, tokenizer: Tokenizer) -> bool:
    """Whether a prompt, as token ids, ends with the opening tag: its answer begins behind it."""
    tail = tokenizer.decode(prompt[-_TAIL_TOKENS:], skip_special_tokens=False, continuation=True)
    return tail.rstrip().endswith(tags.opening)


def reasoning_tokens(answer: Sequence[int], tags: Tags, tokenizer: Tokenizer) -> int:
    """How many tokens of an answer that begins with reasoning are that, its closing tag included.

    All of them where it never ends.
    """
    closing, read = tags.closing.encode(), b""
    for count, token in enumerate(answer, 1):
        read = read[-len(closing) :] + tokenizer.token_bytes(token)
        if closing in read:
            return count
    return len(answer)


class ReasoningParser:
    """Takes the reasoning off one answer. `begun`: the prompt has opened it already.

    White space around the reasoning, and before what follows it, belongs to neither. `reasoned`:
    there was some, if only an opening tag.
    """

    def __init__(self, tags: Tags, *, begun: bool) -> None:
        self.reasoned = begun
        self._tags = tags
        self._state = self._read_start
        self._held = ""
        self._said = False  # some of the reasoning has been passed on
        self._reasoning = ""
        self._content = ""

    def push(self, text: str) -> tuple[str, str]:
        """What is certain by now of the reasoning, and of what follows."""
        self._held += text
        while self._held and self._state():
            pass
        return self._taken()

    def finish(self) -> tuple[str, str]:
        """What was held back, when no more text comes."""
        if self._state == self._read_reasoning:
            self._reasoning += self._held.rstrip()
        elif self._state == self._read_start and not self.reasoned:
            self._content += self._held
        self._held = ""
        return self._taken()

    def _taken(self) -> tuple[str, str]:
        taken = self._reasoning, self._content
        self._reasoning = self._content = ""
        return taken

    # Each state reads some of what is held; False where it needs more.

    def _read_start(self) -> bool:
        text, opening = self._held.lstrip(), self._tags.opening
        if len(self._held) - len(text) <= MOST_SPACE:
            if len(text) < len(opening) and opening.startswith(text):
                return False
            if text.startswith(opening):
                self._held = text.removeprefix(opening)
                self.reasoned = True
        self._state = self._read_reasoning if self.reasoned else self._read_content
        return True

    def _read_reasoning(self) -> bool:
        text, closing = self._held, self._tags.closing
        if not self._said:
            text = text.lstrip()
        found = text.find(closing)
        end = len(text) - overlap(text, closing) if found < 0 else found
        certain = max(len(text[:end].rstrip()), end - MOST_SPACE)
        self._said = self._said or certain > 0
        self._reasoning += text[:certain]
        if found < 0:
            self._held = text[certain:]
            return False
        self._held = text[found + len(closing) :]
        self._state = self._skip_space
        return True

    def _skip_space(self) -> bool:
        self._held = self._held.lstrip()
        if self._held:
            self._state = self._read_content
        return bool(self._held)

    def _read_content(self) -> bool:
        self._content += self._held
        self._held = ""
        return False
