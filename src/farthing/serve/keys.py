"""Who may use the server, and how much of it.

A key is known by the SHA-256 of its secret, and the secret itself is forgotten as soon as that is
taken: it is in no log, no error and no record. Secrets are long and random, so a fast hash will do.

A file of keys is TOML, a table for each:

    [alice]
    sha256 = "9f86d081..."        # or secret = "..."
    weight = 2                    # of her share, beside other keys'
    tokens_per_minute = 100000
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import logging
import os
import re
import select
import stat
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farthing.core import RequestError
from farthing.files.text_files import decoded, read_bounded
from farthing.serve.errors import ApiError
from farthing.serve.places import file_at

if TYPE_CHECKING:
    from collections.abc import Iterable

    from farthing.serve.settings import Settings

log = logging.getLogger("farthing.serve")

_SHORTEST_SECRET = 16
_MOST_FILE_BYTES = 1 << 20
_PIPE_SECONDS = 5.0
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_ONLY_KEY = "default"
_ADVICE = "make one with `python3 -c 'import secrets; print(secrets.token_urlsafe(32))'`"


@dataclass(frozen=True)
class Key:
    """A caller. `weight` is of its share of the machine when several ask at once.

    `priority` is the highest that it may ask for. At most `most_running` of its requests are
    accepted at a time, with `most_queued_tokens` of prompts whose answers have not begun; None sets
    no bound of its own. An `admin` sees the usage of all keys.
    """

    name: str
    digest: bytes = b""
    weight: float = 1.0
    priority: int = 0
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    most_running: int | None = None
    most_queued_tokens: int | None = None
    admin: bool = False


ANONYMOUS = Key("", admin=True)
"""Everybody, where no keys are configured: whoever can reach the port owns the machine."""

_OPTIONS = {each.name for each in fields(Key)} - {"name", "digest"}


class KeyRing:
    """The keys of a server; without any, everybody is `ANONYMOUS`.

    Raises `RequestError` for two keys with one name or one secret.
    """

    def __init__(self, keys: Iterable[Key] = ()) -> None:
        self.keys = tuple(keys)
        for what in ("name", "digest"):
            values = [getattr(key, what) for key in self.keys]
            twice = next((key for key in self.keys if values.count(getattr(key, what)) > 1), None)
            if twice is not None:
                kind = "name" if what == "name" else "secret"
                raise RequestError(
                    f"the key {twice.name!r} has the same {kind} as another one: give each its own"
                )

    @property
    def weights(self) -> dict[str, float]:
        """For the engine's `Policy`: each key's share."""
        return {key.name: key.weight for key in self.keys}

    def authenticate(self, authorization: str | None) -> Key:
        """Whose request it is; raises `ApiError` 401 for nobody's.

        Compares with every key, and each in the same time whatever is wrong with it.
        """
        if not self.keys:
            return ANONYMOUS
        scheme, _, secret = (authorization or "").partition(" ")
        given = hashlib.sha256(secret.strip().encode()).digest()
        found: Key | None = None
        for key in self.keys:
            if hmac.compare_digest(key.digest, given):
                found = key
        if found is None or scheme.lower() != "bearer":
            missing = authorization is None
            raise ApiError(
                401,
                "this server needs a key: send the header Authorization: Bearer KEY"
                if missing
                else "the key is not one of this server's: ask its owner for one",
                code="missing_api_key" if missing else "invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
        return found


def load_keys(settings: Settings) -> KeyRing:
    """The keys that the settings name.

    Raises `RequestError` where one is not as it should be, and where the server would listen to
    other machines without any.
    """
    keys: list[Key] = []
    if settings.api_key is not None:
        keys.append(Key(_ONLY_KEY, _digest("api_key", settings.api_key), admin=True))
    if settings.keys_file is not None:
        keys += _from_file(file_at("keys_file", settings.keys_file))
    if not keys and not is_loopback(settings.host):
        raise RequestError(
            f"without a key the server listens on this machine only, and host is {settings.host}: "
            f"give an api_key or a keys_file ({_ADVICE}), or take host 127.0.0.1"
        )
    return KeyRing(keys)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach that address. A name other than localhost is not so."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _from_file(path: Path) -> list[Key]:
    where = f"keys_file {path}"
    try:
        mode = path.stat().st_mode
        content = _from_pipe(path, where) if stat.S_ISFIFO(mode) else None
    except OSError as error:
        raise RequestError(f"{where} cannot be read: {error.strerror or error}") from error
    if content is None:
        content = read_bounded(path, _MOST_FILE_BYTES, where)
    try:
        # The library's message has a place, and no text of the file.
        tables = tomllib.loads(decoded(content, where))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise RequestError(f"{path} is not TOML ({error!s:.200}): correct it there") from None
    if not tables:
        raise RequestError(f"{path} has no keys: write a table for each, such as [alice]")
    in_clear = any(isinstance(each, Mapping) and "secret" in each for each in tables.values())
    if in_clear and mode & (stat.S_IRWXG | stat.S_IRWXO):
        log.warning(
            "%s holds secrets and others than its owner may read it: chmod 600 it, or write the "
            "sha256 of each secret instead",
            path,
        )
    return [_key(f"{path}: [{name}]", name, table) for name, table in tables.items()]


def _from_pipe(path: Path, where: str) -> bytes:
    """What another program writes into a pipe, such as a shell's `<(...)`.

    Raises `OSError`, and `RequestError` for more than a file of keys may have.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb", buffering=0) as pipe:
        content = b""
        while len(content) <= _MOST_FILE_BYTES:
            if not select.select([pipe], [], [], _PIPE_SECONDS)[0]:
                raise TimeoutError(f"nothing came from {path} for {_PIPE_SECONDS:g} seconds")
            part = pipe.read(_MOST_FILE_BYTES)
            if not part:
                return content
            content += part
    raise RequestError(f"{where} has more than the {_MOST_FILE_BYTES:,} bytes that it may have")


def _key(where: str, name: str, table: object) -> Key:
    if not _NAME.fullmatch(name):
        raise RequestError(
            f"{where} is not a name for a key: take up to 64 letters, digits and . _ @ -"
        )
    if not isinstance(table, Mapping):
        raise RequestError(f"{where} must be a table: write [{name}] and its options below")
    options = dict(table)
    secret, digest = options.pop("secret", None), options.pop("sha256", None)
    if (secret is None) == (digest is None):
        raise RequestError(f"{where} must have either secret or sha256")
    if digest is None:
        known = _digest(f"{where}: secret", secret)
    else:
        if not isinstance(digest, str) or not _DIGEST.fullmatch(digest.lower()):
            raise RequestError(f"{where}: sha256 must be 64 hexadecimal digits")
        known = bytes.fromhex(digest)
    for option, value in options.items():
        _check_option(where, option, value)
    return Key(name, known, **options)


def _digest(where: str, secret: object) -> bytes:
    """The secret's hash; no message quotes the secret."""
    if not isinstance(secret, str) or len(secret) < _SHORTEST_SECRET or not secret.isprintable():
        raise RequestError(
            f"{where} must be a text of at least {_SHORTEST_SECRET} printable characters: {_ADVICE}"
        )
    if secret != secret.strip() or not secret.isascii():
        raise RequestError(
            f"{where} must be ASCII, with no space around it, as it goes into a header: {_ADVICE}"
        )
    return hashlib.sha256(secret.encode()).digest()


def _check_option(where: str, option: str, value: Any) -> None:
    if option not in _OPTIONS:
        near = get_close_matches(option, _OPTIONS, 1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(sorted(_OPTIONS))}"
        raise RequestError(f"{where} has no option {option!r:.60}: {hint}")
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if option == "admin":
        ok, wanted = isinstance(value, bool), "true or false"
    elif option == "weight":
        ok, wanted = number and 0 < value < float("inf"), "a number above 0"
    elif option == "priority":
        ok, wanted = type(value) is int, "a whole number"
    else:
        ok, wanted = type(value) is int and value >= 1, "a whole number from 1"
    if not ok:
        raise RequestError(f"{where}: {option} must be {wanted}, not {value!r:.60}")
