"""A small server that speaks a Hugging Face hub's API, as far as fetching a model needs it."""

from __future__ import annotations

import hashlib
import json
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Repository:
    """What the hub holds under one id. `token` is needed to read it, where it is not None."""

    files: dict[str, bytes]
    card: dict[str, Any] = field(default_factory=lambda: {"license": "mit"})
    token: str | None = None
    gated: bool = False
    corrupt: str | None = None
    """A file whose content is another one of the same length than its hash says."""


@dataclass
class Hub:
    """A running server: its address, its repositories, and the requests that it got."""

    endpoint: str
    repositories: dict[str, Repository] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)


@contextmanager
def running_hub() -> Iterator[Hub]:
    """Serves on a free port of this machine until the block ends."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    hub = Hub(f"http://127.0.0.1:{server.server_address[1]}")
    server.hub = hub  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self, body: bool) -> None:
        hub: Hub = self.server.hub  # type: ignore[attr-defined]
        hub.requests.append(f"{self.command} {self.path}")
        parts = self.path.split("?")[0].strip("/").split("/")
        is_api = parts[:2] == ["api", "models"]
        name = "/".join(parts[2:4] if is_api else parts[:2])
        repository = hub.repositories.get(name)
        if repository is None:
            return self._refuse(404, "RepoNotFound")
        if repository.token and self.headers["Authorization"] != f"Bearer {repository.token}":
            if repository.gated:
                return self._refuse(403, "GatedRepo")
            return self._refuse(401, "RepoNotFound")
        if is_api:
            return self._send(json.dumps(_model_info(name, repository)).encode(), {}, body)
        content = repository.files.get("/".join(parts[4:]))
        if parts[2:3] != ["resolve"] or content is None:
            return self._refuse(404, "EntryNotFound")
        etag = {"ETag": f'"{hashlib.sha256(content).hexdigest()}"', "X-Repo-Commit": COMMIT}
        if repository.corrupt == "/".join(parts[4:]):
            content = content[:-1] + bytes([content[-1] ^ 1])
        return self._send(content, etag, body)

    def _send(self, content: bytes, headers: dict[str, str], body: bool) -> None:
        start, wanted = 0, self.headers["Range"]
        if wanted:
            start = int(wanted.removeprefix("bytes=").split("-")[0])
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        self.send_response(206 if wanted else 200)
        self.send_header("Content-Length", str(len(content) - start))
        for key, value in headers.items():
            self.send_header(key, value)
        self.end_headers()
        if body:
            self.wfile.write(content[start:])

    def _refuse(self, status: int, code: str) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()


def _model_info(name: str, repository: Repository) -> dict[str, Any]:
    siblings = []
    for path, content in repository.files.items():
        large = path.endswith((".gguf", ".safetensors"))
        digest = hashlib.sha256(content).hexdigest()
        lfs = {"sha256": digest, "size": len(content), "pointerSize": 130}
        siblings.append(
            {"rfilename": path, "size": len(content), "blobId": digest[:40]}
            | ({"lfs": lfs} if large else {})
        )
    return {
        "_id": "1",
        "id": name,
        "modelId": name,
        "sha": COMMIT,
        "private": False,
        "tags": [],
        "downloads": 0,
        "likes": 0,
        "cardData": repository.card,
        "siblings": siblings,
    }
