"""How the next token is chosen: the readable definition, in plain numpy.

The native sampler is tested against this one token for token, and a backend that gives only logits
is sampled by it. Logits, their adjustments, scaled logits and noise are float32; weights, sums of
weights and the score, scaled logit plus noise, are float64.

The noise. By the Gumbel-max trick the token of the largest log-probability plus independent Gumbel
noise -ln(-ln u) is a draw from the distribution, so a filtered draw is an argmax over what the
filters leave. u comes from Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as
easy as 1, 2, 3", 2011) with the seed as its key and (token id // 4, position, choice, 0) as its
counter, of which token id % 4 names the word w: u = (w + 1/2) / 2^32. A request's noise therefore
depends on nothing else, not on its neighbours or on how many words were drawn before.

All 32 bits are used because the largest of V noises lies where u is within about 1 / V of 1. Seen
as a race (token i arrives after -ln(u_i) / p_i, the first one wins), rounding u to 2^-32 moves the
winner's arrival by at most 2^-33 / p_i, and the next one is 1 behind on average: the order differs
in at most V 2^-32 of the draws, 6e-5 for V = 262,144 (with 24 bits: 1.6 %). u has 33 binary digits,
so float64 holds u and 1 - u exactly, and ln u keeps its full precision at both ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import numpy as np

from farthing.core import RequestError, StepResult

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from farthing.core import SamplingRows

_Real = TypeVar("_Real", np.float32, np.float64)

_ROUNDS = 10
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


def sample(logits: NDArray[np.float32], rows: SamplingRows) -> StepResult:
    """Chooses one token for each row of `logits` (R, V) float32.

    A NaN logit is never chosen and weighs nothing; the token is -1 where every (adjusted) logit is
    NaN or -inf. A row with a target gives that instead. `logprob` and `top_logprobs` are of the raw
    logits' softmax, whatever the filters; `logprob` is NaN where the row asks for none.
    A token that the row's mask leaves out is never chosen, whatever its bias.
    Raises `RequestError` when a row adjusts a token id twice, or one outside the vocabulary.
    """
    count, width = len(logits), max(0, int(rows.logprobs.max(initial=0)))
    tokens = np.full(count, -1, np.int32)
    logprob = np.full(count, np.nan, np.float32)
    top_ids = np.full((count, width), -1, np.int32)
    top_logprobs = np.full((count, width), -np.inf, np.float32)
    for row in range(count):
        token = _choose(_adjusted(_masked(logits[row], rows, row), rows, row), rows, row)
        if token >= 0 and rows.target[row] >= 0:
            token = int(rows.target[row])
        tokens[row] = token
        alternatives = int(rows.logprobs[row])
        if alternatives < 0:
            continue
        logprobs = log_probabilities(logits[row])
        logprob[row] = logprobs[token] if token >= 0 else -np.inf
        best = ranked(logits[row])[:alternatives]
        top_ids[row, : len(best)] = best
        top_logprobs[row, : len(best)] = logprobs[best]
    return StepResult(tokens, logprob, top_ids, top_logprobs)


def probabilities(logits: NDArray[np.float32], rows: SamplingRows, row: int) -> NDArray[np.float64]:
    """The distribution (V,) that `sample` draws a row's token from: after mask, adjustments,
    temperature and filters. All 0 where nothing can be chosen, one 1 with temperature 0.
    """
    kept, scaled = _left(_adjusted(_masked(logits, rows, row), rows, row), rows, row)
    weights = np.exp(scaled.astype(np.float64))
    chances = np.zeros(len(logits))
    chances[kept] = weights / weights.sum()
    return chances


def ranked(logits: NDArray[np.float32]) -> NDArray[np.int64]:
    """Token ids by falling logit, the lowest id first on ties; without those of NaN and -inf."""
    order = np.argsort(-logits, kind="stable")
    return order[logits[order] > -np.inf]


def log_probabilities(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """The log-softmax (V,), summed in float64; -inf for NaN, and where no logit is above -inf."""
    if not (logits > -np.inf).any():
        return np.full(len(logits), -np.inf, np.float32)
    below = _below_largest(logits.astype(np.float64))
    below[np.isnan(below)] = -np.inf
    logprobs: NDArray[np.float32]
    with np.errstate(over="ignore"):
        logprobs = (below - np.log(np.exp(below).sum())).astype(np.float32)
    return logprobs


def filtered(
    scaled: NDArray[np.float32], top_k: int, top_p: float, min_p: float
) -> NDArray[np.int64]:
    """The token ids that top-k, then top-p, then min-p leave, the likeliest first.

    `scaled` are logits over temperature, the largest 0. top-k (0: off) keeps the k likeliest. top-p
    keeps the shortest run of the likeliest whose probability, renormalised after top-k, reaches
    top_p. min-p keeps probabilities of at least min_p times the largest.
    """
    kept = ranked(scaled)
    if top_k > 0:
        kept = kept[:top_k]
    if top_p < 1.0:
        weights = np.exp(scaled[kept].astype(np.float64))
        reached = np.cumsum(weights) >= top_p * weights.sum()
        kept = kept[: int(reached.argmax()) + 1 if reached.any() else len(kept)]
    if min_p > 0.0:
        kept = kept[scaled[kept].astype(np.float64) >= np.log(min_p)]
    return kept


def gumbel_noise(
    seed: int, choice: int, position: int, token_ids: NDArray[np.integer], stream: int = 0
) -> NDArray[np.float32]:
    """Gumbel noise of the given tokens (N,): a function of the arguments alone.

    `stream` is the counter's last part; tokens are sampled with 0.
    """
    ids = token_ids.astype(np.uint64)
    counters = np.zeros((4, len(ids)), np.uint64)
    counters[0], counters[1], counters[2], counters[3] = ids // 4, position, choice, stream
    words = philox(counters, (seed & 0xFFFFFFFF, seed >> 32))[ids % 4, np.arange(len(ids))]
    u = (words.astype(np.float64) + 0.5) * 2.0**-32
    return (-np.log(-np.log(u))).astype(np.float32)


def philox(counters: NDArray[np.uint64], key: tuple[int, int]) -> NDArray[np.uint64]:
    """Philox4x32-10: four 32-bit words for each counter, both (4, N) and kept in uint64."""
    a, b, c, d = counters
    for number in range(_ROUNDS):
        key_low, key_high = (
            np.uint64((part + number * step) & 0xFFFFFFFF)
            for part, step in zip(key, _KEY_STEPS, strict=True)
        )
        left, right = _MULTIPLIERS[0] * a, _MULTIPLIERS[1] * c
        a, b = (right >> _HALF) ^ b ^ key_low, right & _LOW
        c, d = (left >> _HALF) ^ d ^ key_high, left & _LOW
    return np.stack((a, b, c, d))


def _masked(logits: NDArray[np.float32], rows: SamplingRows, row: int) -> NDArray[np.float32]:
    """The row's logits, with -inf for the tokens that its mask leaves out."""
    if rows.masks is None or rows.mask_rows is None or rows.mask_rows[row] < 0:
        return logits
    tokens = np.arange(len(logits))
    words = rows.masks[rows.mask_rows[row]][tokens // 32]
    allowed = words >> (tokens % 32).astype(np.uint32) & np.uint32(1)
    return np.where(allowed != 0, logits, np.float32(-np.inf))


def _adjusted(logits: NDArray[np.float32], rows: SamplingRows, row: int) -> NDArray[np.float32]:
    """The row's logits after bias and penalties."""
    entries = slice(rows.adjusted_starts[row], rows.adjusted_starts[row + 1])
    ids = rows.adjusted_ids[entries]
    if len(ids) == 0:
        return logits
    if ids.min() < 0 or ids.max() >= len(logits):
        raise RequestError(
            f"row {row} adjusts a token outside the vocabulary of {len(logits)} tokens; name ids "
            f"from 0 to {len(logits) - 1}"
        )
    if len(np.unique(ids)) < len(ids):
        raise RequestError(f"row {row} adjusts a token id twice; name each id once")
    count = rows.adjusted_count[entries]
    penalty = rows.repetition_penalty[row]
    with np.errstate(over="ignore", invalid="ignore"):
        values = logits[ids] + rows.adjusted_bias[entries]
        penalised = np.where(values > 0, values / penalty, values * penalty)
        values = np.where(rows.adjusted_seen[entries] != 0, penalised, values)
        values = values - rows.frequency_penalty[row] * count.astype(np.float32)
        values = np.where(count > 0, values - rows.presence_penalty[row], values)
    adjusted = logits.copy()
    adjusted[ids] = values
    return adjusted


def _choose(adjusted: NDArray[np.float32], rows: SamplingRows, row: int) -> int:
    """The row's token from its adjusted logits, or -1 where nothing can be chosen."""
    kept, scaled = _left(adjusted, rows, row)
    if len(kept) < 2:
        return int(kept[0]) if len(kept) else -1
    noise = gumbel_noise(int(rows.seed[row]), int(rows.choice[row]), int(rows.position[row]), kept)
    score = scaled.astype(np.float64) + noise
    return int(kept[score == score.max()].min())


def _left(
    adjusted: NDArray[np.float32], rows: SamplingRows, row: int
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The token ids that a row may take, and the logits over temperature by which it chooses.

    None where nothing can be chosen; one with temperature 0.
    """
    possible = np.where(np.isnan(adjusted), np.float32(-np.inf), adjusted)
    likeliest = np.array([possible.argmax()])
    if possible[likeliest[0]] == -np.inf:
        return likeliest[:0], possible[:0]
    if rows.temperature[row] == 0.0:
        return likeliest, np.zeros(1, np.float32)
    with np.errstate(over="ignore"):
        scaled = _below_largest(possible) / rows.temperature[row]
    kept = filtered(scaled, int(rows.top_k[row]), float(rows.top_p[row]), float(rows.min_p[row]))
    return kept, scaled[kept]


def _below_largest(logits: NDArray[_Real]) -> NDArray[_Real]:
    """The logits less the largest of them, which itself gives 0 even where it is infinite."""
    largest = logits[logits > -np.inf].max()
    with np.errstate(invalid="ignore"):
        return np.where(logits == largest, logits.dtype.type(0), logits - largest)
