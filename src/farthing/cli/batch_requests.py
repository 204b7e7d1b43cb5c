"""The lines of a batch: one JSON object a line becomes a prompt and how it is to be sampled.

A line is read in full or refused with its number: no field is ignored, none is guessed.
"""

from __future__ import annotations

import json
import stat
from dataclasses import asdict, dataclass, fields, replace
from difflib import get_close_matches
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from farthing.core import Constraint, RequestError, SamplingParams

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LONGEST_LINE = 16 << 20
"""Bytes: far more than any context holds, and no more is read at a time."""

SAMPLING_FIELDS = frozenset(field.name for field in fields(SamplingParams))
_FIELDS = frozenset({"id", "prompt", "messages"}) | SAMPLING_FIELDS
_OPENAI_FIELDS = frozenset({"custom_id", "method", "url", "body"})
_DIGEST_BYTES = 16
_MOST_SHOWN = 10


@dataclass(frozen=True)
class Defaults:
    """What the command line says of every line: sampling, and how a string becomes a prompt.

    `guesses_matter`: which text comes out depends on how many tokens may be guessed ahead, as by
    the rule that keeps no more than the distribution.
    """

    sampling: SamplingParams
    raw: bool = False
    system: str | None = None
    guesses_matter: bool = False


@dataclass(frozen=True)
class BatchRequest:
    """One line. `index` counts the requests of the file from 0, `line` its lines from 1.

    `prompt` is a string, token ids or a chat. `digest` is the same in another run only where id,
    prompt and sampling are.
    """

    index: int
    line: int
    id: str | int | None
    prompt: str | list[int] | list[dict[str, Any]]
    sampling: SamplingParams
    digest: str


class LineErrors:
    """Errors by line: all are counted, and the first ten kept."""

    def __init__(self) -> None:
        self.count = 0
        self._kept: list[str] = []

    def add(self, line: int, error: object) -> None:
        """Notes what is wrong with a line."""
        self.count += 1
        if self.count <= _MOST_SHOWN:
            self._kept.append(f"\n  line {line}: {error}")

    def __str__(self) -> str:
        """A line break and those kept, a line each; and how many more there are."""
        more = self.count - len(self._kept)
        return "".join(self._kept) + (f"\n  and {more:,} more" if more else "")


def read_requests(path: Path, defaults: Defaults, errors: LineErrors) -> Iterator[BatchRequest]:
    """The requests of a file, one after another; what is wrong with a line goes to `errors`.

    A line holds `prompt` (a string or token ids) or `messages` (a chat), and may hold `id` and any
    field of `SamplingParams`, for which `defaults` stand in. Empty lines are passed over. Holds one
    line at a time, and 16 bytes of each id. Raises `RequestError` when the file cannot be read.
    """
    seen: dict[bytes, int] = {}
    for index, (number, data) in enumerate(_lines(path)):
        try:
            if isinstance(data, RequestError):
                raise data
            request = _request(index, number, data, defaults)
            if request.id is not None:
                key = _hash(request.id)
                if key in seen:
                    raise RequestError(f"the id {request.id!r:.100} is line {seen[key]}'s")
                seen[key] = number
        except RequestError as error:
            errors.add(number, error)
        else:
            yield request


def _lines(path: Path) -> Iterator[tuple[int, bytes | RequestError]]:
    """Line numbers and lines, or why a line is not read."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # one that is a pipe would be waited for
            raise RequestError(f"{path} is no regular file, and a batch is read twice")
        with path.open("rb") as file:
            number = 0
            while data := file.readline(LONGEST_LINE + 1):
                number += 1
                if len(data) > LONGEST_LINE:
                    while not data.endswith(b"\n") and (data := file.readline(LONGEST_LINE)):
                        pass
                    yield number, RequestError(f"it is longer than {LONGEST_LINE >> 20} MiB")
                    continue
                if number == 1:
                    data = data.removeprefix(b"\xef\xbb\xbf")  # how some editors mark UTF-8
                if data.strip():
                    yield number, data
    except OSError as error:
        raise RequestError(f"{path} cannot be read: {error.strerror}") from error


def _request(index: int, number: int, data: bytes, defaults: Defaults) -> BatchRequest:
    entry = _object(data)
    unknown = sorted(entry.keys() - _FIELDS)
    if unknown:
        raise RequestError(_unknown(unknown[0], entry))
    identity = entry.get("id")
    if "id" in entry and type(identity) not in (str, int):
        raise RequestError(f"id must be a string or a whole number, not {identity!r:.100}")
    prompt = _prompt(entry, defaults)
    changes = {name: entry[name] for name in entry.keys() & SAMPLING_FIELDS}
    sampling = replace(defaults.sampling, **_sampling(changes))
    everything = [
        identity,
        prompt,
        _plain(sampling, defaults.guesses_matter),
        defaults.raw,
        defaults.system,
    ]
    try:
        digest = _hash(everything).hex()
    except UnicodeEncodeError as error:
        half = f"U+{ord(error.object[error.start]):04X}"
        raise RequestError(f"it holds half a surrogate pair ({half}): write the whole") from None
    return BatchRequest(index, number, identity, prompt, sampling, digest)


def _object(data: bytes) -> dict[str, Any]:
    try:
        entry = json.loads(
            data.decode(), object_pairs_hook=_without_repetition, parse_constant=_no_number
        )
    except UnicodeDecodeError as error:
        wrong = f"byte {error.start + 1} of it is 0x{data[error.start]:02X}"
        raise RequestError(f"it is not UTF-8 text: {wrong}; iconv converts files") from None
    except json.JSONDecodeError as error:
        raise RequestError(f"it is not JSON: {error.msg}, at character {error.colno}") from None
    except (ValueError, RecursionError) as error:
        raise RequestError(f"it cannot be read as JSON: {error!s:.100}") from None
    if not isinstance(entry, dict):
        raise RequestError(f'it must be an object like {{"prompt": "..."}}, not {entry!r:.40}')
    return entry


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entry = dict(pairs)
    if len(entry) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise RequestError(f"it has the field {twice!r:.100} twice")
    return entry


def _no_number(text: str) -> Any:
    raise RequestError(f"{text} is no number of JSON")


def _unknown(name: str, entry: dict[str, Any]) -> str:
    if entry.keys() >= {"body"} and entry.keys() <= _OPENAI_FIELDS:
        return (
            "it is a line of OpenAI's batch format, and here the request itself stands in a line; "
            "jq -c '{id: .custom_id} + (.body | del(.model))' rewrites such a file"
        )
    close = get_close_matches(name, _FIELDS, n=1)
    hint = f"did you mean {close[0]}?" if close else "fields are " + ", ".join(sorted(_FIELDS))
    return f"there is no field {name!r:.100}: {hint}"


def _prompt(entry: dict[str, Any], defaults: Defaults) -> str | list[int] | list[dict[str, Any]]:
    if ("prompt" in entry) == ("messages" in entry):
        raise RequestError("it must have either a prompt or messages")
    if "messages" in entry:
        messages = entry["messages"]
        if defaults.raw:
            raise RequestError("it has messages, which need the template that --raw leaves out")
        if defaults.system is not None:
            raise RequestError("it has messages: write what --system says into them, and drop it")
        if not isinstance(messages, list) or not messages or not all(map(_is_object, messages)):
            raise RequestError('messages must be a list of {"role": ..., "content": ...}')
        return messages
    prompt = entry["prompt"]
    if isinstance(prompt, str):
        if not prompt:
            raise RequestError("the prompt is empty")
        return prompt
    if not isinstance(prompt, list) or any(type(token) is not int for token in prompt):
        raise RequestError(f"prompt must be a string or a list of token ids, not {prompt!r:.40}")
    if not prompt:
        raise RequestError("the prompt has no tokens")
    if defaults.system is not None:
        raise RequestError("its prompt is token ids, before which --system cannot stand: drop it")
    return prompt


def _is_object(value: object) -> bool:
    return isinstance(value, dict)


def _sampling(changes: dict[str, Any]) -> dict[str, Any]:
    """The fields as `SamplingParams` has them: `logit_bias` by token ids, lists where they are."""
    for name in ("stop", "stop_token_ids"):
        if isinstance(changes.get(name), dict):
            raise RequestError(f"{name} must be a list, not {changes[name]!r:.100}")
    form = changes.get("constraint")
    if form is not None:
        if not isinstance(form, dict) or form.keys() != {"kind", "source"}:
            raise RequestError(
                'constraint must be {"kind": "json_schema", "regex" or "choice", "source": its '
                f"text}}, not {form!r:.100}"
            )
        changes = {**changes, "constraint": Constraint(**form)}
    biases = changes.get("logit_bias")
    if biases is None:
        return changes
    if not isinstance(biases, dict):
        raise RequestError(f"logit_bias must be an object, not {biases!r:.100}")
    try:
        return {**changes, "logit_bias": {int(token): bias for token, bias in biases.items()}}
    except ValueError:
        raise RequestError("logit_bias must have token ids as its names") from None


def _plain(sampling: SamplingParams, guesses_matter: bool) -> dict[str, Any]:
    """All that an answer depends on."""
    plain = {**asdict(sampling), "logit_bias": sorted(sampling.logit_bias.items())}
    if not guesses_matter or sampling.max_draft_tokens is None:
        del plain["max_draft_tokens"]
    return plain


def _hash(value: object) -> bytes:
    text = json.dumps(value, sort_keys=True, ensure_ascii=False)
    return blake2b(text.encode(), digest_size=_DIGEST_BYTES).digest()
