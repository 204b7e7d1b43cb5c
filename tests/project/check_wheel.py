"""Run where a wheel has just been installed, and nothing else of the project: does it work?

Every tier that the machine has must give the scalar tier's numbers, and a default must be made of
what the system says.
"""

from __future__ import annotations

from importlib.resources import files

import numpy as np

from farthing import Engine, SamplingParams, _native
from farthing.plan.machine import available_memory, usable_cores
from farthing.quality.battery import questions
from farthing.quality.texts import calibration_text, held_out_text


def main() -> None:
    assert (files("farthing.serve") / "page" / "index.html").is_file()
    for name in ("page.html", "style.css"):
        assert (files("farthing.lab.report") / name).is_file()
    assert (files("farthing.files") / "float_model" / "model.safetensors").is_file()
    assert len(questions()) == 200
    assert held_out_text().sha256 != calibration_text().sha256
    tiers = _native.available_tiers()
    print(f"tiers {tiers}, {usable_cores()} cores, {available_memory() >> 20} MB available")
    assert tiers[0] == "scalar"
    assert usable_cores() >= 1
    assert available_memory() > 0
    x = np.random.default_rng(0).normal(size=576).astype(np.float32)
    rows = np.empty((len(tiers), 576), np.float32)
    for row, tier in zip(rows, tiers, strict=True):
        _native.kernels.swiglu(tier, x, x[::-1].copy(), row)
    assert np.allclose(rows, rows[0], rtol=1e-6, atol=1e-7)
    engine = Engine.load("smollm2-135m", context_length=256)
    answer = engine.generate(
        "The capital of France is", SamplingParams(max_tokens=8, temperature=0.0)
    )
    print(f"{engine.report.isa}: {answer.text!r}")
    assert "Paris" in answer.text


if __name__ == "__main__":
    main()
