"""Record llama.cpp's logits for GGUF files that farthing made of safetensors: run by hand.

    PYTHONPATH=src:tests python tests/data/forge/record_conversion.py ./record_logits \\
        $LLAMA/build/bin/llama-perplexity

The first program is that of data/peer/record_logits.py. Writes conversion.npz (per family of
tests/tiny.py tokens x vocabulary, float32) and conversion.json (the tokens, a digest of the tensors
of every file that was asked about, and the perplexity of the held-out text under the trained model
`float`).
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import tiny
from data.forge.record_peer import perplexity_of
from farthing.files.catalog import resolve
from farthing.files.checkpoint import open_checkpoint
from farthing.files.receipt import tensors_digest
from farthing.forge.quantize import quantize
from farthing.forge.wish import Wish

HERE = Path(__file__).parent
TOKENS = tiny.token_ids(12, seed=5)


def write_model(family: str, folder: Path) -> Path:
    path = folder / f"{family}.gguf"
    with open_checkpoint(tiny.shared(family, "safetensors")) as checkpoint:
        quantize(checkpoint, path, Wish("F32"))
    return path


def write_float(folder: Path) -> Path:
    path = folder / "float.gguf"
    with open_checkpoint(resolve("float")) as checkpoint:
        quantize(checkpoint, path, Wish("F16"))
    return path


def digest(path: Path) -> str:
    with open_checkpoint(path) as checkpoint:
        return tensors_digest(checkpoint)


def record(program: Path, measurer: Path) -> None:
    answers, digests = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        for family in tiny.FAMILIES:
            path = write_model(family, Path(folder))
            command = [program, path, *map(str, TOKENS)]
            raw = subprocess.run(command, check=True, capture_output=True).stdout
            answers[family] = np.frombuffer(raw, np.float32).reshape(len(TOKENS), -1)
            digests[family] = digest(path)
        perplexity = perplexity_of(str(measurer), write_float(Path(folder)), Path(folder))
    np.savez_compressed(HERE / "conversion.npz", **answers)
    facts = {"tokens": TOKENS, "tensors": digests, "perplexity": perplexity}
    (HERE / "conversion.json").write_text(json.dumps(facts, indent=2) + "\n")


if __name__ == "__main__":
    record(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve())
