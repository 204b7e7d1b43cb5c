"""What a student is taught by: how far its distributions are from its teacher's.

Of a teacher's distribution the likeliest tokens are known and the sum over all. So two are compared
over these tokens and one more outcome, any other token; tokens that the student has no score for
count as absent. All functions give one number for each row, in float32 or float64.

Hinton, Vinyals and Dean 2015, "Distilling the knowledge in a neural network"; Zhou et al. 2024,
"DistillSpec", for total variation as a draft's loss: its guesses are accepted with probability
1 - TV.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_LEAST = 1e-6
"""Of any other token's probability: its logarithm stays finite, and rounding cannot matter."""


@dataclass(frozen=True)
class Labels:
    """A teacher's distributions for R rows, each of K likeliest tokens.

    `rows` (R, K) int64 are the student's scores for these tokens, `known` (R, K) whether it has
    one; `logprobs` (R, K) are at temperature 1 and `log_totals` (R,) as `recorder.Distribution`
    has them. `hard` (R,) int64 are the scores of the tokens that were written, -1 for none.
    """

    rows: Tensor
    known: Tensor
    logprobs: Tensor
    log_totals: Tensor
    hard: Tensor


def forward_kl(logits: Tensor, labels: Labels, temperature: float = 1.0) -> Tensor:
    """KL of the student's from the teacher's distribution, both at this temperature, in nats: (R,).

    What is absent in the student is left out of the teacher's and the rest made to sum to 1.
    `logits` are (R, scores). The labels' totals must be of the same temperature.
    """
    listed, rest, kept = _teacher(labels, temperature)
    listed, rest = listed / kept[:, None], rest / kept
    log_listed, log_rest = _student(logits / temperature, labels)
    # Where the teacher's is 0 its logarithm is not taken.
    terms = listed * (listed.clamp_min(_LEAST).log() - log_listed)
    return terms.sum(-1) + rest * (rest.clamp_min(_LEAST).log() - log_rest)


def reverse_kl(logits: Tensor, labels: Labels, temperature: float = 1.0) -> Tensor:
    """KL of the teacher's from the student's distribution, as `forward_kl`: (R,)."""
    listed, rest, kept = _teacher(labels, temperature)
    listed, rest = listed / kept[:, None], rest / kept
    log_listed, log_rest = _student(logits / temperature, labels)
    own = log_listed.exp() * labels.known
    terms = own * (log_listed - listed.clamp_min(_LEAST).log())
    return terms.sum(-1) + log_rest.exp() * (log_rest - rest.clamp_min(_LEAST).log())


def total_variation(logits: Tensor, labels: Labels) -> Tensor:
    """Half the sum of absolute differences at temperature 1, from 0 to 1: (R,).

    It is that of the coarser distributions, so at most the true one. What is absent in the student
    counts as a difference.
    """
    listed, rest, kept = _teacher(labels, 1.0)
    log_listed, log_rest = _student(logits, labels)
    differences = (listed - log_listed.exp() * labels.known).abs().sum(-1)
    return (differences + (rest - log_rest.exp()).abs() + (1 - kept)) / 2


def cross_entropy(logits: Tensor, labels: Labels) -> Tensor:
    """-log q of the token that was written, 0 where the student has no score for it: (R,)."""
    return torch.nn.functional.cross_entropy(logits, labels.hard, ignore_index=-1, reduction="none")


def acceptance(logits: Tensor, labels: Labels) -> Tensor:
    """How likely a guess drawn from the student's distribution is taken by Leviathan's rule: (R,).

    The sum of min(p, q) over the teacher's likeliest tokens: at most the true one.
    """
    listed, _, _ = _teacher(labels, 1.0)
    log_listed, _ = _student(logits, labels)
    return torch.minimum(listed, log_listed.exp() * labels.known).sum(-1)


def agreement(logits: Tensor, labels: Labels) -> Tensor:
    """1 where the student's likeliest token is the teacher's, 0 elsewhere: (R,)."""
    best = labels.logprobs.argmax(-1, keepdim=True)
    right = labels.rows.gather(1, best)[:, 0] == logits.argmax(-1)
    return (right & labels.known.gather(1, best)[:, 0]).to(logits.dtype)


def _teacher(labels: Labels, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
    """Probabilities of the listed tokens (R, K), 0 for absent ones, of any other (R,), and the sum
    of both (R,): what is not absent.
    """
    listed = (labels.logprobs / temperature - labels.log_totals[:, None]).exp()
    rest = (1 - listed.sum(-1)).clamp_min(0)
    listed = listed * labels.known
    return listed, rest, (listed.sum(-1) + rest).clamp_min(_LEAST)


def _student(scores: Tensor, labels: Labels) -> tuple[Tensor, Tensor]:
    """Log-probabilities of the listed tokens (R, K), 0 for absent ones, and of any other (R,)."""
    log_listed = torch.log_softmax(scores, -1).gather(1, labels.rows)
    known = labels.known.to(scores.dtype)
    rest = (1 - (log_listed.exp() * known).sum(-1)).clamp_min(_LEAST)
    return log_listed * known, rest.log()
