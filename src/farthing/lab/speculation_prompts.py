"""What speculation is measured on: prompts whose answers repeat much of them, and others."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from farthing.core import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Sequence

    from farthing.text.chat import ChatTemplate

_FUNCTION = """\
def moving_average(values, window):
    if window <= 0:
        raise ValueError("window must be positive")
    result = []
    total = 0.0
    for index, value in enumerate(values):
        total += value
        if index >= window:
            total -= values[index - window]
        if index >= window - 1:
            result.append(total / window)
    return result


def normalise(values):
    low = min(values)
    high = max(values)
    if high == low:
        return [0.0 for value in values]
    return [(value - low) / (high - low) for value in values]
"""

_NOTICE = """\
The harbour office of Westhaven announces the departures of the coming week. The Marigold leaves
for Port Ellis on Monday at seven in the morning under Captain Ruth Anders, with a cargo of timber.
The Northern Light leaves for Saint Brannock on Tuesday at half past nine under Captain Tom Okafor,
with a cargo of wool and salted fish. The Patient Heron leaves for Port Ellis on Thursday at noon
under Captain Ines Duarte, with a cargo of machine parts. Passengers are asked to be on the quay an
hour before departure.
"""

WORKLOADS = {
    "code": (
        f"Repeat this code with `values` renamed to `samples`:\n\n```python\n{_FUNCTION}```",
        f"Add a docstring to each function and repeat all code:\n\n```python\n{_FUNCTION}```",
    ),
    "extraction": (
        f"Copy every sentence of this notice that names a ship, word for word:\n\n{_NOTICE}",
        f"List each ship, destination, captain and cargo in the notice's own words:\n\n{_NOTICE}",
    ),
    "story": (
        "Write a story about a lighthouse keeper who finds a letter in a bottle.",
        "Tell a tale of two rival clockmakers in a mountain village.",
    ),
    "chat": (
        "What should I think of before I adopt a dog?",
        "Explain how a bicycle stays upright, as you would to a friend.",
    ),
}
"""By name; each prompt is a message of a chat, or a text to be continued by a model without one."""


@dataclass(frozen=True)
class Task:
    """A prompt, how its answer is sampled, and what kind of work it is."""

    group: str
    prompt: Any
    sampling: SamplingParams


def own_tasks(template: ChatTemplate | None, tokens: int) -> list[Task]:
    """The first prompt of each kind, greedily, and exactly so many tokens."""
    sampling = SamplingParams(max_tokens=tokens, ignore_eos=True)
    return [
        Task(group, _for(template, prompts[0]), sampling) for group, prompts in WORKLOADS.items()
    ]


def given_tasks(
    template: ChatTemplate | None, given: Sequence[tuple[Any, SamplingParams]], tokens: int
) -> list[Task]:
    """A person's prompts: as they are sampled there, and at most so many tokens."""
    tasks = []
    for number, (prompt, sampling) in enumerate(given, 1):
        most = tokens if sampling.max_tokens is None else min(tokens, sampling.max_tokens)
        tasks.append(Task(f"prompt {number}", _for(template, prompt), _at_most(sampling, most)))
    return tasks


def _at_most(sampling: SamplingParams, tokens: int) -> SamplingParams:
    seed = 0 if sampling.seed is None else sampling.seed
    return replace(
        sampling, max_tokens=tokens, min_tokens=min(sampling.min_tokens, tokens), seed=seed
    )


def _for(template: ChatTemplate | None, prompt: Any) -> Any:
    if isinstance(prompt, str) and template is not None:
        return [{"role": "user", "content": prompt}]
    return prompt
