"""Writing a file of safetensors without holding it: the library's own writer takes whole tensors.

The layout: u64 length of the header, the header (JSON), the tensors without gaps. `safetensors.py`
states how a tensor in a format that safetensors does not know is stored.
"""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING

from farthing.files.safetensors import FORMATS_KEY, ITEM_BYTES, VERSION, VERSION_KEY
from farthing.files.writing import Layout

if TYPE_CHECKING:
    from collections.abc import Sequence

    from farthing.files.writing import TensorPlan

_ALIGNMENT = 8
"""Of the first tensor; the header is filled up with spaces to it, as the library does."""


def lay_safetensors(plans: Sequence[TensorPlan]) -> Layout:
    """A file of these tensors, those with the widest items first, so that all are aligned.

    A packed tensor must be a matrix.
    """
    ordered = sorted(plans, key=lambda plan: -ITEM_BYTES.get(plan.format, 1))
    packed = {
        plan.name: {"format": plan.format, "shape": plan.shape}
        for plan in ordered
        if plan.format not in ITEM_BYTES
    }
    metadata = {"format": "pt"}  # without it, transformers does not take the file
    if packed:
        metadata |= {VERSION_KEY: VERSION, FORMATS_KEY: json.dumps(packed)}
    header: dict[str, object] = {"__metadata__": metadata}
    offsets: dict[TensorPlan, int] = {}
    end = 0
    for plan in ordered:
        dtype, shape = plan.format, list(plan.shape)
        if plan.name in packed:
            dtype, shape = "U8", [plan.shape[0], plan.bytes // plan.shape[0]]
        offsets[plan] = end
        header[plan.name] = {
            "dtype": dtype,
            "shape": shape,
            "data_offsets": [end, end + plan.bytes],
        }
        end += plan.bytes
    text = json.dumps(header, ensure_ascii=False).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    start = 8 + len(text)
    places = {plan: start + offset for plan, offset in offsets.items()}
    return Layout(struct.pack("<Q", len(text)) + text, places, start + end)
