"""Peak memory of a server that is used to the full, against what the plan said of it."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import tiny
from cli.serve_process import ServerProcess, serving
from farthing.cli import main
from farthing.core import KVDtype
from farthing.plan.memory import DRAFT_ROWS, plan_memory
from native_steps import model_at

if TYPE_CHECKING:
    from collections.abc import Iterator

    from farthing.plan.memory import MemoryPlan

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

CONTEXT = 128
PROMPT = 33
BURSTS = 3
"""How many prompts of a request a step takes in is a matter of moments."""

MORE, LESS = 0.03, 0.05
"""How late memory is given back differs from run to run: less than planned is the lesser fault."""

TINY_ERROR = 3 << 20
"""Bytes, where the interpreter is nearly all there is."""

REAL = [
    ("smollm2_path", 4, KVDtype.BF16),
    ("smollm2_path", 16, KVDtype.INT8),
    ("smollm2_path", 8, KVDtype.FP32),
    ("smollm2_path", 8, KVDtype.INT4_KEYS),
    ("gemma3_path", 8, KVDtype.BF16),  # has windows
    ("gemma3_path", 8, KVDtype.INT4_KEYS),
]
OTHERS = list(zip(tiny.FAMILIES, [*KVDtype] * len(tiny.FAMILIES), strict=False))


class Peak:
    """Anonymous memory of a process, looked at all the time until the block ends.

    With `most`, a process that has more is killed, as by a system that has no more.
    """

    def __init__(self, server: ServerProcess, most: int | None = None) -> None:
        self._server = server
        self._most = most
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
        if "RssAnon" not in lines:
            return  # it has ended
        self.bytes = max(self.bytes, 1024 * int(lines["RssAnon"].split()[0]))
        if self._most is not None and self.bytes > self._most:
            self._server.signal(signal.SIGKILL)


def complete(server: ServerProcess, **body: object) -> int:
    """The tokens used."""
    name = str(server.event("loaded")["path"]).rpartition("/")[2].removesuffix(".gguf")
    with server.client() as client:
        answer = client.post("/v1/completions", json={"model": name, **body})
    assert answer.status_code == 200, answer.text
    return int(answer.json()["usage"]["total_tokens"])


def fill(server: ServerProcess, slots: int) -> None:
    """The longest prompts in as few steps as can be; then every slot writes until its part of the
    cache is full, all at once.
    """

    def one(number: int) -> int:
        return complete(
            server,
            prompt=[10 + number] * PROMPT,
            max_tokens=CONTEXT - PROMPT,
            temperature=1,
            top_p=0.9,
            logprobs=20,
            ignore_eos=True,
            guided_regex="(.|\\n)*",
        )

    for times in range(BURSTS):
        # No two begin alike, or the second would be shared.
        prompts = [[10 + times * slots + slot] * (CONTEXT - 1) for slot in range(slots)]
        complete(server, prompt=prompts, max_tokens=1)
    with ThreadPoolExecutor(slots) as pool:
        assert list(pool.map(one, range(slots))) == [CONTEXT] * slots


def planned(path: Path, slots: int, kv_dtype: KVDtype) -> tuple[MemoryPlan, list[str]]:
    """The plan, and the flags that ask a server for it."""
    plan = plan_memory(
        model_at(path),
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
        "--speculate": "ngram",
    }
    return plan, [str(word) for flag in flags.items() for word in flag]


@contextmanager
def used_to_the_full(
    home: Path, path: Path, slots: int, kv_dtype: KVDtype
) -> Iterator[tuple[MemoryPlan, int]]:
    """The plan, and the peak."""
    plan, flags = planned(path, slots, kv_dtype)
    with serving(home, path, *flags) as server:
        assert server.url
        with Peak(server) as peak:
            fill(server, slots)
    error = peak.bytes / plan.needed_bytes - 1
    print(f"{path.name} {slots} slots {kv_dtype.value}: {peak.bytes:,} {error:+.2%}")
    yield plan, peak.bytes


@pytest.mark.parametrize(("fixture", "slots", "kv_dtype"), REAL)
def test_a_server_used_to_the_full_takes_what_the_plan_says(
    fixture: str,
    slots: int,
    kv_dtype: KVDtype,
    request: pytest.FixtureRequest,
    tmp_path: Path,
) -> None:
    path: Path = request.getfixturevalue(fixture)
    with used_to_the_full(tmp_path, path, slots, kv_dtype) as (plan, peak):
        # A plan that says yes never runs out, and says no to little that would have fitted.
        assert -LESS < peak / plan.needed_bytes - 1 < MORE


@pytest.mark.parametrize(("family", "kv_dtype"), OTHERS)
def test_a_server_of_any_family_takes_what_the_plan_says(
    family: str, kv_dtype: KVDtype, tmp_path: Path
) -> None:
    path = tiny.shared(family, "gguf", "Q4_0")
    with used_to_the_full(tmp_path, path, 8, kv_dtype) as (plan, peak):
        assert abs(peak - plan.needed_bytes) < TINY_ERROR


def test_a_plan_that_says_yes_never_runs_out(smollm2_path: Path, tmp_path: Path) -> None:
    """Filled exactly, and killed by whoever sees it take more than it said."""
    plan, flags = planned(smollm2_path, 16, KVDtype.BF16)
    with serving(tmp_path, smollm2_path, *flags) as server:
        with Peak(server, plan.needed_bytes):
            assert server.url
            fill(server, 16)
        assert server.process.poll() is None


def cgroup_parents() -> Iterator[Path]:
    """Groups in which another may be made that bounds memory.

    The one that FARTHING_TEST_CGROUP names, of version 1 or 2; and of version 2, whose groups say
    what they delegate, those beside or below this process's own.
    """
    if named := os.environ.get("FARTHING_TEST_CGROUP"):
        yield Path(named)
    top, own = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup").read_text().splitlines()
    unified = [line.removeprefix("0::/") for line in own if line.startswith("0::/")]
    if unified and (top / "cgroup.controllers").exists():
        for parent in (top / unified[0], (top / unified[0]).parent):
            control = parent / "cgroup.subtree_control"
            if control.exists() and "memory" in control.read_text().split():
                yield parent


class Group:
    """A group of processes that may have so much memory, by either version of cgroups.

    Version 1 charges the pages of files as well, but takes them back before it kills anybody.
    """

    def __init__(self, parent: Path, most: int) -> None:
        """Raises `OSError` where none can be made there."""
        self._path = parent / f"farthing-test-{os.getpid()}"
        self._path.mkdir()
        self._unified = (self._path / "memory.max").exists()
        names = ["memory.max"] if self._unified else ["memory.limit_in_bytes"]
        if not self._unified and (self._path / "memory.memsw.limit_in_bytes").exists():
            names.append("memory.memsw.limit_in_bytes")
        for name in names:
            (self._path / name).write_text(str(most))

    def add(self, process: int) -> None:
        """From now on what it takes counts."""
        (self._path / "cgroup.procs").write_text(str(process))

    @property
    def anonymous(self) -> int:
        """Bytes now."""
        stat = dict(line.split() for line in (self._path / "memory.stat").read_text().splitlines())
        return int(stat["anon" if self._unified else "total_rss"])

    @property
    def killed(self) -> int:
        """How many processes found no memory."""
        name = "memory.events" if self._unified else "memory.oom_control"
        lines = dict(line.split() for line in (self._path / name).read_text().splitlines())
        return int(lines["oom_kill"])

    def remove(self) -> None:
        """Its processes have ended."""
        self._path.rmdir()


def group_of(most: int) -> Group:
    """Skips the test where none can be made."""
    why = "no cgroup delegates memory to this process, and FARTHING_TEST_CGROUP names none"
    for parent in cgroup_parents():
        try:
            return Group(parent, most)
        except OSError as error:
            why = f"no cgroup can be made in {parent} ({error.strerror})"
    pytest.skip(why)


@pytest.mark.parametrize("unified", [True, False])
def test_a_group_is_read_by_either_version_of_cgroups(unified: bool, tmp_path: Path) -> None:
    """With files in place of the kernel's."""
    limits = ("max",) if unified else ("limit_in_bytes", "memsw.limit_in_bytes")
    path = tmp_path / f"farthing-test-{os.getpid()}"
    make = Path.mkdir

    def mkdir(self: Path) -> None:
        make(self)
        for each in limits:
            (self / f"memory.{each}").write_text("")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "mkdir", mkdir)
        group = Group(tmp_path, 12345)
    assert [(path / f"memory.{each}").read_text() for each in limits] == ["12345"] * len(limits)
    group.add(77)
    assert (path / "cgroup.procs").read_text() == "77"
    events = path / ("memory.events" if unified else "memory.oom_control")
    events.write_text("low 0\noom_kill 3\n")
    (path / "memory.stat").write_text("cache 9\nanon 5\ntotal_rss 7\n")
    assert (group.killed, group.anonymous) == (3, 5 if unified else 7)


def test_a_plan_that_says_yes_never_runs_out_in_a_cgroup_of_its_bytes(
    smollm2_path: Path, tmp_path: Path
) -> None:
    plan, flags = planned(smollm2_path, 16, KVDtype.BF16)
    # The kernel counts page tables and sockets too.
    group = group_of(plan.needed_bytes + plan.needed_bytes // 64)
    try:
        with serving(tmp_path, smollm2_path, *flags) as server:
            group.add(server.process.pid)
            assert server.url
            fill(server, 16)
            assert server.process.poll() is None
            assert group.killed == 0
            assert group.anonymous <= plan.needed_bytes
    finally:
        group.remove()


def test_a_server_says_no_at_once_with_the_plans_numbers(
    smollm2_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--context", "8192", "--kv-dtype", "bf16", "--threads", "2", "--speculate", "ngram"]
    many = 1 << 17  # users, of whom nobody has the memory
    asked = ["plan", str(smollm2_path), *flags, "--users", str(many), "--ceilings", "none"]
    assert main([*asked, "--json"]) == 1
    (cell,) = json.loads(capsys.readouterr().out)["cells"]
    cache = ["--slots", str(many), "--cache-tokens", str(many * 8192)]
    with serving(tmp_path, smollm2_path, *flags, *cache) as server:
        assert server.wait() == 1
        said = " ".join([*server.other, *(str(line) for line in server.lines)])
    assert f"needs {cell['needed_bytes'] / 2**20:,.0f} MiB" in said
    assert not server.events("allocated")
