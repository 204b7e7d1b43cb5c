"""What is measured, on which weights, and what the peers are known to reach.

A decode point gives B prompts of P tokens and times what follows, all B sequences running; a
prefill point times a prompt up to its first token; a load is many requests that arrive at once.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Point:
    """`sequences` prompts of `prompt` tokens each, continued by `generated` tokens.

    Its rate is in tokens per second: of the prompt where `kind` is "prefill", else of the output.
    """

    name: str
    kind: str
    prompt: int
    sequences: int
    generated: int

    @property
    def context(self) -> int:
        """Positions that one sequence takes."""
        return self.prompt + self.generated


POINTS = {
    point.name: point
    for point in (
        *(Point(f"decode{b}", "decode", 64, b, 64) for b in (1, 2, 4, 8, 16, 32, 64)),
        Point("generate128", "decode", 1, 1, 128),
        Point("prefill512", "prefill", 512, 1, 1),
        Point("prefill4096", "prefill", 4096, 1, 1),
        Point("context1", "decode", 4096, 1, 32),
        Point("context16", "decode", 4096, 16, 32),
    )
}

SLOTS = (8, 16, 64)
"""How many requests of a load run at once."""

LABELS = {
    **{f"decode{b}": f"decode, B={b}" for b in (1, 2, 4, 8, 16, 32, 64)},
    "generate128": "decode of 128 tokens, B=1",
    "prefill512": "prefill, 512",
    "prefill4096": "prefill, 4,096",
    "context1": "decode at 4,096, B=1",
    "context16": "decode at 4,096, B=16",
    **{f"slots{slots}": f"64 requests at once, {slots} slots" for slots in SLOTS},
}


@dataclass(frozen=True)
class Load(Point):
    """Requests that arrive at once, `slots` of which run at once.

    Each of the `prompts` is continued by as many tokens as its entry of `lengths` says; its rate is
    in tokens per second of the output, from the arrival to the last token of all.
    """

    slots: int
    prompts: tuple[tuple[int, ...], ...]
    lengths: tuple[int, ...]

    @staticmethod
    def of(slots: int, prompts: tuple[tuple[int, ...], ...], lengths: tuple[int, ...]) -> Load:
        """The load of these requests."""
        return Load(
            name=load_name(slots),
            kind="load",
            prompt=max(map(len, prompts)),
            sequences=len(prompts),
            generated=max(lengths),
            slots=slots,
            prompts=prompts,
            lengths=lengths,
        )


def load_name(slots: int) -> str:
    """The name of a load's point."""
    return f"slots{slots}"


@dataclass(frozen=True)
class Case:
    """One model in one format, and the engines that can open it.

    `source` is a catalog name, `requantised` the format its matrices are written in again (None: as
    shipped). vLLM reads BF16 alone, from a folder of safetensors made of the same model.
    """

    name: str
    label: str
    source: str
    requantised: str | None
    engines: tuple[str, ...]


FARTHING, LLAMA, IK, OPENVINO, VLLM = "farthing", "llama.cpp", "ik_llama.cpp", "OpenVINO", "vLLM"
FARTHING_SERVER = "farthing serve"
STEP_LOOP = "farthing, steps alone"

CASES = {
    case.name: case
    for case in (
        Case(
            "q4_1",
            "SmolLM2-135M Q4_1, as shipped (vLLM: BF16)",
            "smollm2-135m",
            None,
            (FARTHING, FARTHING_SERVER, LLAMA, IK, OPENVINO, VLLM),
        ),
        Case(
            "q4_0",
            "SmolLM2-135M Q4_0, head in Q8_0",
            "smollm2-135m",
            "Q4_0",
            (FARTHING, FARTHING_SERVER, LLAMA, IK, OPENVINO),
        ),
        Case(
            "q8_0",
            "SmolLM2-135M Q8_0",
            "smollm2-135m",
            "Q8_0",
            (FARTHING, FARTHING_SERVER, LLAMA, IK, OPENVINO),
        ),
        Case(
            "bf16",
            "SmolLM2-135M BF16",
            "smollm2-135m",
            "BF16",
            (FARTHING, FARTHING_SERVER, LLAMA, IK, VLLM),
        ),
        Case(
            "gemma",
            "Gemma-3-270M Q4_K_M, as shipped",
            "gemma3-270m",
            None,
            (FARTHING, FARTHING_SERVER, LLAMA, IK),
        ),
    )
}

KNOWN_RATES = {
    ("q4_1", "decode1"): {LLAMA: 183, IK: 320, OPENVINO: 135, VLLM: 67},
    ("q4_1", "generate128"): {LLAMA: 183, IK: 320, OPENVINO: 135, VLLM: 67},
    ("q4_1", "decode2"): {LLAMA: 181, IK: 405, OPENVINO: 238, VLLM: 137},
    ("q4_1", "decode4"): {LLAMA: 242, IK: 507, OPENVINO: 413, VLLM: 272},
    ("q4_1", "decode8"): {LLAMA: 313, IK: 531, OPENVINO: 651, VLLM: 436},
    ("q4_1", "decode16"): {LLAMA: 354, IK: 463, OPENVINO: 897, VLLM: 722},
    ("q4_1", "decode32"): {LLAMA: 385, IK: 474, OPENVINO: 1174, VLLM: 1030},
    ("q4_1", "decode64"): {LLAMA: 392, IK: 270, OPENVINO: 1386, VLLM: 1305},
    ("q4_1", "prefill512"): {LLAMA: 489, IK: 2776, OPENVINO: 3187, VLLM: 2909},
    ("q4_1", "slots16"): {LLAMA: 112},
    ("q4_1", "slots64"): {LLAMA: 103, OPENVINO: 468},
    ("q4_0", "slots8"): {LLAMA: 239},
    ("q4_0", "slots16"): {LLAMA: 238},
    ("q4_0", "slots64"): {LLAMA: 180},
    ("q4_0", "decode1"): {LLAMA: 203, IK: 280},
    ("q4_0", "generate128"): {LLAMA: 254, IK: 280},
    ("q4_0", "decode2"): {LLAMA: 260},
    ("q4_0", "decode4"): {LLAMA: 390},
    ("q4_0", "decode8"): {LLAMA: 563},
    ("q4_0", "decode16"): {LLAMA: 798},
    ("q4_0", "decode32"): {LLAMA: 887},
    ("q4_0", "decode64"): {LLAMA: 947},
    ("q4_0", "prefill512"): {LLAMA: 1692, IK: 2379},
    ("q8_0", "decode1"): {LLAMA: 180, IK: 269},
    ("q8_0", "prefill512"): {LLAMA: 1045, IK: 2605, OPENVINO: 3716},
    ("bf16", "decode1"): {LLAMA: 125, IK: 143, VLLM: 67},
    ("bf16", "decode2"): {LLAMA: 204, VLLM: 137},
    ("bf16", "decode4"): {LLAMA: 292, VLLM: 272},
    ("bf16", "decode8"): {LLAMA: 444, VLLM: 436},
    ("bf16", "decode16"): {LLAMA: 756, VLLM: 722},
    ("bf16", "decode32"): {LLAMA: 786, VLLM: 1030},
    ("bf16", "decode64"): {LLAMA: 940, VLLM: 1305},
    ("bf16", "prefill512"): {LLAMA: 1786, IK: 2128, VLLM: 2909},
    ("gemma", "decode1"): {LLAMA: 107},
    ("gemma", "prefill512"): {LLAMA: 994},
}
"""Tokens per second that the peers reached on two idle cores of Zen 5, with these ceilings:"""

KNOWN_CEILINGS = {"read_bytes_per_second": 47e9, "int8_macs_per_second": 1.07e12}
"""Read bandwidth of memory and VNNI products, both cores together, in the run of KNOWN_RATES."""

VOID_BELOW = 0.8
"""A peer below this part of what it is known to reach says that the machine was not quiet."""


def expected_rate(case: str, name: str, engine: str, ceilings: dict[str, float]) -> float | None:
    """What a peer should reach under the ceilings measured now, or None where nothing is known.

    A lower ceiling lowers it in proportion; a higher one does not raise it, because most peers are
    bound by something else (their barriers, their arithmetic), and would be held to a rate that
    they never had.
    """
    known = KNOWN_RATES.get((case, name), {}).get(engine)
    if known is None:
        return None
    point = POINTS.get(name)
    if point is not None and point.kind == "decode" and point.sequences <= 8:
        bound = "read_bytes_per_second"
    else:
        bound = "int8_macs_per_second"
    return known * min(1.0, ceilings[bound] / KNOWN_CEILINGS[bound])
