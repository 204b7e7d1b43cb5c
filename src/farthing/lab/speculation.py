"""What guessing tokens ahead gains: by the formula, by how often copies of the model are right, and
measured on this machine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from farthing.core import DoesNotFitError, FarthingError
from farthing.engine.prompts import encode
from farthing.lab.drift import drift_of
from farthing.lab.speculation_copies import measure_copies
from farthing.lab.speculation_formula import REFERENCES, best_length, speed_up, tokens_per_pass
from farthing.lab.speculation_gains import TURNS, Outcome, outcomes, texts_of
from farthing.lab.speculation_prompts import given_tasks, own_tasks
from farthing.lab.speculation_turns import GUESSES, Turns
from farthing.lab.table import Column, Expectation, Plot, Row, Skipped, Table, judged
from farthing.models.load import load_model
from farthing.quality.texts import held_out_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from farthing.lab.drift import Drift
    from farthing.lab.speculation_prompts import Task
    from farthing.lab.subject import Subject
    from farthing.models.load import Model

WITHIN = 0.10
"""By what share a prediction may miss."""

TOKENS = 96
"""Of each text."""

COSTS = (0.0, 0.1, 0.25)
ACCEPTANCES = (0.3, 0.5, 0.7, 0.8, 0.9)
LENGTHS = (1, 2, 4, 8)

_LEAST_GAIN = 0.98
"""What `auto` may lose, as measured."""

_OWN_COPIES = ("INT8_ROW", "NF4_B64")
"""In which a model of 16 bits is tried as its own draft."""


def measure(subject: Subject) -> Iterator[Table | Skipped]:
    """The formula, the acceptance of copies, tokens a pass, and gains predicted and measured."""
    from farthing.text.chat import load_chat_template

    skipped: list[Skipped] = []
    drafts = list(drafts_of(subject, skipped))  # what is wrong with one is said at once
    yield references_table()
    yield formula_table()
    template = load_chat_template(subject.checkpoint, subject.tokenizer)
    tasks = (
        given_tasks(template, subject.prompts, TOKENS)
        if subject.prompts
        else own_tasks(template, TOKENS)
    )
    context = subject.model.config.context_length
    prompts = [encode(task.prompt, subject.tokenizer, template, context) for task in tasks]
    room = max(map(len, prompts)) + TOKENS
    found: list[Outcome] = []
    with Turns(subject, template, room) as turns:
        written = texts_of(turns.plain.engine, tasks)
        found += _measured(turns, subject, "looked up", tasks)
    yield from measure_copies(subject, held_out_text(), written)
    for way, draft in drafts:
        try:
            with Turns(subject, template, room, draft) as turns:
                found += _measured(turns, subject, way, tasks)
        except DoesNotFitError as error:
            skipped.append(Skipped(f"guesses by {way}", str(error)))
    yield gains_table(found, drift_of(subject.gauge.taken))
    yield from skipped


def references_table() -> Table:
    """The figures that are quoted of speculation."""
    rows: tuple[Row, ...] = tuple(
        (
            each.acceptance,
            each.guesses,
            each.draft_cost,
            tokens_per_pass(each.acceptance, each.guesses),
            1 + each.guesses * each.draft_cost,
            speed_up(each.acceptance, each.guesses, each.draft_cost),
        )
        for each in REFERENCES
    )
    return Table(
        "references",
        "Three figures that are quoted of speculation, by (1 - a^(g+1)) / ((1 - a) (1 + g c))",
        (
            Column("acceptance a"),
            Column("guesses g"),
            Column("cost of a guess c"),
            Column("tokens a pass", spec=".2f"),
            Column("price of a pass", spec=".2f"),
            Column("speed-up", spec=".2f"),
        ),
        rows,
        f"With acceptance 0.9 a pass of 8 guesses gives {rows[0][3]:.2f} tokens for a price of "
        f"{rows[0][4]:.1f}: {rows[0][5]:.2f} times as fast. With 0.3 it gives {rows[1][3]:.2f}, "
        f"and is slower than no guess at all.",
        Expectation(
            "3.40, 0.79 and 0.79 times as fast",
            all(
                round(speed_up(each.acceptance, each.guesses, each.draft_cost), 2) == each.gain
                for each in REFERENCES
            ),
        ),
    )


def formula_table() -> Table:
    """Speed-up over acceptance, length and cost, and the length that is best."""
    rows: list[Row] = []
    for cost in COSTS:
        for acceptance in ACCEPTANCES:
            gains = [speed_up(acceptance, length, cost) for length in LENGTHS]
            rows.append((acceptance, cost, *gains, best_length(acceptance, cost, 16)))
    losing = sum(isinstance(gain, float) and gain < 1 for row in rows for gain in row[2:-1])
    return Table(
        "formula",
        "Speed-up by the formula, where a pass over several tokens takes as long as over one",
        (
            Column("acceptance", spec=".1f"),
            Column("cost of a guess", spec=".2f"),
            *(
                Column(f"with {length} guess{'es' if length > 1 else ''}", spec=".2f")
                for length in LENGTHS
            ),
            Column("best length, up to 16"),
        ),
        tuple(rows),
        f"{losing} of {len(rows) * len(LENGTHS)} are slower than plain decoding: what pays depends "
        "on the acceptance, so it has to be measured.",
    )


def gains_table(found: Sequence[Outcome], drift: Drift) -> Table:
    """Predicted beside measured, of every way to guess on every text.

    What is judged are the intervals that are due where the machine moves by `drift`.
    """
    rows: tuple[Row, ...] = tuple(
        (
            each.way,
            each.task,
            each.plain,
            each.passes,
            each.seen.share,
            each.seen.right[0] if each.seen.right else None,
            each.seen.tokens_a_pass,
            each.verify,
            each.draft,
            each.host,
            each.plain_beyond,
            each.beyond,
            each.formula,
            each.predicted,
            each.always,
            each.miss.scaled(100),
            each.auto,
        )
        for each in found
    )
    misses = [each.miss.median for each in found]
    close = sum(abs(miss) <= WITHIN for miss in misses)
    intervals = [each.miss.widened(drift) for each in found]
    beyond = sum(each.low > WITHIN or each.high < -WITHIN for each in intervals)
    losing = sum(each.auto.widened(drift).high < _LEAST_GAIN for each in found)
    best = max(found, key=lambda each: each.auto.median)
    worst = min(found, key=lambda each: each.auto.median)
    return Table(
        "gains",
        f"Guessing {GUESSES} tokens ahead in every step that can: predicted, and measured beside "
        "plain decoding, one text at a time",
        (
            Column("guessed by"),
            Column("text"),
            Column("plain", "tokens/s", ".0f"),
            Column("its steps"),
            Column("steps with guesses", spec=".0%"),
            Column("first right", spec=".2f"),
            Column("tokens of such a step", spec=".2f"),
            Column("its time over a plain one's", spec=".2f"),
            Column("time of a guess over it", spec=".2f"),
            Column("the host's over it", spec=".2f"),
            Column("plain steps in the engine over apart", spec=".2f"),
            Column("all steps in the engine over apart", spec=".2f"),
            Column("gain by the formula", spec=".2f"),
            Column("predicted gain", spec=".2f"),
            Column("measured gain", spec=".2f"),
            Column("prediction off by", "%", "+.0f"),
            Column("gain of auto", spec=".2f"),
        ),
        rows,
        f"{close} of {len(found)} predictions lie within {WITHIN:.0%} of what was measured, the "
        f"worst is {max(misses, key=abs):+.0%} off; {beyond} are further off by all of their "
        f"interval. Left to itself the engine gains most on {best.task} ({best.way}, "
        f"{best.auto.median:.2f} times) and least on {worst.task} ({worst.way}, "
        f"{worst.auto.median:.2f}).",
        Expectation(
            f"every prediction within {WITHIN:.0%}, and auto never under {_LEAST_GAIN} times plain",
            judged(close == len(found) and worst.auto.median >= _LEAST_GAIN, beyond + losing > 0),
        ),
        notes=(
            (
                "predicted: for each pass that is made, a step of as many tokens behind as many "
                "others, timed apart in the same turn, and the host's time before one in a run "
                f"that was counted; a round's figure is the median of {TURNS} turns; off by: in "
                "the same round"
            ),
            "by the formula: from how often the guess at each place was right in that run",
            "not judged where a median is beyond a bound, and its interval is not",
        ),
        plots=(Plot("points", "predicted gain", ("measured gain",), labels="text"),),
    )


def _measured(turns: Turns, subject: Subject, way: str, tasks: list[Task]) -> list[Outcome]:
    return outcomes(turns, way, tasks, subject.rounds, subject.progress.phase, subject.gauge.look)


def drafts_of(subject: Subject, skipped: list[Skipped]) -> Iterator[tuple[str, Model]]:
    """Models that may guess for the subject: the one given, and copies of itself."""
    from farthing.engine.draft_copy import narrow_formats, stored_again
    from farthing.engine.drafting import refuse_larger, refuse_other_tokens
    from farthing.files.catalog import resolve
    from farthing.files.checkpoint import open_checkpoint
    from farthing.text.load import load_tokenizer

    if subject.draft is not None:
        checkpoint = open_checkpoint(resolve(subject.draft, subject.progress))
        draft = load_model(checkpoint)
        refuse_larger(draft, subject.model)
        refuse_other_tokens(load_tokenizer(checkpoint), subject.tokenizer)
        yield subject.draft, draft
    if narrow_formats(subject.model):
        reason = "its weights have fewer than 16 bits, and a copy would be no cheaper to run"
        skipped.append(Skipped("copies of the model as its draft", reason))
        return
    for name in _OWN_COPIES:
        try:
            yield f"a copy in {name}", stored_again(subject.model, name)
        except FarthingError as error:
            skipped.append(Skipped(f"a copy in {name} as draft", str(error)))
