"""Data that crosses rooms, and the one family of errors.

Everything here is plain data: a request and how it wants to be sampled, one step's flat
arrays (`StepPlan`), what the step produced (`StepResult`), a tensor as a file stores it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

BLOCK_TOKENS = 32
"""Token positions in one block of the paged cache."""

CHUNK_TOKENS = 256
"""Positions whose attention is summed as one unit; chunks are merged in order, always."""


class FarthingError(Exception):
    """Something a person can act on: the message says what was wrong, where, and what to do.

    `exit_code` is what the command line ends with: 2 for bad input or usage, 1 for "the answer
    is no".
    """

    exit_code = 2


class FileFormatError(FarthingError):
    """A model file is truncated, garbled, hostile or of a kind that farthing does not read."""


class UnsupportedModelError(FarthingError):
    """The file is sound, but names an architecture, tensor type or tokenizer unknown here."""


class DownloadError(FarthingError):
    """A model could not be fetched: no network, no room, no permission, wrong checksum."""


class RequestError(FarthingError):
    """A request cannot be served as asked: a bad parameter, or a prompt longer than the context."""


class ContextLengthError(RequestError):
    """A prompt, or a prompt and its answer, would take more tokens than there are places for."""


class BusyError(FarthingError):
    """More waits already than may: the same request can succeed in about `retry_after` seconds."""

    def __init__(self, message: str, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class DoesNotFitError(FarthingError):
    """The memory plan says no before anything is allocated."""

    exit_code = 1


class CheckFailedError(FarthingError):
    """A check that was asked for ran, and failed."""

    exit_code = 1


@dataclass(frozen=True)
class StoredTensor:
    """A tensor as a file holds it: bytes in place (usually a memory map), never decoded here.

    `shape` is outermost first, so a projection is (outputs, inputs); `data` is one-dimensional
    uint8 of exactly the stored size. `format` is a storage format's name in GGUF's spelling: F32,
    F16, BF16, Q8_0, Q4_1, Q6_K, ...
    """

    name: str
    format: str
    shape: tuple[int, ...]
    data: NDArray[np.uint8]


SPECULATIONS = ("auto", "ngram", "off")
"""How tokens may be guessed ahead without a second model: "auto" and "ngram" look up what followed
before, where that pays."""

SPECULATION_RULES = ("exact", "leviathan")
"""Which guesses are taken: those that are the very token that would be sampled without them; or as
many as leave the distribution of texts what it is, though not each text."""


class KVDtype(StrEnum):
    """How keys and values are stored in the cache.

    bf16 is multiplied as such, with queries and softmax weights rounded to bf16 as well; the others
    in float32. int8 has one scale per token and head. int4-keys has keys of 4 bits, those of each
    token and head rotated and under one scale, and int8 values.
    """

    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bf16"
    INT8 = "int8"
    INT4_KEYS = "int4-keys"


class ActivationMode(StrEnum):
    """What a linear operation's input is rounded to before the product."""

    INT8 = "int8"
    BF16 = "bf16"
    FP32 = "fp32"


ConstraintKind = Literal["json_schema", "regex", "choice", "lark"]
_CONSTRAINT_KINDS = ("json_schema", "regex", "choice", "lark")


@dataclass(frozen=True)
class Constraint:
    """What a text must be, from its first token to its last.

    `kind` says how `source` is read: "json_schema" as a JSON schema, of which the text is an
    instance; "regex" as a regular expression in the syntax of Rust's regex crate, without looking
    around, that matches the whole text; "choice" as a JSON list of strings, of which the text is
    one; "lark" as a context-free grammar in llguidance's dialect of Lark.

    It is plain data, so that parameters can be compared, stored and sent; the engine compiles it
    for its vocabulary, once. Raises `RequestError` when it is not made of these; what is wrong with
    the source itself is found when it is compiled.
    """

    kind: ConstraintKind
    source: str

    def __post_init__(self) -> None:
        if self.kind not in _CONSTRAINT_KINDS:
            known = ", ".join(_CONSTRAINT_KINDS)
            raise RequestError(f"a constraint is one of {known}, not {self.kind!r:.100}")
        if not isinstance(self.source, str):
            raise RequestError(f"a constraint's source must be text, not {self.source!r:.100}")


@dataclass(frozen=True)
class SamplingParams:
    """How one request's tokens are chosen. temperature 0 is greedy: the argmax, lowest id on ties.

    Filters apply in this order: constraint, logit bias, penalties, temperature, top-k, top-p,
    min-p; then the token is the argmax of log-probability plus Gumbel noise, which is a function of
    (seed, choice index, position, token id) alone.
    With `max_tokens` 0 the prompt is read, and nothing is sampled. `prompt_logprobs` asks for the
    log-probability of each token of the prompt given those before it, and is the number of
    alternatives reported with each; such a prompt is computed whole, whatever the cache has of it.
    `repetition_penalty` looks at prompt and output, `presence_penalty` and `frequency_penalty` at
    the output only. `logprobs` is the number of most likely tokens whose log-probabilities (of
    the unfiltered distribution) are reported; None reports none, 0 only the chosen token's.
    A `logit_bias` of -inf forbids its token.
    `constraint` keeps the text to a form: a token that cannot continue it is never chosen. The text
    ends, as with an ending token, when its form is complete, even before `min_tokens`; an ending
    token can end it only where it could be complete, and with `ignore_eos` only where nothing else
    can follow. One that `max_tokens`, `stop` or `stop_token_ids` cuts short is not complete.
    `max_draft_tokens` is the most tokens that a step guesses ahead of this text; 0 is none, None as
    many as the engine sees fit.
    Raises `RequestError` when a field is out of range.
    """

    max_tokens: int | None = None
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    min_tokens: int = 0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    constraint: Constraint | None = None
    max_draft_tokens: int | None = None

    def __post_init__(self) -> None:
        # A caller may pass one string, or a list; and numbers that numpy made.
        object.__setattr__(self, "stop", _listed("stop", self.stop))
        object.__setattr__(self, "stop_token_ids", _listed("stop_token_ids", self.stop_token_ids))
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, np.number):
                object.__setattr__(self, each.name, value.item())
        longest = self.max_tokens if isinstance(self.max_tokens, int) else math.inf
        for name, ok, wanted in (
            ("max_tokens", self.max_tokens is None or _whole(longest, 0), "a whole number from 0"),
            ("temperature", _number(self.temperature, 0, 100), "from 0 to 100"),
            ("top_k", _whole(self.top_k, 0, 2**31 - 1), "a whole number from 0 (off) to 2^31 - 1"),
            ("top_p", _number(self.top_p, 0, 1) and self.top_p, "above 0 and at most 1"),
            ("min_p", _number(self.min_p, 0, 1), "from 0 to 1"),
            ("seed", self.seed is None or _whole(self.seed, 0, 2**64 - 1), "from 0 to 2^64 - 1"),
            ("stop", all(map(_text, self.stop)), "made of non-empty strings"),
            ("stop_token_ids", all(map(_whole, self.stop_token_ids)), "made of token ids"),
            ("ignore_eos", isinstance(self.ignore_eos, bool), "True or False"),
            ("min_tokens", _whole(self.min_tokens, 0, longest), "from 0 to max_tokens"),
            (
                "repetition_penalty",
                _number(self.repetition_penalty, 0, 100) and self.repetition_penalty,
                "above 0 and at most 100",
            ),
            ("presence_penalty", _number(self.presence_penalty, -2, 2), "from -2 to 2"),
            ("frequency_penalty", _number(self.frequency_penalty, -2, 2), "from -2 to 2"),
            ("logit_bias", _biases(self.logit_bias), "token ids with numbers up to 1e30"),
            ("logprobs", _alternatives(self.logprobs), "from 0 to 20"),
            ("prompt_logprobs", _alternatives(self.prompt_logprobs), "from 0 to 20"),
            (
                "constraint",
                self.constraint is None or isinstance(self.constraint, Constraint),
                "a Constraint",
            ),
            (
                "max_draft_tokens",
                self.max_draft_tokens is None or _whole(self.max_draft_tokens, 0, 2**31 - 1),
                "a whole number from 0 (none) to 2^31 - 1",
            ),
        ):
            if not ok:
                raise RequestError(f"{name} must be {wanted}, not {getattr(self, name)!r:.100}")


def _listed(name: str, value: object) -> tuple[object, ...]:
    if isinstance(value, str):
        return (value,)
    if isinstance(value, Iterable):
        return tuple(value)
    raise RequestError(f"{name} must be a list, not {value!r:.100}")


def _whole(value: object, low: float = -math.inf, high: float = math.inf) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        return False
    return low <= int(value) <= high


def _alternatives(value: object) -> bool:
    return value is None or _whole(value, 0, 20)


def _number(value: object, low: float, high: float) -> bool:
    """False for NaN, too."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        return False
    # An int is compared as it is: it may be too large for a float.
    return low <= (value if isinstance(value, int) else float(value)) <= high


def _text(value: object) -> bool:
    return isinstance(value, str) and value != ""


def _biases(value: object) -> bool:
    """-inf forbids a token; what is not finite in float32 otherwise would forbid all others."""
    return isinstance(value, Mapping) and all(
        _whole(token) and (bias == -math.inf or _number(bias, -1e30, 1e30))
        for token, bias in value.items()
    )


@dataclass
class Request:
    """One prompt to be continued: token ids, how to sample, and who asks for it.

    `choice` counts the answers to one prompt from 0. `key` names the caller: tokens are shared out
    fairly between keys, and no key finds another's prompts in the cache. Of those that wait, a
    higher `priority` goes first, and it is preempted last. `embed` asks for the mean of the final
    hidden states over all tokens of the prompt; nothing is sampled then.
    """

    id: str
    prompt: tuple[int, ...]
    sampling: SamplingParams
    choice: int = 0
    key: str = ""
    priority: int = 0
    embed: bool = False


@dataclass(frozen=True)
class SamplingRows:
    """How each wanted row of a step is sampled: arrays of length R, one entry a row.

    `adjusted_*` lists, row after row (row r owns entries
    `adjusted_starts[r]:adjusted_starts[r+1]`), the distinct token ids whose logits change before
    filtering: by `adjusted_bias` (added first), and by the row's penalties: the repetition penalty
    where `adjusted_seen` is 1, presence and frequency by `adjusted_count`, the times the token
    stands in the output. `position` is the position that the sampled token will take. A row whose
    `target` is not -1 gives that token, with its log-probability, instead of a sampled one.

    Row r may take the tokens of `masks[mask_rows[r]]`, or all where that index is -1. A mask has
    bit t % 32 of word t // 32 set for each token t that is allowed; both are None where no row has
    a mask.
    """

    temperature: NDArray[np.float32]
    top_k: NDArray[np.int32]
    top_p: NDArray[np.float32]
    min_p: NDArray[np.float32]
    repetition_penalty: NDArray[np.float32]
    presence_penalty: NDArray[np.float32]
    frequency_penalty: NDArray[np.float32]
    seed: NDArray[np.uint64]
    choice: NDArray[np.uint32]
    position: NDArray[np.uint32]
    logprobs: NDArray[np.int32]
    """Per row: -1 none, else the number of alternatives."""
    target: NDArray[np.int32]
    adjusted_starts: NDArray[np.int32]
    adjusted_ids: NDArray[np.int32]
    adjusted_bias: NDArray[np.float32]
    adjusted_seen: NDArray[np.uint8]
    adjusted_count: NDArray[np.int32]
    mask_rows: NDArray[np.int32] | None = None
    masks: NDArray[np.uint32] | None = None
    """(M, ceil(vocabulary / 32))"""


_NO_COPIES = np.empty((0, 2), np.int32)
_NO_ROWS = np.empty(0, np.int32)


@dataclass(frozen=True)
class StepPlan:
    """One step as flat arrays: S sequences, T tokens, R wanted rows.

    Sequence s feeds tokens `starts[s]:starts[s+1]`, at consecutive positions that end at the last
    of them; its cache lies in blocks `block_tables[s, :]`, of which entry i holds positions
    32 i ... 32 i + 31 (entries past the sequence's length are -1). `rows` are indices into the T
    tokens, ascending, whose logits are wanted. `sampling` is None when only logits are wanted.
    `copies` (C x 2) are whole blocks of cache to be copied, from the first to the second, one after
    another and before anything else is done. `hidden_rows` (H) are further such indices, of tokens
    whose final hidden states are wanted; the head is not computed for them.
    """

    token_ids: NDArray[np.int32]
    positions: NDArray[np.int32]
    starts: NDArray[np.int32]
    block_tables: NDArray[np.int32]
    rows: NDArray[np.int32]
    sampling: SamplingRows | None = None
    copies: NDArray[np.int32] = field(default_factory=lambda: _NO_COPIES)
    hidden_rows: NDArray[np.int32] = field(default_factory=lambda: _NO_ROWS)


@dataclass(frozen=True)
class StepResult:
    """What a step gave, one entry per wanted row.

    `logits` (float32, R x vocabulary) is filled only when it was asked for. `logprob` is the chosen
    token's, NaN where the row asks for none; `top_ids` and `top_logprobs` (R x the largest
    `logprobs` asked for) are in falling order, lowest id first on ties, padded with -1 and -inf.
    `hidden` (float32, H x hidden size) are the plan's hidden states, each what the head would read
    of its token: the residual stream after the final norm. It may be written over by the next step.
    """

    tokens: NDArray[np.int32]
    logprob: NDArray[np.float32]
    top_ids: NDArray[np.int32]
    top_logprobs: NDArray[np.float32]
    logits: NDArray[np.float32] | None = None
    hidden: NDArray[np.float32] | None = None
