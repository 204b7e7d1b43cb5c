"""Quantising takes the memory of a few tensors, and calibrating that of a few layers besides."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from safetensors.numpy import save_file

import tiny

if TYPE_CHECKING:
    from collections.abc import Iterator

LAYERS, WIDTH, INNER = 12, 1024, 3072
LARGEST = WIDTH * INNER * 4
"""Bytes of the largest matrix in float32: 12.6 MB of the model's 604 MB, and 302 MB in its file."""

PROGRAM = """
import os
os.environ["OPENBLAS_NUM_THREADS"] = "1"
import sys
from pathlib import Path
from farthing.files.checkpoint import open_checkpoint
from farthing.forge.calibrate import Calibration
from farthing.forge.methods import NEEDS_TEXT, parse_methods
from farthing.forge.quantize import quantize
from farthing.forge.wish import Wish

def most():
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024

scheme, methods = sys.argv[3], parse_methods(sys.argv[4:])
checkpoint = open_checkpoint(sys.argv[1])
windows = [list(range(number, number + 200)) for number in range(4)]
text = Calibration("numbers", "0" * 64, windows) if NEEDS_TEXT & {*methods} else None
before = most()
quantize(checkpoint, sys.argv[2], Wish(scheme, methods=methods, calibration=text))
print(most() - before)
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("large")
    tiny.build("llama", folder, "safetensors")
    config = json.loads((folder / "config.json").read_text())
    sizes = {"hidden_size": WIDTH, "intermediate_size": INNER, "num_hidden_layers": LAYERS}
    heads = {"num_attention_heads": 16, "num_key_value_heads": 16, "head_dim": 64}
    (folder / "config.json").write_text(json.dumps({**config, **sizes, **heads}))
    random = np.random.default_rng(1)
    shapes = {"self_attn.q_proj": (WIDTH, WIDTH), "mlp.gate_proj": (INNER, WIDTH)}
    shapes |= {f"self_attn.{part}_proj": (WIDTH, WIDTH) for part in "kvo"}
    shapes |= {"mlp.up_proj": (INNER, WIDTH), "mlp.down_proj": (WIDTH, INNER)}
    tensors = {
        f"model.layers.{layer}.{part}.weight": halves(random, shape)
        for layer in range(LAYERS)
        for part, shape in shapes.items()
    }
    for layer in range(LAYERS):
        for part in ("input", "post_attention"):
            name = f"model.layers.{layer}.{part}_layernorm.weight"
            tensors[name] = np.ones(WIDTH, np.float32)
    tensors["model.norm.weight"] = np.ones(WIDTH, np.float32)
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        tensors[name] = halves(random, (tiny.VOCABULARY, WIDTH))
    save_file(tensors, folder / "model.safetensors")
    yield folder
    (folder / "model.safetensors").unlink()


def halves(random: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    return random.standard_normal(shape, np.float32).astype(np.float16)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    ("scheme", "methods", "tensors"),
    [
        ("INT4_G128", [], 6),
        ("INT4_G128", ["rotate"], 14),
        ("INT8_ROW", ["smoothquant", "static-inputs"], 14),
        ("INT4_G128", ["gptq"], 38),
    ],
)
def test_the_peak_is_that_of_a_few_tensors(
    scheme: str, methods: list[str], tensors: int, source: Path, tmp_path: Path
) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, source, tmp_path / "out", scheme, *methods],
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(ended.stdout) < tensors * LARGEST
    assert (tmp_path / "out" / "model.safetensors").stat().st_size > 80e6
