"""Record what llama.cpp makes of GGUF files that farthing wrote: run by hand where it is built.

    cmake --build $LLAMA/build --target llama-perplexity
    python record_peer.py $LLAMA/build/bin/llama-perplexity

Writes peer.json beside this file: for each case of `CASES`, the perplexity of the held-out text.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from farthing.files.catalog import resolve
from farthing.files.checkpoint import open_checkpoint
from farthing.forge.methods import Method
from farthing.forge.quantize import quantize
from farthing.forge.receipt import ReceiptWish
from farthing.forge.wish import Wish
from farthing.quality.texts import held_out_text

HERE = Path(__file__).parent
WINDOW_TOKENS = 256
WINDOWS = 8

CASES = {
    "q4_k": Wish("Q4_K"),
    "q3_k": Wish("Q3_K"),
    "iq4_nl": Wish("IQ4_NL"),
    "rotated q8_0": Wish("Q8_0", methods=(Method.ROTATE,)),
    "q5_1 with a receipt": Wish("Q5_1", receipt=ReceiptWish(tokens=1, battery=())),
}
"""K-quants whose rows have another format where they must, a head of its own, metadata of ours."""


def write_model(case: str, folder: Path, source: Path) -> Path:
    path = folder / f"{case}.gguf"
    with open_checkpoint(source) as checkpoint:
        quantize(checkpoint, path, CASES[case])
    return path


def perplexity_of(program: str, model: Path, folder: Path) -> float:
    """What llama-perplexity prints for the first windows of the held-out text."""
    text = folder / "text.txt"
    text.write_text(held_out_text().content, encoding="utf-8")
    sizes = ["-c", str(WINDOW_TOKENS), "-b", str(WINDOW_TOKENS), "--chunks", str(WINDOWS)]
    done = subprocess.run(
        [program, "-m", str(model), "-f", str(text), *sizes],
        check=True,
        capture_output=True,
        text=True,
    )
    found = re.search(r"Final estimate: PPL = (\S+)", done.stdout + done.stderr)
    assert found is not None, done.stderr[-2000:]
    return float(found[1])


def record(program: str) -> None:
    perplexities: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for case in CASES:
            model = write_model(case, folder, resolve("smollm2-135m"))
            perplexities[case] = perplexity_of(program, model, folder)
            model.unlink()
    facts = {"text": held_out_text().sha256, "perplexities": perplexities}
    (HERE / "peer.json").write_text(json.dumps(facts, indent=2) + "\n")


if __name__ == "__main__":
    record(sys.argv[1])
