"""Record what llama.cpp's perplexity tool says of three files: run once by hand, where it is built.

    cmake --build $LLAMA/build --target llama-perplexity
    python record_peer.py $LLAMA/build/bin/llama-perplexity

Writes peer.json beside this file. For each format: the perplexity, the divergence from the F16
file, the root mean square change of the right token's probability (a share, not per cent) and the
share of equal most likely tokens, each with the uncertainty that the tool prints.
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
from farthing.files.receipt import tensors_digest
from farthing.forge.quantize import quantize
from farthing.forge.wish import Wish
from farthing.quality.texts import held_out_text

HERE = Path(__file__).parent
WINDOW_TOKENS = 256
WINDOWS = 24

_PRINTED = {
    "perplexity": (r"Final estimate: PPL = (\S+) \+/- (\S+)", 1.0),
    "divergence": (r"Mean\s+KLD:\s+(\S+) ±\s+(\S+)", 1.0),
    "probability_rms": (r"RMS Δp\s+:\s+(\S+) ±\s+(\S+) %", 0.01),
    "agreement": (r"Same top p:\s+(\S+) ±\s+(\S+) %", 0.01),
}


def write_model(folder: Path, format_name: str) -> Path:
    """The default model in another format, and nothing else changed."""
    path = folder / f"{format_name}.gguf"
    with open_checkpoint(resolve("smollm2-135m")) as checkpoint:
        quantize(checkpoint, path, Wish(format_name))
    return path


def record(program: str) -> None:
    facts: dict[str, object] = {
        "text": held_out_text().sha256,
        "window_tokens": WINDOW_TOKENS,
        "windows": WINDOWS,
        "models": {},
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "text.txt").write_text(held_out_text().content, encoding="utf-8")
        logits = ["--kl-divergence-base", str(folder / "F16.logits")]
        for format_name in ("F16", "Q8_0", "Q4_0"):
            path = write_model(folder, format_name)
            found = run(program, path, *(logits if format_name == "F16" else ()))
            if format_name != "F16":
                found |= run(program, path, *logits, "--kl-divergence")
            with open_checkpoint(path) as checkpoint:
                found["tensors"] = tensors_digest(checkpoint)
            facts["models"][format_name] = found  # type: ignore[index]
            path.unlink()
    (HERE / "peer.json").write_text(json.dumps(facts, indent=2) + "\n")


def run(program: str, model: Path, *options: str) -> dict[str, object]:
    sizes = ["-c", str(WINDOW_TOKENS), "-b", str(WINDOW_TOKENS), "--chunks", str(WINDOWS)]
    text = ["-f", str(model.parent / "text.txt")]
    done = subprocess.run(
        [program, "-m", str(model), *text, *sizes, *options],
        check=True,
        capture_output=True,
        text=True,
    )
    printed = done.stdout + done.stderr
    found: dict[str, object] = {}
    for figure, (pattern, unit) in _PRINTED.items():
        if match := re.search(pattern, printed):
            value, uncertainty = float(match[1]) * unit, float(match[2]) * unit
            found[figure] = {"value": value, "uncertainty": uncertainty}
    return found


if __name__ == "__main__":
    record(sys.argv[1])
