"""Named arrays in one file that is there whole or not at all: safetensors, written atomically."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from farthing.core import FarthingError
from farthing.files.replacing import replacing
from farthing.files.safetensors_writer import lay_safetensors
from farthing.files.writing import TensorPlan

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray

_FORMATS = {
    "float16": "F16",
    "float32": "F32",
    "float64": "F64",
    "int32": "I32",
    "int64": "I64",
}


def write_arrays(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Writes the arrays, of float16, 32 and 64 or int32 and 64, in place of the file at `path`.

    What stood there stays until the new file is on disk. Raises `FarthingError` where it cannot be
    written, as on a full disk.
    """
    plans = {
        TensorPlan(name, _FORMATS[array.dtype.name], array.shape, array.nbytes): array
        for name, array in arrays.items()
    }
    layout = lay_safetensors([*plans])
    with replacing(path) as file:
        file.write(layout.header)
        for plan in layout.places:
            file.write(plans[plan].tobytes() if plans[plan].ndim == 0 else plans[plan].data)


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """All arrays of a file, in memory of their own. Raises `FarthingError` for a damaged one."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        arrays: dict[str, NDArray[Any]] = load_file(path)
    except (SafetensorError, OSError) as error:
        raise FarthingError(
            f"{path} is damaged ({error!s:.120}): remove it, and the same command makes it again"
        ) from error
    return arrays
