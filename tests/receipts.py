"""A sound receipt, and models that carry one."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import tiny
from farthing.files.checkpoint import RECEIPT_FILE, open_checkpoint
from farthing.files.receipt import (
    BatteryFacts,
    DivergenceFacts,
    Estimate,
    Precision,
    Receipt,
    ReferenceFacts,
    TextFacts,
    tensors_digest,
    to_json,
)

if TYPE_CHECKING:
    from pathlib import Path

PRECISION = Precision("bf16", "default", {"BF16": "BF16 x bf16"}, "avx512", "0123abcd")
RECEIPT = Receipt(
    scheme="int4-g128",
    methods=("gptq",),
    bits_per_weight=4.125,
    tensors="0" * 32,
    precision=PRECISION,
    reference=ReferenceFacts("a-model", 16.0, "1" * 32, replace(PRECISION, kv_dtype="fp32")),
    text=TextFacts("persuasion", "a" * 64, 24, 256, 3048),
    calibration_sha256="b" * 64,
    perplexity=Estimate(24.5, 20.0, 29.0),
    reference_perplexity=Estimate(23.0, 19.0, 27.0),
    perplexity_ratio=Estimate(1.065, 1.051, 1.079),
    bits_per_byte=Estimate(1.2, 1.1, 1.3),
    kl=DivergenceFacts(Estimate(0.05, 0.045, 0.055), 0.9, 1.5),
    probability_rms=Estimate(0.04, 0.03, 0.05),
    agreement=Estimate(0.92, 0.9, 0.94),
    battery=BatteryFacts(200, 101, 106, 9, 4, 0.2668),
    level=0.95,
    warnings=("the reference is no full precision",),
    farthing="0.1.0",
)


def folder_with_receipt(folder: Path, **changes: Any) -> Path:
    """A tiny model as a safetensors folder, and a receipt beside it that matches its weights."""
    shutil.copytree(tiny.shared("llama", "safetensors", "BF16"), folder)
    with open_checkpoint(folder) as checkpoint:
        digest = tensors_digest(checkpoint)
    receipt = replace(RECEIPT, **{"tensors": digest, **changes})
    (folder / RECEIPT_FILE).write_text(to_json(receipt), encoding="utf-8")
    return folder
