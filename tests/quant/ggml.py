"""ggml's own quantisers, from the libraries in the package libggml-python."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

import libggml
import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType


@cache
def _library() -> ctypes.CDLL:
    folder = Path(libggml.__file__).parent
    return ctypes.CDLL(str(next(folder.glob("lib*/libggml-base.*"))))


def quantised(weights: np.ndarray, name: str, importance: np.ndarray | None = None) -> np.ndarray:
    """The bytes of (outputs, inputs) weights; `importance` is an importance matrix's (inputs,)."""
    outputs, inputs = weights.shape
    kind = GGMLQuantizationType[name]
    length, size = GGML_QUANT_SIZES[kind]
    source = np.ascontiguousarray(weights, np.float32)
    data = np.zeros(outputs * inputs // length * size, np.uint8)
    counts = None if importance is None else np.ascontiguousarray(importance, np.float32)
    quantize = _library().ggml_quantize_chunk
    quantize.restype = ctypes.c_size_t
    written = quantize(
        ctypes.c_int(int(kind)),
        ctypes.c_void_p(source.ctypes.data),
        ctypes.c_void_p(data.ctypes.data),
        ctypes.c_int64(0),
        ctypes.c_int64(outputs),
        ctypes.c_int64(inputs),
        ctypes.c_void_p(None if counts is None else counts.ctypes.data),
    )
    assert written == data.nbytes
    return data
