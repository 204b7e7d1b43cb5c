"""Every option of the server, with its default.

The command line makes a flag of each field, in its group, and the field's `help` is the flag's. Who
adds a field adds the flag, the key in `farthing.toml` and the environment variable with it.
"""

from __future__ import annotations

import math
import re
from dataclasses import Field, dataclass, field, fields
from typing import Any

from farthing.core import RequestError

_MIB = 1 << 20
USUAL_USAGE_STORE = "~/.local/state/farthing/usage.sqlite"
"""Where usage is kept unless somebody says where: a machine that cannot is served without."""

_MOST_SECONDS = 86_400
"""A day: the clocks of the system take no number of seconds whatever."""


def option(default: Any, help: str, group: str, **more: Any) -> Any:  # noqa: A002
    """A field of `Settings`. `least` and `most` bound a number, `choices` lists a text's values,
    or it matches a `pattern`, which `wanted` says in words.

    `metavar` stands for the value in the help; a `secret` is masked where settings are shown. Where
    `off`, the word stands for None, so that a flag can take back what a file says.
    """
    return field(default=default, metadata={"help": help, "group": group, **more})


@dataclass(frozen=True)
class Settings:
    """What the server was told. Seconds and bytes are in the names where a number has a unit.

    Raises `RequestError` for a number out of its bounds.
    """

    host: str = option("127.0.0.1", "the address to listen on", "network", metavar="ADDRESS")
    port: int = option(8000, "the port to listen on; 0 takes a free one", "network", most=65535)
    connections: int = option(1024, "the most connections at once", "network", least=1)
    cors_origins: tuple[str, ...] = option(
        (),
        "a web origin whose pages may call the API",
        "network",
        metavar="ORIGIN",
        pattern=r"\*|null|[a-z][a-z0-9+.-]*://[^/?#@\s]+",
        wanted="an origin such as https://example.org, without a path, or * for all",
    )
    model_name: str | None = option(
        None,
        "the model's id in the API, instead of MODEL or its file's name",
        "network",
        metavar="NAME",
    )

    request_bytes: int = option(
        4 * _MIB, "the longest body of a request that is read", "limits of a request", least=1
    )
    request_values: int = option(
        50_000,
        "the most texts (names of fields included), lists and objects in the body of a request: "
        "reading millions would keep everybody waiting",
        "limits of a request",
        least=1,
    )
    reading_bytes: int = option(
        64 * _MIB,
        "the most of unfinished bodies that is held at once",
        "limits of a request",
        least=1,
    )
    request_seconds: float = option(
        600.0, "the longest that an answer may take, waiting included", "limits of a request"
    )
    most_choices: int = option(16, "the largest n of a request", "limits of a request", least=1)
    most_prompts: int = option(
        256, "the most prompts in one request", "limits of a request", least=1
    )
    most_inputs: int = option(
        2048, "the most texts in one request for embeddings", "limits of a request", least=1
    )
    most_answers: int = option(
        512, "the most answers to one request: prompts x n", "limits of a request", least=1
    )
    most_messages: int = option(4096, "the most messages in a chat", "limits of a request", least=1)
    most_stops: int = option(16, "the most stop strings of a request", "limits of a request")
    stop_characters: int = option(1000, "the longest stop string", "limits of a request", least=1)
    most_biases: int = option(1024, "the most entries of logit_bias", "limits of a request")

    reasoning_format: str = option(
        "auto",
        "what a model writes between the reasoning tags of its chat template becomes "
        "reasoning_content (auto), or stays in the text (none)",
        "answers",
        choices=("auto", "none"),
    )

    head_seconds: float = option(
        10.0, "the time in which the head of a request must arrive", "slow clients"
    )
    body_seconds: float = option(
        30.0, "the time in which the body of a request must arrive", "slow clients"
    )
    stalled_seconds: float = option(
        30.0, "a client that takes nothing for so long is disconnected", "slow clients"
    )
    ping_seconds: float = option(15.0, "a silent stream gets a comment this often", "slow clients")

    prefix_store: str | None = option(
        None,
        "save the cache of prompts in this file when the server stops, and restore it when it "
        "starts; only its owner can read it: it holds the token ids of prompts and answers",
        "what is kept",
        metavar="FILE",
        off=True,
    )
    prefix_store_bytes: int = option(
        1 << 30, "the largest that this file may become", "what is kept", least=1
    )

    log_format: str = option(
        "human",
        "lines for people, or one JSON object a line for programs",
        "log",
        choices=("human", "json"),
    )
    log_misses: bool = option(
        False,
        "tell in the log why a prompt was not found in the cache; this quotes the requester's text",
        "log",
    )

    api_key: str | None = option(
        None,
        "the one key that every request must bring; several, with limits, go into keys_file",
        "keys",
        metavar="KEY",
        secret=True,
        off=True,
    )
    keys_file: str | None = option(
        None,
        "a TOML file of keys: a table for each, by name, with its secret and limits",
        "keys",
        metavar="FILE",
        off=True,
    )
    open_metrics: bool = option(False, "let anybody read /metrics without a key", "keys")

    slo: str = option(
        "patient",
        "how long a newcomer may wait and a token may take, by name: MLPerf's server (2 s and "
        "100 ms) and interactive (500 ms and 30 ms), patient (30 s and 100 ms)",
        "admission",
        choices=("patient", "server", "interactive"),
    )
    most_wait_seconds: float | None = option(
        None,
        "refuse whoever would wait longer than this, instead of what slo says",
        "admission",
        off=True,
    )
    step_seconds: float | None = option(
        None,
        "prompts join a step in which others write as far as it takes no longer than this, instead "
        "of what slo says; farthing tune finds it",
        "admission",
        off=True,
    )
    queue_tokens: int = option(
        1 << 18, "the most tokens of prompts that wait at once", "admission", least=1
    )

    usage_store: str | None = option(
        USUAL_USAGE_STORE,
        "count tokens, seconds and money by day, key and model in this file; no text is in it; "
        "where the usual one cannot be written, they are kept in memory",
        "what is kept",
        metavar="FILE",
        off=True,
    )
    usage_flush_seconds: float = option(
        2.0, "usage is on disk this much later at most", "what is kept"
    )
    usage_days: int = option(
        400, "usage is kept for so many days", "what is kept", least=1, most=36_500
    )
    usage_bytes: int = option(
        64 * _MIB,
        "the largest that the file of usage may become; the oldest days go first",
        "what is kept",
        least=1 << 18,
    )
    price_per_hour: float = option(
        0.0, "what an hour of this machine costs; usage is priced by it", "what is kept"
    )
    currency: str = option("USD", "in which currency that is", "what is kept", metavar="CODE")

    drain_seconds: float = option(
        30.0, "the time that running requests have to finish after SIGTERM", "stopping", least=0.0
    )

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            for one in value if isinstance(value, tuple) else (value,):
                if wrong := fault(each, one):
                    raise RequestError(f"{each.name} {wrong}")


def raised_by(name: str) -> str:
    """Who may raise a limit, and how: for the messages of those who meet it."""
    return f"whoever runs the server can allow more with --{name.replace('_', '-')}"


def fault(setting: Field[Any], value: object) -> str | None:
    """What is wrong with a value that its field does not take; None where nothing is.

    A number of seconds must be above 0 unless told otherwise, any other at least 0; a text must not
    be empty, nor hold control characters, and match the field's `pattern` where it has one.
    """
    if setting.metadata.get("secret"):
        return None  # whoever reads it checks it, and quotes nothing
    if isinstance(value, str):
        if not value.strip() or not value.isprintable():
            return f"must be a text of printable characters, not {value!r:.60}"
        pattern = setting.metadata.get("pattern")
        if pattern is not None and not re.fullmatch(pattern, value):
            return f"must be {setting.metadata['wanted']}, not {value!r:.100}"
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    seconds = setting.name.endswith("_seconds")
    least = setting.metadata.get("least")
    most = setting.metadata.get("most", _MOST_SECONDS if seconds else math.inf)
    if least is None and seconds:
        if 0 < value <= most:
            return None
        return f"must be above 0 and at most {most}, not {value}"
    least = least or 0
    if least <= value <= most and value < math.inf:
        return None
    bounds = f"at least {least}" if most == math.inf else f"from {least} to {most}"
    return f"must be {bounds}, not {value}"
