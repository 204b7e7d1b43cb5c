"""What becomes of a step's guesses: the rows of a draft count as long as it was right."""

from __future__ import annotations

from typing import TYPE_CHECKING

from farthing.engine.acceptance import MOST_DRAFTS

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Sequence as ListOf

    from farthing.engine.sequence import Sequence
    from farthing.engine.step import Step


class DraftCounts:
    """How guesses fared since the start; only growing, but for what they saved.

    `drafts` were put to the test, one of one sequence in one step each, in `steps` steps. The guess
    at place k of its draft, counted from 0, was tested `tested[k]` times, which takes that all
    before it were right, and right `right[k]` times. `proposed` were computed in all.

    Steps that only decoded took `seconds_with` where guesses were tested, and `seconds_without`
    where none were. `saved_seconds` is how much longer the former's tokens would have taken
    without, as far as that can be estimated; less than 0 where guesses lost.
    """

    def __init__(self) -> None:
        self.drafts = self.steps = self.proposed = 0
        self.seconds_with = self.seconds_without = self.saved_seconds = 0.0
        self.tested = [0] * MOST_DRAFTS
        self.right = [0] * MOST_DRAFTS

    def copy(self) -> DraftCounts:
        """As they are now."""
        copied = DraftCounts()
        vars(copied).update(vars(self))
        copied.tested, copied.right = list(self.tested), list(self.right)
        return copied

    @property
    def accepted(self) -> int:
        """The guesses that proved right."""
        return sum(self.right)

    @property
    def tokens_per_pass(self) -> float:
        """How many tokens a sequence gained in a step that tested a draft of its; 1 for none."""
        return 1 + self.accepted / self.drafts if self.drafts else 1.0

    @property
    def gain(self) -> float:
        """Tokens a second over those without guesses, of all that was decoded; 1 before that."""
        seconds = self.seconds_with + self.seconds_without
        return 1 + self.saved_seconds / seconds if seconds else 1.0

    def add(self, tested: int, right: int) -> None:
        """Of a draft's guesses so many were tested, and the first ones of these right."""
        self.drafts += 1
        for place in range(tested):
            self.tested[place] += 1
            self.right[place] += place < right


def take_drafted(
    step: Step,
    tokens: ListOf[int],
    append: Callable[[Sequence, int, int], None],
    confirm: Callable[[Sequence], None],
) -> tuple[list[Sequence], dict[Sequence, tuple[int, int]]]:
    """Takes in the sampled `tokens` of a step with drafts, one a row.

    `append(sequence, row, token)` gives a sequence a token, and notices where that is its last;
    `confirm(sequence)` says that a guess was right, and so is computed. Returns the sequences that
    gained tokens, and for each that had a draft how many guesses were tested, and how many right.
    """
    gained: list[Sequence] = []
    fared = dict.fromkeys(step.drafts, (0, 0))
    right = True
    for row, (sequence, token, target, drafted) in enumerate(
        zip(step.wanted, tokens, step.targets, step.drafted, strict=True)
    ):
        if target >= 0:
            continue
        if drafted < 0:
            right = True
            if sequence.finish_reason is None:
                gained.append(sequence)
        elif right and sequence.finish_reason is None:
            right = sequence.tokens[-1] == drafted
            tested, accepted = fared[sequence]
            fared[sequence] = tested + 1, accepted + right
            if right:
                confirm(sequence)
        if right and sequence.finish_reason is None:
            append(sequence, row, token)
    return gained, fared
