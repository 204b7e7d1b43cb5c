"""Training a student: gradients by the torch backend over its own Program, AdamW, checkpoints.

Nothing is drawn at random but the order of texts, which follows from the seed and the number of the
reading; so step n is the same whether the steps before it were made by this process or by one that
was killed, and a checkpoint holds weights, AdamW's moments and the number of steps.
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count, islice
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from farthing.backends.torch import TorchBackend
from farthing.core import FarthingError
from farthing.forge import losses
from farthing.forge.arrays import read_arrays, write_arrays
from farthing.forge.batches import batch_tokens, cut, packed, reading_order, score_of_token
from farthing.models.trimmed_head import head_rows_only

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray
    from torch import Tensor

    from farthing.forge.batches import Batch
    from farthing.forge.lessons import Lesson
    from farthing.models.load import Model

LARGEST_RATE, SMALLEST_RATE = 1e-3, 1e-4
CHECKPOINT_SECONDS = 180.0

_WARM_UP_SHARE = 0.05
_DIVERGENCE_SHARE = 0.7
_DECAY = 0.01
_LARGEST_NORM = 1.0
_EVALUATIONS = 25
_EVALUATED_TOKENS = 4096


@dataclass(frozen=True)
class Taught:
    """How a student is taught. A draft by divergence, then by total variation; a student as it is
    asked: see `DistillWish`.
    """

    kind: Literal["draft", "student"]
    seed: int
    temperature: float = 1.0
    hard_share: float = 0.0
    reverse: bool = False


@dataclass(frozen=True)
class Point:
    """The state after `step` steps, which read `tokens` tokens: the mean loss since the point
    before, and on the held-out text divergence in nats, the probability that a guess is taken, and
    how often the likeliest tokens are the same.
    """

    step: int
    tokens: int
    loss: float
    divergence: float
    acceptance: float
    agreement: float


@contextmanager
def repeatable(threads: int) -> Iterator[None]:
    """While the block runs, torch has so many threads and only operations that repeat exactly."""
    before = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.set_num_threads(before[0])
        torch.use_deterministic_algorithms(before[1])


class Trainer:
    """A student that learns from `lessons` in `steps` steps, measured on `held_out`.

    `head_tokens` are those that it has scores for, None for all.
    """

    def __init__(
        self,
        student: Model,
        head_tokens: tuple[int, ...] | None,
        lessons: Sequence[Lesson],
        held_out: Sequence[Lesson],
        taught: Taught,
        steps: int,
    ) -> None:
        program = head_rows_only(student.program)
        self._backend = TorchBackend(replace(student, program=program))
        self.parameters = self._backend.parameters
        for each in self.parameters.values():
            each.requires_grad_(True)
        self._optimizer = torch.optim.AdamW(
            [
                {"params": self._of_rank(2), "weight_decay": _DECAY},
                {"params": self._of_rank(1), "weight_decay": 0.0},
            ],
            lr=LARGEST_RATE,
            betas=(0.9, 0.95),
            fused=True,
        )
        self._scores = score_of_token(head_tokens, student.program.vocabulary_size)
        self._tokens = batch_tokens(program.vocabulary_size)
        self._lessons, self._taught = lessons, taught
        self._held_out = self._evaluated(held_out)
        self.steps = steps
        self.step = self.tokens = 0
        self.seconds = 0.0
        self.history: list[Point] = []
        self._losses: list[float] = []
        self._batches = self._from_step(0)

    def steps_of(self, readings: int) -> int:
        """How many steps read all lessons so often: each order is cut into as many as it makes."""
        return sum(1 for reading in range(readings) for _ in self._reading(reading))

    def train(
        self, checkpoint: Path, told: Callable[[Point, float], None], stop: Callable[[], bool]
    ) -> bool:
        """Makes the steps that are left, and answers whether it came to the end.

        It writes `checkpoint` every few minutes, at the end, and when `stop` answers True after a
        step, which ends it. `told` is given the newest point and the tokens a second. Raises
        `FarthingError` where a checkpoint cannot be written (the one before it stays), and where
        the loss is no number.
        """
        if not self.history:
            self._measure()
        started = saved = counted = perf_counter()
        read_before = self.tokens
        while self.step < self.steps:
            self._advance()
            if self.step % self._interval == 0 or self.step == self.steps:
                self._measure()
            now = perf_counter()
            self.seconds += now - counted
            counted = now
            told(self.history[-1], (self.tokens - read_before) / (now - started))
            stopped = stop()
            if stopped or self.step == self.steps or now - saved >= CHECKPOINT_SECONDS:
                self.save(checkpoint)
                saved = perf_counter()
            if stopped and self.step < self.steps:
                return False
        return True

    def seconds_a_step(self, steps: int = 3) -> float:
        """Makes `steps` steps after a first one and gives what one takes: for a student that is
        thrown away afterwards.
        """
        self._advance()
        started = perf_counter()
        for _ in range(steps):
            self._advance()
        return (perf_counter() - started) / steps

    def save(self, checkpoint: Path) -> None:
        """Writes weights, moments, number of steps and history."""
        arrays: dict[str, NDArray[Any]] = {
            "counts": np.array([self.step, self.tokens], np.int64),
            "seconds": np.array([self.seconds]),
            "losses": np.array(self._losses, np.float64),
            "history": np.array([_numbers(point) for point in self.history], np.float64),
        }
        for name, parameter in self.parameters.items():
            arrays[f"weight.{name}"] = parameter.detach().numpy()
            state = self._optimizer.state[parameter]
            if state:
                arrays[f"mean.{name}"] = state["exp_avg"].numpy()
                arrays[f"square.{name}"] = state["exp_avg_sq"].numpy()
        write_arrays(checkpoint, arrays)

    def restore(self, checkpoint: Path) -> None:
        """Goes on from a checkpoint. Raises `FarthingError` for a damaged one."""
        arrays = read_arrays(checkpoint)
        try:
            self.step, self.tokens = arrays["counts"].tolist()
            self.seconds = float(arrays["seconds"][0])
            self._losses = arrays["losses"].tolist()
            self.history = [
                Point(int(row[0]), int(row[1]), *row[2:]) for row in arrays["history"].tolist()
            ]
            with torch.no_grad():
                for name, parameter in self.parameters.items():
                    parameter.copy_(torch.from_numpy(arrays[f"weight.{name}"]))
                    if self.step:
                        self._optimizer.state[parameter] = {
                            "step": torch.tensor(float(self.step)),
                            "exp_avg": torch.from_numpy(arrays[f"mean.{name}"]).clone(),
                            "exp_avg_sq": torch.from_numpy(arrays[f"square.{name}"]).clone(),
                        }
        except (KeyError, RuntimeError, ValueError, TypeError) as error:
            raise FarthingError(
                f"{checkpoint} is no checkpoint of this student ({error!s:.120}): remove it, and "
                "training begins anew from the text that is there"
            ) from error
        self._batches = self._from_step(self.step)

    def weights(self, name: str) -> NDArray[np.float32]:
        """The weight of that name as it is now."""
        found: NDArray[np.float32] = self.parameters[name].detach().numpy()
        return found

    @property
    def newest_loss(self) -> float:
        """That of the last step; NaN before the first."""
        if self._losses:
            return self._losses[-1]
        return self.history[-1].loss if self.history else math.nan

    @property
    def _interval(self) -> int:
        return max(1, self.steps // _EVALUATIONS)

    def _of_rank(self, rank: int) -> list[Tensor]:
        return [each for each in self.parameters.values() if each.ndim == rank]

    def _from_step(self, step: int) -> Iterator[list[Lesson]]:
        return islice(self._endless(), step, None)

    def _endless(self) -> Iterator[list[Lesson]]:
        for reading in count():
            yield from self._reading(reading)

    def _reading(self, reading: int) -> Iterator[list[Lesson]]:
        order = reading_order(len(self._lessons), self._taught.seed, reading)
        return cut(self._lessons, order, self._tokens)

    def _advance(self) -> None:
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate(self.step, self.steps)
        batch = packed(next(self._batches), self._scores)
        self._optimizer.zero_grad()
        loss = self._loss(self._scored(batch), batch)
        found = float(loss.detach())
        if not math.isfinite(found):
            raise FarthingError(
                f"the loss is {found} at step {self.step + 1}: the teacher's weights are damaged, "
                "or too large to be trained in float32"
            )
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_([*self.parameters.values()], _LARGEST_NORM)
        self._optimizer.step()
        self.step += 1
        self.tokens += len(batch.rows)
        self._losses.append(found)

    def _scored(self, batch: Batch) -> Tensor:
        return self._backend.forward_packed(batch.token_ids, batch.starts, batch.rows)

    def _loss(self, logits: Tensor, batch: Batch) -> Tensor:
        taught, labels = self._taught, batch.labels
        if taught.kind == "draft":
            if self.step < _DIVERGENCE_SHARE * self.steps:
                return losses.forward_kl(logits, labels).mean()
            return losses.total_variation(logits, labels).mean()
        divergence = losses.reverse_kl if taught.reverse else losses.forward_kl
        # Softened gradients are smaller by the square of the temperature: Hinton et al. 2015.
        soft = taught.temperature**2 * divergence(logits, labels, taught.temperature).mean()
        if taught.hard_share == 0:
            return soft
        hard = losses.cross_entropy(logits, labels).mean()
        return (1 - taught.hard_share) * soft + taught.hard_share * hard

    def _evaluated(self, held_out: Sequence[Lesson]) -> list[Batch]:
        chosen: list[Lesson] = []
        tokens = 0
        for each in held_out:
            if tokens < _EVALUATED_TOKENS:
                chosen.append(each)
                tokens += len(each.token_ids) - each.written
        groups = cut(chosen, range(len(chosen)), self._tokens)
        return [packed(group, self._scores) for group in groups]

    def _measure(self) -> None:
        """Adds a point to the history."""
        sums, rows = np.zeros(3), 0
        with torch.no_grad():
            for batch in self._held_out:
                logits = self._scored(batch)
                # Labels may be of another temperature than 1, at which all are compared here.
                labels = replace(batch.labels, log_totals=torch.zeros(len(batch.rows)))
                for at, measured in enumerate(
                    (losses.forward_kl, losses.acceptance, losses.agreement)
                ):
                    sums[at] += float(measured(logits, labels).double().sum())
                rows += len(batch.rows)
        mean_loss = float(np.mean(self._losses)) if self._losses else math.nan
        self._losses = []
        self.history.append(Point(self.step, self.tokens, mean_loss, *(sums / rows).tolist()))


def learning_rate(step: int, steps: int) -> float:
    """Rises from 0 over the first 5 % of the steps, then falls along a cosine."""
    warm_up = max(1, round(_WARM_UP_SHARE * steps))
    if step < warm_up:
        return LARGEST_RATE * (step + 1) / warm_up
    share = (step - warm_up) / max(1, steps - warm_up)
    fall = (LARGEST_RATE - SMALLEST_RATE) * (1 + math.cos(math.pi * share)) / 2
    return SMALLEST_RATE + fall


def _numbers(point: Point) -> tuple[float, ...]:
    return (
        point.step,
        point.tokens,
        point.loss,
        point.divergence,
        point.acceptance,
        point.agreement,
    )
