"""The file form of `farthing run`: every line of a file is answered, many at once.

What is wrong with a line is found before anything is computed. A run that is killed goes on where
it was: see batch_answers.py.
"""

from __future__ import annotations

import json
import math
from contextlib import contextmanager, suppress
from functools import partial
from hashlib import blake2b
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from farthing.cli.batch_answers import Answers
from farthing.cli.batch_report import BatchProgress, Tally
from farthing.cli.batch_requests import BatchRequest, Defaults, LineErrors, read_requests
from farthing.cli.options import load_engine
from farthing.cli.process import interrupts_call, say
from farthing.cli.progress import terminal_progress
from farthing.cli.report import engine_facts, load_lines, usage_facts
from farthing.cli.run import as_asked
from farthing.core import SPECULATION_RULES, FarthingError, RequestError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from farthing.engine.completion import Completion
    from farthing.engine.engine import Engine
    from farthing.engine.prompt_rows import TokenLogprob
    from farthing.engine.stream import Stream

_LOOK_SECONDS = 0.25
"""How long nothing may happen before progress is shown, and Ctrl-C looked for."""


def run_batch(arguments: argparse.Namespace, defaults: Defaults) -> int:
    """Answers the requests of `--file` into `--out`; what `farthing run` does with these flags."""
    batch = _Batch(Path(arguments.file), defaults)
    out = Path(arguments.out)
    batch.refuse_as_answers(out)
    batch.read()
    with Answers(out, batch.digests) as answers:
        tally = Tally(len(batch.digests), answers.kept)
        with (
            _told_how_to_go_on(answers, tally),
            load_engine(
                arguments, slots=arguments.slots, cache_tokens=arguments.cache_tokens
            ) as engine,
        ):
            settings = _settings(engine, arguments)
            if answers.settings not in (None, settings):
                raise RequestError(
                    f"the answers in {out} were made with another model, or other --context, "
                    "--cache-tokens, --kv-dtype, --activations or --speculate-rule, or on another "
                    "kind of processor: give another --out"
                )
            with terminal_progress(quiet=arguments.quiet) as progress:
                progress.phase("check the requests")
                batch.check(engine, answers.done)
            if not (arguments.quiet or arguments.json):
                say("\n".join(load_lines(engine)))
            run = _Run(engine, answers, tally, settings, token_ids=arguments.token_ids)
            with BatchProgress(tally, quiet=arguments.quiet) as bar:
                run.answer(batch.unanswered(answers.done), defaults, bar)
            if arguments.json:
                _print_json(engine, arguments, tally)
            elif not arguments.quiet:
                say(tally.summary())
    run.raise_failures()
    return 0


class _Batch:
    """The file of requests: read once to be checked, and once more to be answered."""

    def __init__(self, path: Path, defaults: Defaults) -> None:
        self.path = path
        self.digests: list[str] = []
        self._defaults = defaults

    def refuse_as_answers(self, out: Path) -> None:
        """Raises `RequestError` where the answers would go to the requests' own file."""
        with suppress(OSError):  # of one that is not there, or not to be seen
            if out.samefile(self.path):
                raise RequestError(f"--out is the file of the requests, {self.path}: give another")

    def read(self) -> None:
        """Takes in the digest of every request; raises `RequestError` unless every line is one."""
        errors = LineErrors()
        self.digests = [each.digest for each in read_requests(self.path, self._defaults, errors)]
        self._raise(errors)
        if not self.digests:
            raise RequestError(f'{self.path} has no requests: a line is like {{"prompt": "..."}}')

    def unanswered(self, done: Sequence[int]) -> Iterator[BatchRequest]:
        """The requests that have no answer; raises `RequestError` where the file has changed."""
        changed = RequestError(f"{self.path} was changed meanwhile: run the same command again")
        errors = LineErrors()
        count = 0
        for count, request in enumerate(read_requests(self.path, self._defaults, errors), 1):
            if errors.count or self.digests[request.index : count] != [request.digest]:
                raise changed
            if not done[request.index]:
                yield request
        if errors.count or count != len(self.digests):
            raise changed

    def check(self, engine: Engine, done: Sequence[int]) -> None:
        """Raises `RequestError` unless the model can serve every request that has no answer."""
        errors = LineErrors()
        for request in self.unanswered(done):
            try:
                engine.check(_prompt(engine, request, self._defaults), request.sampling)
            except RequestError as error:
                errors.add(request.line, error)
        self._raise(errors)

    def _raise(self, errors: LineErrors) -> None:
        if errors.count:
            lines = "a bad line" if errors.count == 1 else f"{errors.count:,} bad lines"
            raise RequestError(f"{self.path} has {lines}, so nothing is answered now:{errors}")


class _Run:
    """Answers requests, as many at once as the engine has slots and as many again in line."""

    def __init__(
        self, engine: Engine, answers: Answers, tally: Tally, settings: str, *, token_ids: bool
    ) -> None:
        self._engine = engine
        self._answers = answers
        self._tally = tally
        self._settings = settings
        self._token_ids = token_ids
        self._most = 2 * engine.slots
        self._failures = LineErrors()
        self._interrupted = False

    def answer(
        self, requests: Iterator[BatchRequest], defaults: Defaults, progress: BatchProgress
    ) -> None:
        """Writes each answer when it has ended. Ctrl-C raises `KeyboardInterrupt` between two."""
        self._tally.start()
        ended: SimpleQueue[int] = SimpleQueue()
        streams: dict[int, tuple[BatchRequest, Stream]] = {}
        with interrupts_call(self._interrupt):
            try:
                while not self._interrupted:
                    while len(streams) < self._most and (request := next(requests, None)):
                        prompt = _prompt(self._engine, request, defaults)
                        stream = self._engine.stream(prompt, request.sampling)
                        streams[request.index] = request, stream
                        tell = partial(ended.put, request.index)
                        if not stream.arm(tell, patient=True):
                            tell()
                    self._tally.see(self._engine.stats().counters)
                    progress.update()
                    if not streams:
                        break
                    try:
                        index = ended.get(timeout=_LOOK_SECONDS)
                    except Empty:
                        continue
                    self._take(*streams.pop(index))
            finally:
                for _, stream in streams.values():
                    stream.close()
                self._tally.stop()
        if self._interrupted:
            raise KeyboardInterrupt

    def raise_failures(self) -> None:
        """Raises `FarthingError` when a request has failed in the engine."""
        if self._failures.count:
            raise FarthingError(
                f"{self._failures.count:,} requests have failed and are not answered; the same "
                f"command tries them again (--slots 1: one by one):{self._failures}"
            )

    def _interrupt(self) -> None:
        if self._interrupted:
            raise KeyboardInterrupt
        self._interrupted = True

    def _take(self, request: BatchRequest, stream: Stream) -> None:
        try:
            completion = stream.result()
        except FarthingError as error:
            self._failures.add(request.line, error)
            self._tally.failed += 1
            return
        self._answers.write(_answer(request, completion, self._settings, self._token_ids))
        self._tally.add(completion)


def _prompt(engine: Engine, request: BatchRequest, defaults: Defaults) -> Any:
    """What the engine is given: a string is what `farthing run` makes of its PROMPT."""
    if isinstance(request.prompt, str):
        return as_asked(engine, request.prompt, defaults.system, raw=defaults.raw)
    return request.prompt


def _answer(
    request: BatchRequest, completion: Completion, settings: str, token_ids: bool
) -> dict[str, Any]:
    """An answer as its line has it."""
    answer: dict[str, Any] = {"index": request.index}
    if request.id is not None:
        answer["id"] = request.id
    answer["text"] = completion.text
    answer["finish_reason"] = completion.finish_reason
    answer["usage"] = usage_facts(completion.usage)
    answer["seed"] = completion.seed
    if token_ids:
        answer["token_ids"] = completion.token_ids
    if completion.logprobs is not None:
        answer["logprobs"] = [_scored(each) for each in completion.logprobs]
    if completion.prompt_logprobs is not None:
        answer["prompt_logprobs"] = [each and _scored(each) for each in completion.prompt_logprobs]
    answer["request"] = request.digest
    answer["settings"] = settings
    return answer


def _scored(entry: TokenLogprob) -> dict[str, Any]:
    return {
        "token_id": entry.token_id,
        "logprob": _finite(entry.logprob),
        "top": [[token, _finite(logprob)] for token, logprob in entry.top],
    }


def _finite(number: float) -> float | None:
    """JSON has no infinity."""
    return number if math.isfinite(number) else None


def _settings(engine: Engine, arguments: argparse.Namespace) -> str:
    """A digest of all but the request that an answer depends on."""
    template = engine.chat_template
    guessing = {"speculate": arguments.speculate, "lookup_traffic": arguments.lookup_traffic}
    everything = {
        **engine.identity,
        "most_tokens": engine.most_tokens,
        "chat_template": None if template is None else template.source,
        **({} if arguments.speculate_rule == SPECULATION_RULES[0] else guessing),
    }
    text = json.dumps(everything, sort_keys=True)
    return blake2b(text.encode(), digest_size=16).hexdigest()


@contextmanager
def _told_how_to_go_on(answers: Answers, tally: Tally) -> Iterator[None]:
    """Where the block ends early, however that is: says what is kept, and how to get the rest."""
    try:
        yield
    except BaseException:
        if answers.written:
            say(
                f"{tally.kept + tally.answered:,} of {tally.total:,} are answered in "
                f"{answers.path}; the same command goes on from there"
            )
        raise


def _print_json(engine: Engine, arguments: argparse.Namespace, tally: Tally) -> None:
    everything = {
        **engine_facts(engine),
        "seed": arguments.seed,
        "file": arguments.file,
        "out": arguments.out,
        **tally.facts(),
    }
    print(json.dumps(everything, indent=2))
