"""The socket: bound at once, or a message that says what is in the way."""

from __future__ import annotations

import errno
import socket

import pytest

from farthing.core import FarthingError, RequestError
from farthing.serve.listen import bind


def test_who_connects_before_anybody_accepts_is_not_lost() -> None:
    with (
        bind("127.0.0.1", 0) as listener,
        socket.create_connection(listener.getsockname(), timeout=10) as client,
    ):
        client.sendall(b"early")
        listener.setblocking(True)
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.recv(5) == b"early"


def test_a_port_can_be_bound_again_at_once_after_its_connections() -> None:
    with bind("127.0.0.1", 0) as listener:
        address = listener.getsockname()
        client = socket.create_connection(address, timeout=10)
        listener.setblocking(True)
        accepted, _ = listener.accept()
        accepted.close()  # this side first: its end of the connection lingers
        client.close()
    bind(*address).close()


def test_localhost_is_bound_where_clients_look_for_it() -> None:
    with bind("localhost", 0) as listener:
        assert listener.getsockname()[0] in ("127.0.0.1", "::1")


def test_a_port_in_use_is_told() -> None:
    with bind("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(FarthingError, match=f"port {port} of 127.0.0.1 is in use"):
            bind("127.0.0.1", port)


def test_a_foreign_address_is_told() -> None:
    with pytest.raises(FarthingError, match="192.0.2.1 is no address of this machine"):
        bind("192.0.2.1", 0)


@pytest.mark.parametrize("host", ["", "no such host", "a" * 300, "\udcff", "127.0.0.1:80"])
def test_what_is_no_address_is_told(host: str) -> None:
    with pytest.raises(RequestError, match="is no address of a machine"):
        bind(host, 0)


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (errno.EACCES, "port 80 may not be opened by this user"),
        (errno.EMFILE, "port 80 of 127.0.0.1 cannot be listened to"),
    ],
)
def test_what_the_system_refuses_is_told(
    number: int, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refused(socket.socket):
        def bind(self, _address: object) -> None:
            raise OSError(number, "refused")

    monkeypatch.setattr("farthing.serve.listen.socket.socket", Refused)
    with pytest.raises(FarthingError, match=message):
        bind("127.0.0.1", 80)
