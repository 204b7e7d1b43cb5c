"""What guessing gains on this machine: foretold from its passes, and measured in turns with plain.

Greedy or with a seed, a text takes the same passes each time: so they are counted before, and what
they should take is foretold in each round from steps that are timed apart, just before the text is
decoded both ways. A round is several short turns of all texts, of which each figure's median
counts: what slows the machine for a moment spoils one turn and no round. What the host takes for a
pass is known from the run that was counted, the middle one of as many. Beside it
stands what the formula makes of that run: in which share of steps there is a guess, and how often
the one at each place is right.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING

from farthing.core import CheckFailedError
from farthing.lab.samples import Samples
from farthing.lab.speculation_turns import at, summed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from farthing.engine.engine import Engine
    from farthing.engine.verification import DraftCounts
    from farthing.lab.speculation_prompts import Task
    from farthing.lab.speculation_turns import Decoded, Turns, Way


TURNS = 3
"""Of each text in a round."""


@dataclass(frozen=True)
class Seen:
    """What a run with guesses showed, of one text.

    In `share` of its steps there was a guess, `length` of them on average, of which the one at each
    place was `right` so often where those before it were; `pass_seconds` is what one took.
    """

    share: float
    length: float
    right: tuple[float, ...]
    pass_seconds: float

    @classmethod
    def of(cls, before: DraftCounts, after: DraftCounts, tokens: int, seconds: float) -> Seen:
        """Of two counts, between which `tokens` were decoded, and `seconds` spent on guesses."""
        drafts = after.drafts - before.drafts
        proposed = after.proposed - before.proposed
        if not drafts:
            return cls(0.0, 0.0, (), 0.0)
        tested = [late - early for early, late in zip(before.tested, after.tested, strict=True)]
        right = [late - early for early, late in zip(before.right, after.right, strict=True)]
        plain = max(0, tokens - drafts - sum(right))
        return cls(
            drafts / (drafts + plain),
            proposed / drafts,
            tuple(one / all_ for one, all_ in zip(right, tested, strict=True) if all_),
            seconds / proposed,
        )

    @property
    def tokens_a_pass(self) -> float:
        """Of a step with guesses, by the rate of each place."""
        product, tokens = 1.0, 1.0
        for place, rate in enumerate(self.right):
            product *= rate
            tokens += product * min(1.0, max(0.0, self.length - place))
        return tokens


@dataclass(frozen=True)
class Outcome:
    """One text with one way to guess.

    `verify` is the time of a step with guesses over that of a plain one, `draft` that of a guess,
    `host` that of the host for a pass with guesses. `always` and `auto` are gains over plain
    decoding: with as many guesses in each step as are to be had, up to `GUESSES`, which is what is
    `predicted`, and what the `formula` predicts; and with what the engine chooses. `beyond` is what
    the passes took over what their steps, timed apart, say: plain ones, and those of `always`.
    """

    way: str
    task: str
    plain: Samples
    passes: int
    seen: Seen
    verify: Samples
    draft: Samples
    host: Samples
    plain_beyond: Samples
    beyond: Samples
    formula: Samples
    predicted: Samples
    always: Samples
    auto: Samples

    @property
    def miss(self) -> Samples:
        """How far the prediction is off, as a share of what was measured in the same round."""
        return self.predicted.over(self.always).shifted(-1)


@dataclass
class _Trial:
    """A text on its way through the rounds: what was counted, then a value a turn."""

    task: Task
    plain: Decoded
    always: Decoded
    seen: Seen
    context: int
    values: dict[str, list[float]] = field(default_factory=dict)

    def add(self, **values: float) -> None:
        for name, value in values.items():
            self.values.setdefault(name, []).append(value)

    def samples(self, name: str, *, paired: bool = True) -> Samples:
        """A value a round."""
        found = self.values[name]
        rounds = (found[at : at + TURNS] for at in range(0, len(found), TURNS))
        return Samples(tuple(median(each) for each in rounds), paired=paired)


def texts_of(engine: Engine, tasks: Iterable[Task]) -> list[tuple[list[int], int]]:
    """What the model writes for each task: all tokens, and how many of them are the prompt."""
    texts = []
    for task in tasks:
        prompt = engine.encode(task.prompt)
        made = engine.generate(task.prompt, task.sampling)
        texts.append(([*prompt, *made.token_ids], len(prompt)))
    return texts


def outcomes(
    turns: Turns,
    way: str,
    tasks: Sequence[Task],
    rounds: int,
    say: Callable[[str], None],
    look: Callable[[], None],
) -> list[Outcome]:
    """Counts every task's passes, then foretells and measures each in each turn of each round.

    `say` is told what comes next; `look` is called before each.
    """
    trials = []
    for task in tasks:
        say(f"{way}, {task.group}: its passes are counted")
        trials.append(_counted(turns, task))
    for number in range(1, rounds + 1):
        for turn in range(1, TURNS + 1):
            for trial in trials:
                say(f"{way}, {trial.task.group}, turn {turn} of round {number} of {rounds}")
                look()
                _measure(turns, trial)
    return [_outcome(way, trial) for trial in trials]


def _counted(turns: Turns, task: Task) -> _Trial:
    """Not of the first time each: what is done for the first time takes longer."""
    for each in (turns.plain, turns.always, turns.auto):
        each.decode(task)
    found = [(turns.plain.decode(task), turns.always.decode(task)) for _ in range(TURNS)]
    plain, always = (_middle(each) for each in zip(*found, strict=True))
    _same(task, plain, always)
    seen = Seen.of(always.before, always.after, len(plain.tokens) - 1, always.in_guesses)
    context = len(turns.plain.engine.encode(task.prompt)) + len(plain.tokens) // 2
    return _Trial(task, plain, always, seen, context)


def _measure(turns: Turns, trial: _Trial) -> None:
    """One turn: steps apart, and then the text three times."""
    counted, task = trial.always, trial.task
    steps = turns.step_seconds({1, *counted.passes}, trial.context, task.sampling)
    guesses = turns.guess_seconds({1, *counted.guesses}, trial.context)
    plain, always, auto = (
        _alike(each, task, trial.plain) for each in (turns.plain, turns.always, turns.auto)
    )
    foretold = trial.plain.foretold(steps, {})
    with_guesses = {size: count for size, count in counted.passes.items() if size > 1}
    verified = summed(with_guesses, steps) / max(1, sum(with_guesses.values()))
    trial.add(
        plain=plain.each_token,
        verify=(verified or steps[1]) / steps[1],
        draft=at(guesses, 1) / steps[1] if guesses else 0.0,
        host=always.guess_host / steps[1],
        plain_beyond=plain.in_passes / summed(plain.passes, steps),
        beyond=(always.in_passes + always.in_guesses)
        / (summed(always.passes, steps) + summed(always.guesses, guesses)),
        formula=predicted_gain(trial.seen, steps, trial.plain.plain_host, counted.guess_host),
        predicted=foretold / counted.foretold(steps, guesses),
        always=plain.seconds / always.seconds,
        auto=plain.seconds / auto.seconds,
    )


def _outcome(way: str, trial: _Trial) -> Outcome:
    names = (
        *("verify", "draft", "host", "plain_beyond", "beyond"),
        *("formula", "predicted", "always", "auto"),
    )
    return Outcome(
        way,
        trial.task.group,
        trial.samples("plain", paired=False).per(1.0),
        trial.always.passes.total(),
        trial.seen,
        *(trial.samples(name) for name in names),
    )


def predicted_gain(
    seen: Seen, steps: Mapping[int, float], host: float, host_guessing: float
) -> float:
    """Tokens a second over plain decoding, by the formula.

    S = E / cost, where a step gives E tokens and costs so much of a plain one: with guesses in a
    share s of steps, E = 1 - s + s * (tokens a pass), and as much of the time. `steps` are seconds
    by the tokens of a step, `host` and `host_guessing` the host's in steps without and with.
    """
    plain = steps[1] + host
    guessing = at(steps, 1 + seen.length) + host_guessing + seen.length * seen.pass_seconds
    tokens = 1 - seen.share + seen.share * seen.tokens_a_pass
    return tokens * plain / ((1 - seen.share) * plain + seen.share * guessing)


def _middle(found: Sequence[Decoded]) -> Decoded:
    return sorted(found, key=lambda each: each.seconds)[len(found) // 2]


def _alike(way: Way, task: Task, before: Decoded) -> Decoded:
    found = way.decode(task)
    _same(task, before, found)
    return found


def _same(task: Task, one: Decoded, other: Decoded) -> None:
    if one.tokens != other.tokens:
        raise CheckFailedError(
            f"guessing changed the text of {task.group}: this is a fault of farthing; farthing "
            "verify shows where, please report it"
        )
