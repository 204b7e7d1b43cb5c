"""The receipt: what quantising a model cost, measured, and stored with the weights it speaks of.

A GGUF file holds it as metadata, a string of JSON under `farthing.receipt` (spaces after it are
padding); a folder as farthing_receipt.json beside its tensors. It names everything it depends on,
among that digests of the tensors and of the settings that they are computed with: with others it is
refused.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import msgspec

from farthing.core import FileFormatError
from farthing.files.checkpoint import RECEIPT_KEY, receipt_path
from farthing.files.gguf import GGUFFile
from farthing.files.json_files import read_text

if TYPE_CHECKING:
    from farthing.files.checkpoint import Checkpoint

VERSION = 1

MOST_CHARACTERS = 1 << 16

_NOT_SETTINGS = ("general.", "tokenizer.", "split.", "farthing.", "quantize.")
_NOT_CONFIG = frozenset({"_name_or_path", "transformers_version", "torch_dtype", "dtype"})

_T = TypeVar("_T")

# Names are shown in terminals: no control characters.
_SHOWN = r"^[^\x00-\x1f\x7f-\x9f]*$"
_Name = Annotated[str, msgspec.Meta(max_length=200, pattern=_SHOWN)]
_Sentence = Annotated[str, msgspec.Meta(max_length=1000, pattern=_SHOWN)]
_Digest = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{32,64}$", max_length=64)]
_Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)]
_Positive = Annotated[float, msgspec.Meta(gt=0, le=1e300)]
_Number = Annotated[float, msgspec.Meta(ge=-1e300, le=1e300)]
_Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
_Several = Annotated[tuple[_T, ...], msgspec.Meta(max_length=32)]


@dataclass(frozen=True)
class Estimate:
    """A measured number and the interval that it lies in, as sure as the receipt's `level`."""

    value: _Number
    low: _Number
    high: _Number


@dataclass(frozen=True)
class Precision:
    """How a model was computed.

    `activations` is what was asked for, "default" where nothing was; `computed` says for each
    stored format of its matrices what it was multiplied as. `isa` and `kernels` are the
    instruction set and the version of the native kernels.
    """

    kv_dtype: _Name
    activations: _Name
    computed: Annotated[dict[_Name, _Name], msgspec.Meta(max_length=32)]
    isa: _Name
    kernels: _Name


@dataclass(frozen=True)
class ReferenceFacts:
    """What a model was measured against. `bits_per_weight`, its native precision, is that of its
    matrices: below 16 it was rounded itself.
    """

    name: _Name
    bits_per_weight: _Positive
    tensors: _Digest
    precision: Precision


@dataclass(frozen=True)
class TextFacts:
    """The text measured on, and how it was cut into windows."""

    name: _Name
    sha256: _Digest
    windows: _Count
    window_tokens: _Count
    scored_tokens: _Count


@dataclass(frozen=True)
class DivergenceFacts:
    """Kullback-Leibler divergence from the reference at each scored token, in nats."""

    mean: Estimate
    percentile_99_9: _Number
    largest: _Number


@dataclass(frozen=True)
class BatteryFacts:
    """Questions answered right under greedy decoding; `lost` and `gained` against the reference.

    `p_value` is McNemar's exact test of these two.
    """

    questions: _Count
    correct: _Count
    reference_correct: _Count
    lost: _Count
    gained: _Count
    p_value: _Share


@dataclass(frozen=True)
class Receipt:
    """What was measured, of which weights, against what, and how.

    `scheme` and `methods` are as they were asked for; `bits_per_weight` are those of the matrices,
    scales included. `calibration_sha256` is None for methods without calibration. `tensors` is the
    `tensors_digest` of the weights, `settings` the `settings_digest`; where that is None, nothing
    is said of the settings. `perplexity_ratio` is paired by window, `agreement` the share of
    positions with the reference's most likely token, `probability_rms` the root mean square change
    of the right token's probability. `battery` is None where it was not asked.
    """

    scheme: _Name
    methods: _Several[_Name]
    bits_per_weight: _Positive
    tensors: _Digest
    precision: Precision
    reference: ReferenceFacts
    text: TextFacts
    calibration_sha256: _Digest | None
    perplexity: Estimate
    reference_perplexity: Estimate
    perplexity_ratio: Estimate
    bits_per_byte: Estimate
    kl: DivergenceFacts
    probability_rms: Estimate
    agreement: Estimate
    battery: BatteryFacts | None
    level: _Share
    warnings: _Several[_Sentence]
    farthing: _Name
    settings: _Digest | None = None
    version: Literal[1] = 1

    def summary(self) -> str:
        """The receipt in one line."""
        by = "".join(f" {method}" for method in self.methods)
        ratio, kl, agreement = self.perplexity_ratio, self.kl.mean, self.agreement
        text = (
            f"{printable(self.scheme + by)}, {self.bits_per_weight:.4g} bits a weight; against "
            f"{printable(self.reference.name)} ({self.reference.bits_per_weight:.4g} bits): "
            f"perplexity x "
            f"{ratio.value:.4g} ({ratio.low:.4g} to {ratio.high:.4g}), KL {kl.value:.3g} "
            f"({kl.low:.3g} to {kl.high:.3g}), agreement {agreement.value:.1%} "
            f"({agreement.low:.1%} to {agreement.high:.1%})"
        )
        if self.battery is not None:
            text += (
                f", battery {self.battery.correct} of {self.battery.questions} (reference "
                f"{self.battery.reference_correct})"
            )
        return text


def printable(name: str) -> str:
    """A name as a receipt may hold it and a terminal may show it, whatever a file is called."""
    return "".join(each if each.isprintable() else "?" for each in name)[:200]


class ReceiptError(FileFormatError):
    """A receipt that is not sound, not understood, or speaks of other weights."""


def to_json(receipt: Receipt) -> str:
    """The receipt as JSON, without line breaks."""
    return msgspec.json.encode(receipt).decode()


def from_json(text: str, where: str) -> Receipt:
    """The receipt that `text` is; `where` names its place in messages.

    Raises `ReceiptError` for what is none, and for one of another version.
    """
    if len(text) > MOST_CHARACTERS:
        raise ReceiptError(f"{where} is longer than any receipt: measure the model again")
    try:
        version = msgspec.json.decode(text, type=_Versioned).version
        if version == VERSION:
            return msgspec.json.decode(text, type=Receipt)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ReceiptError(
            f"{where} is not a receipt ({error!s:.200}): measure the model again"
        ) from None
    raise ReceiptError(
        f"{where} is a receipt of version {version!s:.20}, and this farthing reads version "
        f"{VERSION}: measure the model again, or use the farthing that wrote it"
    )


@dataclass(frozen=True)
class _Versioned:
    version: int


def stored_receipt(checkpoint: Checkpoint) -> Receipt | None:
    """The receipt that lies with a model, not yet held against its weights; None without one.

    Raises `ReceiptError` as `from_json` does.
    """
    path = receipt_path(checkpoint)
    if path is not None:
        return from_json(read_text(path), str(path)) if path.exists() else None
    text = checkpoint.metadata.get(RECEIPT_KEY) if isinstance(checkpoint, GGUFFile) else None
    if text is None:
        return None
    where = f"{RECEIPT_KEY} of the model"
    if not isinstance(text, str):
        raise ReceiptError(f"{where} is not a text: measure the model again")
    return from_json(text.rstrip(" "), where)


def check_receipt(receipt: Receipt, checkpoint: Checkpoint) -> None:
    """Reads all weights; raises `ReceiptError` unless the receipt speaks of exactly these, and of
    the settings that they come with.
    """
    found = tensors_digest(checkpoint)
    if found != receipt.tensors:
        raise ReceiptError(
            f"the receipt speaks of other weights: it was written for tensors with the digest "
            f"{receipt.tensors}, and these have {found}; measure the model again"
        )
    if receipt.settings not in (None, settings_digest(checkpoint)):
        raise ReceiptError(
            "the receipt was written for these weights with other settings: how they are computed "
            "with (config.json, or a GGUF file's metadata) has changed since; bring the settings "
            "back, or measure the model again"
        )


def read_receipt(checkpoint: Checkpoint) -> Receipt | None:
    """The receipt of a model, held against its weights; None without one.

    Raises `ReceiptError` for one that is not sound, or does not match the weights.
    """
    receipt = stored_receipt(checkpoint)
    if receipt is not None:
        check_receipt(receipt, checkpoint)
    return receipt


def tensors_digest(checkpoint: Checkpoint) -> str:
    """A digest of all tensors: names, formats, shapes and bytes, in whatever order they lie.

    So it is the same for a model however its files are cut or described. About a second for each
    gigabyte, in which the interpreter is free for other threads.
    """
    digest = blake2b(digest_size=16)
    for name, tensor in sorted(checkpoint.tensors.items()):
        digest.update(repr((name, tensor.format, tensor.shape)).encode())
        digest.update(tensor.data.data)
    return digest.hexdigest()


def settings_digest(checkpoint: Checkpoint) -> str:
    """A digest of what a checkpoint says of its model besides tensors, names and the tokenizer."""
    if isinstance(checkpoint, GGUFFile):
        settings = {
            key: value
            for key, value in checkpoint.metadata.items()
            if key == "general.architecture" or not key.startswith(_NOT_SETTINGS)
        }
    else:
        settings = {
            key: value for key, value in checkpoint.config.items() if key not in _NOT_CONFIG
        }
    text = json.dumps(settings, sort_keys=True, default=_plain)
    return blake2b(text.encode(), digest_size=16).hexdigest()


def _plain(value: Any) -> Any:
    """A metadata array as JSON has it."""
    return value.tolist() if hasattr(value, "tolist") else repr(value)
