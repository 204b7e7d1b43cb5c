"""Write a GGUF model again in Q4_0, embedding and head in Q8_0, with the `gguf` package alone.

    python benchmarks/requantise.py MODEL.gguf OUT.gguf

A file for speed only: a second rounding of rounded weights says nothing about Q4_0's quality.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import gguf
from gguf.quants import dequantize, quantize

WIDE = ("token_embd.weight", "output.weight")


def write_q4_0(source: Path, target: Path) -> None:
    """Write source's matrices as Q4_0 (embedding and head Q8_0), all else as it stands."""
    reader = gguf.GGUFReader(source)
    architecture = reader.fields["general.architecture"].contents()
    partial = target.with_name(f"{target.name}.{os.getpid()}.part")
    writer = gguf.GGUFWriter(partial, architecture)
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name in ("general.architecture", "general.file_type"):
            continue
        item_type = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), field.types[0], sub_type=item_type)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_0)
    for tensor in reader.tensors:
        if len(tensor.shape) == 1:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
            continue
        wanted = "Q8_0" if tensor.name in WIDE else "Q4_0"
        kind = gguf.GGMLQuantizationType[wanted]
        values = dequantize(tensor.data, tensor.tensor_type)
        writer.add_tensor(tensor.name, quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    partial.rename(target)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    arguments = parser.parse_args()
    write_q4_0(arguments.source, arguments.target)
