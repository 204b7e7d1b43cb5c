"""What comes back over HTTP, taken apart piece by piece: a response, and the events of a stream.

Written for clients that share a machine with the server they time: what is not looked at is not
decoded.
"""

from __future__ import annotations


class BrokenResponseError(Exception):
    """What came is no HTTP response, or breaks off."""


class Response:
    """One response to a request, as its bytes come. `status` is 0 until its head is there."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.finished = False
        self._pending = bytearray()
        # Bytes of the body, or of a chunk and its line end, that are still to come.
        self._left = 0
        self._chunked = False

    def feed(self, data: bytes) -> bytes:
        """Takes what came, and gives what of the body was in it.

        Raises `BrokenResponseError` for what is no response of a known length.
        """
        self._pending += data
        if not self.status:
            head, end, rest = self._pending.partition(b"\r\n\r\n")
            if not end:
                return b""
            self._pending = rest
            self._read_head(bytes(head))
        return self._chunks() if self._chunked else self._piece()

    def _read_head(self, head: bytes) -> None:
        first, *lines = head.decode("latin-1").split("\r\n")
        version, _, status = first.partition(" ")
        if not version.startswith("HTTP/1.") or not status[:3].isdecimal():
            raise BrokenResponseError(f"this is no HTTP response: {first!r:.100}")
        for line in lines:
            name, _, value = line.partition(":")
            self.headers[name.strip().lower()] = value.strip()
        self._chunked = self.headers.get("transfer-encoding", "").lower() == "chunked"
        length = self.headers.get("content-length", "")
        if not self._chunked:
            if not length.isdecimal():
                raise BrokenResponseError("the response tells nothing of its length")
            self._left = int(length)
        self.status = int(status[:3])

    def _piece(self) -> bytes:
        piece = bytes(self._pending[: self._left])
        del self._pending[: self._left]
        self._left -= len(piece)
        self.finished = self._left == 0
        return piece

    def _chunks(self) -> bytes:
        """The data of as many whole chunks as are there; a part of one waits for the rest."""
        pending, at, parts = bytes(self._pending), 0, []
        while not self.finished:
            line_end = pending.find(b"\r\n", at)
            if line_end < 0:
                break
            size = _chunk_size(pending[at:line_end])
            end = line_end + 2 + size
            if len(pending) < end + 2:
                break
            if pending[end : end + 2] != b"\r\n":
                raise BrokenResponseError("a chunk is longer than it says, or has trailers")
            parts.append(pending[line_end + 2 : end])
            at, self.finished = end + 2, size == 0
        del self._pending[:at]
        return b"".join(parts)


def _chunk_size(line: bytes) -> int:
    digits = line.partition(b";")[0].strip()
    try:
        return int(digits, 16)
    except ValueError:
        raise BrokenResponseError(f"{digits!r:.40} is no chunk's size") from None


class Events:
    """The events of a stream, as its text comes: the data of each; comments are left out."""

    def __init__(self) -> None:
        self._pending = b""

    def feed(self, text: bytes) -> list[bytes]:
        """The data of the events that are whole by now."""
        *blocks, self._pending = (self._pending + text).split(b"\n\n")
        return [each.removeprefix(b"data: ") for each in blocks if each.startswith(b"data: ")]
