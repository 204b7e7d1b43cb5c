"""Records what llama.cpp makes of the strings and vocabularies of make_vocabularies.py.

    PYTHONPATH=src python tests/data/text/record_peer.py LIBLLAMA COMMIT peer_tokens.json

LIBLLAMA is the shared library of a llama.cpp built from COMMIT. Every pre-tokenizer that farthing
knows is asked; those that answer alike share one list. `plain` answers add nothing and read the
text of special tokens as text, `chat` answers add what the model wants and parse special tokens;
`decoded` is the peer's text of the plain answer.
"""

from __future__ import annotations

import ctypes
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from farthing.text.pretokenizers import PRE_TOKENIZERS
from make_vocabularies import byte_level_metadata, scored_metadata, strings, write_gguf

CHAT_ANSWERS_OF = ("llama-bpe", "qwen2")


class _ModelParameters(ctypes.Structure):
    """`struct llama_model_params` of llama.h."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("devices", "tensor_buft_overrides")),
        *((name, ctypes.c_int32) for name in ("n_gpu_layers", "split_mode", "load_mode")),
        *((name, ctypes.c_int32) for name in ("lazy_mode", "main_gpu")),
        *((name, ctypes.c_void_p) for name in ("tensor_split", "progress_callback")),
        *((name, ctypes.c_void_p) for name in ("user_data", "kv_overrides")),
        *((name, ctypes.c_bool) for name in ("vocab_only", "check_tensors", "use_extra_bufts")),
        *((name, ctypes.c_bool) for name in ("no_host", "no_alloc", "load_mtp")),
    ]


class Peer:
    def __init__(self, library: str) -> None:
        self._library = ctypes.CDLL(library)
        self._library.llama_model_default_params.restype = _ModelParameters
        self._library.llama_model_load_from_file.argtypes = [ctypes.c_char_p, _ModelParameters]
        self._library.llama_model_load_from_file.restype = ctypes.c_void_p
        self._library.llama_model_get_vocab.argtypes = [ctypes.c_void_p]
        self._library.llama_model_get_vocab.restype = ctypes.c_void_p
        self._silent = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(
            lambda *_: None
        )
        self._library.llama_log_set(self._silent, None)
        self._library.llama_backend_init()

    def vocabulary(self, metadata: dict[str, Any]) -> ctypes.c_void_p:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "vocabulary.gguf"
            write_gguf(path, metadata)
            parameters = self._library.llama_model_default_params()
            parameters.vocab_only = True
            model = self._library.llama_model_load_from_file(str(path).encode(), parameters)
        if not model:
            sys.exit(f"the peer does not load {metadata.get('tokenizer.ggml.pre')}")
        return ctypes.c_void_p(self._library.llama_model_get_vocab(model))

    def tokens(self, vocabulary: ctypes.c_void_p, text: str, special: bool) -> list[int]:
        data = text.encode()
        ids = (ctypes.c_int32 * (len(data) + 8))()
        count = self._library.llama_tokenize(
            vocabulary,
            data,
            len(data),
            ids,
            len(ids),
            ctypes.c_bool(special),
            ctypes.c_bool(special),
        )
        return ids[:count]

    def text(self, vocabulary: ctypes.c_void_p, ids: list[int]) -> str:
        given, buffer = (ctypes.c_int32 * len(ids))(*ids), ctypes.create_string_buffer(4096)
        size = self._library.llama_detokenize(
            vocabulary, given, len(ids), buffer, 4096, ctypes.c_bool(False), ctypes.c_bool(True)
        )
        return buffer.raw[:size].decode("utf-8", "replace")


def main(library: str, commit: str, destination: str) -> None:
    peer, texts, metadata = Peer(library), strings(), byte_level_metadata()
    groups: list[dict[str, Any]] = []
    chat: dict[str, list[list[int]]] = {}
    for name in sorted(PRE_TOKENIZERS):
        vocabulary = peer.vocabulary({**metadata, "tokenizer.ggml.pre": name})
        plain = [peer.tokens(vocabulary, text, False) for text in texts]
        for group in groups:
            if group["plain"] == plain:
                group["names"].append(name)
                break
        else:
            groups.append({"names": [name], "plain": plain})
        if name in CHAT_ANSWERS_OF:
            chat[name] = [peer.tokens(vocabulary, text, True) for text in texts]
    scored = []
    for seed, adds_space in ((3, True), (4, False), (5, True)):
        case = scored_metadata(seed, adds_space)
        vocabulary = peer.vocabulary(case)
        plain = [peer.tokens(vocabulary, text, False) for text in texts]
        scored.append(
            {
                "metadata": case,
                "plain": plain,
                "chat": [peer.tokens(vocabulary, text, True) for text in texts],
                "decoded": [peer.text(vocabulary, ids) for ids in plain],
            }
        )
    record = {
        "peer": f"llama.cpp {commit}",
        "strings": texts,
        "byte_level": {"metadata": metadata, "groups": groups, "chat": chat},
        "scored": scored,
    }
    text = json.dumps(record, separators=(",", ":"))
    Path(destination).write_text(text.replace("],[", "],\n[") + "\n", encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])
