from __future__ import annotations

import hashlib
import logging
import os
import threading
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farthing.core import RequestError
from farthing.serve.errors import ApiError
from farthing.serve.keys import ANONYMOUS, Key, KeyRing, is_loopback, load_keys
from farthing.serve.settings import Settings
from serve.server import serving

if TYPE_CHECKING:
    from pathlib import Path

SECRET = "a-secret-of-some-length"
OTHER = "another-secret-of-length"
DIGEST = hashlib.sha256(OTHER.encode()).hexdigest()


def written(path: Path, text: str) -> Settings:
    file = path / "keys.toml"
    file.write_text(text, encoding="utf-8")
    file.chmod(0o600)
    return replace(Settings(), keys_file=str(file))


@pytest.fixture
def ring(tmp_path: Path) -> KeyRing:
    return load_keys(
        written(
            tmp_path,
            f"""
            [alice]
            secret = "{SECRET}"
            weight = 2
            priority = 3
            requests_per_minute = 60
            tokens_per_minute = 1000
            most_running = 4
            most_queued_tokens = 500
            [bob]
            sha256 = "{DIGEST}"
            admin = true
            """,
        )
    )


def test_keys_come_through_a_pipe_and_one_that_nobody_writes_to_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    settings = replace(Settings(), keys_file=str(pipe))
    # A writer that is there, and has written: as a shell's <(...) has it.
    descriptor = os.open(pipe, os.O_RDWR)
    os.write(descriptor, f'[alice]\nsecret = "{SECRET}"\n'.encode())
    timer = threading.Timer(0.2, os.close, (descriptor,))
    timer.start()
    assert [key.name for key in load_keys(settings).keys] == ["alice"]
    timer.join()
    monkeypatch.setattr("farthing.serve.keys._PIPE_SECONDS", 0.1)
    with pytest.raises(RequestError, match="nothing came from"):
        load_keys(settings)


def test_a_key_is_known_by_its_secret_or_by_the_hash_of_it(ring: KeyRing) -> None:
    alice = ring.authenticate(f"Bearer {SECRET}")
    assert (alice.name, alice.weight, alice.priority, alice.admin) == ("alice", 2, 3, False)
    assert (alice.requests_per_minute, alice.tokens_per_minute) == (60, 1000)
    assert (alice.most_running, alice.most_queued_tokens) == (4, 500)
    assert ring.authenticate(f"bearer  {OTHER}").name == "bob"
    assert ring.weights == {"alice": 2, "bob": 1.0}


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        f"Basic {SECRET}",
        SECRET,
        f"Bearer {SECRET}x",
        f"Bearer {DIGEST}",
    ],
)
def test_nobody_else_is_let_in(ring: KeyRing, header: str | None) -> None:
    with pytest.raises(ApiError) as caught:
        ring.authenticate(header)
    assert caught.value.status == 401
    assert caught.value.headers["WWW-Authenticate"] == "Bearer"
    assert caught.value.code == ("missing_api_key" if header is None else "invalid_api_key")


@given(st.text(st.characters(codec="latin-1")))
def test_whatever_a_header_holds_it_is_compared_or_refused(header: str) -> None:
    ring = KeyRing([Key("a", hashlib.sha256(SECRET.encode()).digest())])
    with pytest.raises(ApiError, match="not one of"):
        ring.authenticate(header)


def test_every_key_is_compared_whichever_matches(
    ring: KeyRing, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[bytes] = []

    def compare(known: bytes, given: bytes) -> bool:
        compared.append(known)
        return known == given

    monkeypatch.setattr("hmac.compare_digest", compare)
    for header in (f"Bearer {SECRET}", f"Bearer {OTHER}", "Bearer nothing"):
        compared.clear()
        with suppress(ApiError):
            ring.authenticate(header)
        assert compared == [key.digest for key in ring.keys]


def test_no_secret_is_kept_or_told(ring: KeyRing, tmp_path: Path) -> None:
    assert SECRET not in repr(vars(ring))
    with pytest.raises(RequestError) as caught:
        load_keys(written(tmp_path, f'[a]\nsecret = "{SECRET}"\n[b]\nsecret = "{SECRET}"'))
    assert "same secret" in str(caught.value)
    for text in (f'[a]\nsecret = "{SECRET[:9]}"', f'[a]\nsecret = " {SECRET}"'):
        with pytest.raises(RequestError) as caught:
            load_keys(written(tmp_path, text))
        assert SECRET[:9] not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no keys"),
        ("[a", "not TOML"),
        ("a = 1", "must be a table"),
        ("[a]", "either secret or sha256"),
        (f'[a]\nsecret = "{SECRET}"\nsha256 = "{DIGEST}"', "either secret or sha256"),
        ('[a]\nsha256 = "12"', "64 hexadecimal"),
        ("[a]\nsecret = 5", "at least 16"),
        (f'["a b"]\nsha256 = "{DIGEST}"', "not a name"),
        (f'[a]\nsha256 = "{DIGEST}"\nwieght = 2', "did you mean weight"),
        (f'[a]\nsha256 = "{DIGEST}"\nweight = 0', "weight must be"),
        (f'[a]\nsha256 = "{DIGEST}"\nweight = nan', "weight must be"),
        (f'[a]\nsha256 = "{DIGEST}"\nmost_running = 0', "most_running must be"),
        (f'[a]\nsha256 = "{DIGEST}"\nadmin = 1', "admin must be"),
    ],
)
def test_a_file_of_keys_that_is_wrong_is_refused_with_the_reason(
    tmp_path: Path, text: str, said: str
) -> None:
    with pytest.raises(RequestError, match=said):
        load_keys(written(tmp_path, text))


def test_a_file_that_is_not_text_or_not_there_is_refused(tmp_path: Path) -> None:
    settings = written(tmp_path, "")
    (tmp_path / "keys.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(RequestError, match="not UTF-8"):
        load_keys(settings)
    with pytest.raises(RequestError, match="cannot be read"):
        load_keys(replace(Settings(), keys_file=str(tmp_path / "none.toml")))


def test_more_than_a_file_of_keys_may_have_is_refused_from_a_file_and_from_a_pipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("farthing.serve.keys._MOST_FILE_BYTES", 100)
    text = f'[alice]\nsecret = "{SECRET}"\n'.ljust(101)
    with pytest.raises(RequestError, match="more than the 100 bytes"):
        load_keys(written(tmp_path, text))
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    descriptor = os.open(pipe, os.O_RDWR)
    os.write(descriptor, text.encode())
    with pytest.raises(RequestError, match="more than the 100 bytes"):
        load_keys(replace(Settings(), keys_file=str(pipe)))
    os.close(descriptor)


def test_secrets_that_others_may_read_are_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = written(tmp_path, f'[a]\nsecret = "{SECRET}"')
    with caplog.at_level(logging.WARNING):
        load_keys(settings)
        assert not caplog.records
        (tmp_path / "keys.toml").chmod(0o644)
        load_keys(settings)
    assert "chmod 600" in caplog.text
    assert SECRET not in caplog.text


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost"])
def test_on_this_machine_alone_no_key_is_needed(host: str) -> None:
    assert is_loopback(host)
    ring = load_keys(replace(Settings(), host=host))
    assert ring.authenticate(None) is ring.authenticate("Bearer anything") is ANONYMOUS


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org"])
def test_to_listen_to_others_a_key_is_needed(host: str) -> None:
    with pytest.raises(RequestError, match="without a key"):
        load_keys(replace(Settings(), host=host))
    ring = load_keys(replace(Settings(), host=host, api_key=SECRET))
    assert ring.authenticate(f"Bearer {SECRET}").admin


def test_a_server_with_keys_answers_their_owners_only(ring: KeyRing) -> None:
    def keyed(state: object) -> None:
        state.keys = ring  # type: ignore[attr-defined]

    with serving(prepare=keyed) as served:
        assert served.chat(max_tokens=1).status_code == 401
        served.http.headers["authorization"] = f"Bearer {SECRET}"
        assert served.chat(max_tokens=1).status_code == 200
