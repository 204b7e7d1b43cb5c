"""What was measured of a model on a machine, stored for whoever predicts: plan, admission, tune.

A profile is a JSON file of its own, found by all that a step's time depends on: processor,
instruction set, kernels, threads; the model's operations and formats; kinds of cache and of
activations. Times do not depend on what weights are, so models that differ in nothing else share
one. A file of another version, or that is damaged or says another key than the one asked for, is
refused with the reason, and the next measurement writes it anew.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farthing.core import ActivationMode, FileFormatError
from farthing.files.cache import models_folder
from farthing.files.json_files import read_json_object
from farthing.files.replacing import replacing

if TYPE_CHECKING:
    from farthing.models.load import Model
    from farthing.plan.memory import MemoryPlan

VERSION = 1
_MOST_POINTS = 10_000
_MOST_COUNT = 1 << 31
_MOST_LOOKED_AT = 256


@dataclass(frozen=True)
class Ceilings:
    """What a machine does at most: bytes read in a second, and multiply-accumulates by mode."""

    bytes_per_second: float
    products_per_second: Mapping[ActivationMode, float]


@dataclass(frozen=True)
class ProfileKey:
    """All that a step's time depends on. `model` is `model_digest`'s."""

    cpu: str
    isa: str
    kernels: str
    threads: int
    model: str
    formats: str
    kv_dtype: str
    activations: str

    @property
    def file_name(self) -> str:
        """Names the profile's file."""
        text = json.dumps(asdict(self), sort_keys=True)
        return f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.json"


@dataclass(frozen=True)
class ProfilePoint:
    """`sequences` texts, each fed `tokens` tokens from position `first` on: seconds of all of it.

    The median over repetitions, the fastest and the slowest. What is more than a step holds was
    fed in steps of the profile's `step_tokens`.
    """

    sequences: int
    first: int
    tokens: int
    seconds: float
    least: float
    most: float

    @property
    def place(self) -> tuple[int, int, int]:
        """What was measured."""
        return self.sequences, self.first, self.tokens


@dataclass(frozen=True)
class ServerWork:
    """Seconds of a processor that a server takes beside its engine's steps.

    For each `request`, each token of its prompt, and each token that is streamed to a client.
    """

    request: float = 0.0
    prompt_token: float = 0.0
    token: float = 0.0

    def before(self, prompt: int) -> float:
        """From a request's first byte until the engine has it, a prompt of so many tokens."""
        return self.request + self.prompt_token * prompt


@dataclass(frozen=True)
class Profile:
    """`measured` says when, in ISO 8601; `server` is None where nobody measured that."""

    key: ProfileKey
    ceilings: Ceilings
    step_tokens: int
    points: tuple[ProfilePoint, ...]
    measured: str
    server: ServerWork | None = None


def model_digest(model: Model) -> str:
    """Of the operations, their shapes and the formats of weights; reads no weight."""
    program = model.program
    ops = [(op.kind, op.inputs, op.weights, op.output, dict(op.attributes)) for op in program.ops]
    weights = [
        (name, weight.shape, model.formats[name]) for name, weight in program.weights.items()
    ]
    return hashlib.sha256(repr((ops, weights, program.cache)).encode()).hexdigest()


def profile_key(model: Model, plan: MemoryPlan, *, cpu: str, isa: str, kernels: str) -> ProfileKey:
    """The key of a model that runs as `plan` says."""
    formats = {
        f"{place.stored} as {place.packed.name}" for place in plan.weights.values() if place.packed
    }
    return ProfileKey(
        cpu=cpu,
        isa=isa,
        kernels=kernels,
        threads=plan.threads,
        model=model_digest(model),
        formats=", ".join(sorted(formats)),
        kv_dtype=plan.kv_dtype.value,
        activations="default" if plan.activations is None else plan.activations.value,
    )


def profiles_folder() -> Path:
    """Beside the fetched models."""
    return models_folder().parent / "profiles"


def store_profile(profile: Profile) -> Path:
    """Writes the profile; what a stored one of the same key has besides is kept.

    Raises `FarthingError` where the folder cannot be written to.
    """
    known, _ = find_profile(profile.key)
    if known is not None and known.step_tokens == profile.step_tokens:
        points = {each.place: each for each in (*known.points, *profile.points)}
        server = profile.server or known.server
        profile = replace(profile, points=tuple(points.values()), server=server)
    path = profiles_folder() / profile.key.file_name
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileFormatError(
            f"{path.parent} cannot be made ({error.strerror}): set FARTHING_CACHE to another folder"
        ) from None
    content = {"version": VERSION, **asdict(profile)}
    with replacing(path) as file:
        file.write(json.dumps(content, indent=1).encode())
    return path


def find_profile(key: ProfileKey) -> tuple[Profile | None, str]:
    """The stored profile, or None; and why there is none, in words."""
    path = profiles_folder() / key.file_name
    if not path.exists():
        return None, f"{_nearest(key)}: farthing bench measures one"
    try:
        profile = read_profile(path)
    except FileFormatError as error:
        return None, f"its stored profile is refused ({error}): farthing bench measures it again"
    if profile.key != key:
        why = f"{path} was measured with {'; '.join(_apart(profile.key, key))}"
        return None, f"its stored profile is refused ({why}): farthing bench measures it again"
    return profile, ""


def _apart(has: ProfileKey, wanted: ProfileKey) -> list[str]:
    """What a profile was measured with instead."""
    ours = asdict(wanted)
    return [f"{n} {value}, not {ours[n]}" for n, value in asdict(has).items() if value != ours[n]]


def _nearest(key: ProfileKey) -> str:
    """Why there is none: what a stored profile of the same model was measured with instead."""
    others: list[tuple[int, str, str]] = []
    paths = sorted(profiles_folder().glob("*.json"))[:_MOST_LOOKED_AT]
    for path in paths:
        try:
            other = read_profile(path)
        except FileFormatError:
            continue  # one of another model, as far as anybody knows
        if other.key.model == key.model and other.key.file_name == path.name:
            apart = _apart(other.key, key)
            others.append((len(apart), other.measured, "; ".join(apart)))
    if not others:
        return "no profile of it is stored"
    least = min(apart for apart, _, _ in others)
    _, measured, how = max(each for each in others if each[0] == least)
    return f"its profile of {measured} does not apply (measured with {how})"


def read_profile(path: Path) -> Profile:
    """Reads a profile. Raises `FileFormatError` for anything that is not a sound one."""
    content = read_json_object(path, advice="")
    version = content.pop("version", None)
    if version != VERSION:
        raise FileFormatError(f"{path} is of version {version!r:.20}, and {VERSION} is read here")
    try:
        return _profile(content)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FileFormatError(
            f"{path} is damaged ({type(error).__name__}: {error!s:.80})"
        ) from None


def _profile(content: dict[str, Any]) -> Profile:
    key = ProfileKey(**content.pop("key"))
    for name, value in asdict(key).items():
        if type(value) is not (int if name == "threads" else str):
            raise ValueError(f"key.{name} is {value!r:.20}")
    ceilings = content.pop("ceilings")
    points = content.pop("points")
    server = content.pop("server", None)  # which older ones have not
    if not isinstance(points, list) or len(points) > _MOST_POINTS:
        raise ValueError("points are no list, or too many")
    profile = Profile(
        key=key,
        ceilings=Ceilings(
            _seconds(ceilings.pop("bytes_per_second")),
            {
                ActivationMode(mode): _seconds(rate)
                for mode, rate in ceilings.pop("products_per_second").items()
            },
        ),
        points=tuple(_point(each) for each in points),
        step_tokens=_count(content.pop("step_tokens"), 1),
        measured=str(content.pop("measured")),
        server=None if server is None else _server(server),
    )
    if content or ceilings or set(profile.ceilings.products_per_second) != set(ActivationMode):
        raise ValueError("it has other fields than a profile")
    return profile


def _point(content: dict[str, Any]) -> ProfilePoint:
    point = ProfilePoint(**content)
    _count(point.sequences, 1)
    _count(point.first, 0)
    _count(point.tokens, 1)
    if not _seconds(point.least) <= _seconds(point.seconds) <= _seconds(point.most):
        raise ValueError("seconds are out of order")
    return point


def _server(content: dict[str, Any]) -> ServerWork:
    work = ServerWork(**content)
    for value in asdict(work).values():
        if value != 0:
            _seconds(value)
    return work


def _count(value: object, least: int) -> int:
    if type(value) is not int or not least <= value <= _MOST_COUNT:
        raise ValueError(f"{value!r:.20} is no count")
    return value


def _seconds(value: object) -> float:
    """A number above 0."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{value!r:.20} is no number")
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{value!r:.20} is not above 0")
    return float(value)
