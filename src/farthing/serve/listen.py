"""The socket, bound before anything else is done: whoever cannot listen need load nothing."""

from __future__ import annotations

import errno
import socket

from farthing.core import FarthingError, RequestError

_BACKLOG = 2048


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens; connections wait in it until somebody accepts them.

    Raises `FarthingError` saying what is in the way: the port is in use, privileged, or the address
    is none of this machine's.
    """
    address = _addresses(host)[0]
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        # A restart must not wait for connections of the last run to be forgotten.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise FarthingError(_advice(host, port, error)) from error
    listener.setblocking(False)
    return listener


def _addresses(host: str) -> list[str]:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise RequestError(
            f"--host {host!r:.100} is no address of a machine ({error}): give 127.0.0.1, or an "
            "address of this one"
        ) from None
    # Where a name has both, IPv4 first, as clients expect of localhost.
    found.sort(key=lambda each: each[0] != socket.AF_INET)
    return [str(each[4][0]) for each in found]


def _advice(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"port {port} of {host} is in use: end the program that has it, or give another "
            "--port (0 takes a free one)"
        )
    if error.errno in (errno.EACCES, errno.EPERM):
        return (
            f"port {port} may not be opened by this user ({error.strerror}): give a --port from "
            "1024 on, and let a reverse proxy have the privileged one"
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return (
            f"{host} is no address of this machine: give one that is as --host (127.0.0.1 for "
            "this machine only, 0.0.0.0 for all of its IPv4 addresses)"
        )
    return f"port {port} of {host} cannot be listened to: {error.strerror or error}"
