"""Record the peer's logits for the tiny models: run once by hand, where llama.cpp is built.

llama.cpp (the source in the sdist llama-cpp-python 0.3.36: commit 0c1e57098, ggml 0.25.3) reads
GELU from a table of 16-bit floats; for a reference in float32 it is built here without `#define
GGML_GELU_FP16` in ggml/src/ggml-cpu/vec.h, and otherwise as it comes.

    g++ -std=c++17 -O1 record_logits.cpp -I$LLAMA/include -I$LLAMA/ggml/include \\
        -L$LLAMA/build/bin -lllama -lggml -lggml-base -Wl,-rpath,$LLAMA/build/bin -o record_logits
    python record_logits.py ./record_logits

Writes logits.npz (per model: tokens x vocabulary, float32) and logits.json (the tokens, and the
SHA-256 of every model file that was asked).
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from make_tiny_models import TINY_MODELS, write_tiny_models

HERE = Path(__file__).parent
TOKENS = [3 + (37 * i * i + 11 * i + 5) % 266 for i in range(40)]


def record(program: Path) -> None:
    """Ask the peer about every tiny model, and write its answers beside this file."""
    answers = {}
    hashes = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, path in write_tiny_models(Path(folder)).items():
            command = [program, path, *map(str, TOKENS)]
            raw = subprocess.run(command, check=True, capture_output=True).stdout
            answers[name] = np.frombuffer(raw, np.float32).reshape(len(TOKENS), -1)
            hashes[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    assert all(answers[model.name].shape[1] == model.vocabulary for model in TINY_MODELS)
    np.savez_compressed(HERE / "logits.npz", **answers)
    facts = {"tokens": TOKENS, "sha256": hashes}
    (HERE / "logits.json").write_text(json.dumps(facts, indent=2) + "\n")


if __name__ == "__main__":
    record(Path(sys.argv[1]).resolve())
