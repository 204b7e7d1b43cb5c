"""Peak memory of a server that is used to the full, against what the plan said of it."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cli.serve_process import ServerProcess, serving
from farthing.core import KVDtype
from farthing.files.checkpoint import open_checkpoint
from farthing.models.load import load_model
from farthing.plan.memory import DRAFT_ROWS, plan_memory

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

CONTEXT = 256
PROMPT = 33
ERROR = 0.05


class Peak:
    """Anonymous memory of a process, looked at all the time until the block ends."""

    def __init__(self, server: ServerProcess) -> None:
        self._status = Path(f"/proc/{server.process.pid}/status")
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.bytes = 0

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()
        self._look()

    def _watch(self) -> None:
        while not self._done.wait(0.005):
            self._look()

    def _look(self) -> None:
        lines = dict(line.split(":", 1) for line in self._status.read_text().splitlines())
        self.bytes = max(self.bytes, 1024 * int(lines["RssAnon"].split()[0]))


def fill(server: ServerProcess, slots: int) -> None:
    """Every slot writes until its part of the cache is full, all at once."""

    def one(number: int) -> int:
        body = {
            "model": str(server.event("loaded")["path"]).rpartition("/")[2].removesuffix(".gguf"),
            "prompt": [1000 + number] * PROMPT,
            "max_tokens": CONTEXT - PROMPT,
            "temperature": 1,
            "top_p": 0.9,
            "logprobs": 5,
            "ignore_eos": True,
        }
        with server.client() as client:
            answer = client.post("/v1/completions", json=body)
        assert answer.status_code == 200, answer.text
        return int(answer.json()["usage"]["total_tokens"])

    with ThreadPoolExecutor(slots) as pool:
        assert list(pool.map(one, range(slots))) == [CONTEXT] * slots


@pytest.mark.parametrize(
    ("fixture", "slots", "kv_dtype"),
    [
        ("smollm2_path", 4, KVDtype.BF16),
        ("smollm2_path", 16, KVDtype.INT8),
        ("smollm2_path", 8, KVDtype.FP32),
        ("gemma3_path", 8, KVDtype.BF16),
    ],
)
def test_a_server_used_to_the_full_takes_what_the_plan_says(
    fixture: str,
    slots: int,
    kv_dtype: KVDtype,
    request: pytest.FixtureRequest,
    tmp_path: Path,
) -> None:
    path: Path = request.getfixturevalue(fixture)
    plan = plan_memory(
        load_model(open_checkpoint(path)),
        context_length=CONTEXT,
        cache_tokens=slots * CONTEXT,
        slots=slots,
        kv_dtype=kv_dtype,
        threads=2,
        draft_rows=DRAFT_ROWS,
    )
    flags = {
        "--context": CONTEXT,
        "--slots": slots,
        "--cache-tokens": slots * CONTEXT,
        "--kv-dtype": kv_dtype,
    }
    words = [str(word) for flag in flags.items() for word in flag]
    with serving(tmp_path, path, *words) as server:
        assert server.url
        with Peak(server) as peak:
            fill(server, slots)
    error = peak.bytes / plan.needed_bytes - 1
    print(f"{path.name} {slots} slots {kv_dtype.value}: {peak.bytes:,} {error:+.2%}")
    # A plan that says yes never runs out, and says no to little that would have fitted.
    assert abs(error) < ERROR
