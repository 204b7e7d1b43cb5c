"""A server as a process: the socket first, then the model; and an orderly end.

The socket is bound before anything else, and /health answers with the phase while the model is
loaded in a thread. SIGTERM or SIGINT stops admission; what runs has its time to finish; then the
cache of prompts and the usage are saved. A second signal ends the process at once.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import threading
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from farthing.core import FarthingError
from farthing.serve.listen import bind
from farthing.serve.log import RequestLog, logging_to, tell
from farthing.serve.places import file_at
from farthing.serve.urgency import ask_for_short_slices

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterable, Iterator
    from types import FrameType

    from farthing.engine.engine import Engine
    from farthing.serve.keys import KeyRing
    from farthing.serve.loading import ModelOptions
    from farthing.serve.settings import Settings
    from farthing.serve.usage import Usage

_LAST_WORDS_SECONDS = 2
"""After an answer was cut off, the time its client has to take the end of it."""

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def serve(settings: Settings, options: ModelOptions, warnings: Iterable[str] = ()) -> int:
    """Serves until a signal ends it, and returns the exit code. The log begins with `warnings`.

    0 after an orderly end, whatever was cut off by it; a load that fails ends with the error's own.
    Raises `FarthingError` where the socket cannot be bound, and as `refuse_early` does.
    """
    from farthing.serve.usage import open_usage

    started = perf_counter()
    with logging_to(None, settings.log_format), ExitStack() as stack:
        for warning in warnings:
            tell("configuration", warning, level=logging.WARNING)
        keys = refuse_early(settings)
        listener = stack.enter_context(bind(settings.host, settings.port))
        usage = open_usage(settings, _id_of(settings, options))
        if usage is not None:
            stack.callback(usage.close)
        process = _Process(settings, options, keys, usage, listener, started)
        # The imports below take as long as a load: it runs beside them.
        process.start_loading()
        exit_code = process.run()
    if process.loads:
        # It cannot be stopped, and the interpreter must not take itself apart under it.
        os._exit(exit_code)
    return exit_code


def refuse_early(settings: Settings) -> KeyRing:
    """The keys of a server with these settings.

    Raises `RequestError` for what would only be noticed later: a key that is not as it should be,
    other machines that need none, a place where nothing can be saved.
    """
    from farthing.serve.keys import load_keys
    from farthing.serve.places import refuse_places

    keys = load_keys(settings)
    refuse_places(settings)
    return keys


def _id_of(settings: Settings, options: ModelOptions) -> str:
    """What the model is called in the API: as the settings say, else as it was asked for."""
    if settings.model_name is not None:
        return settings.model_name
    path = Path(options.model)
    return path.resolve().name.removesuffix(".gguf") if path.exists() else options.model


class _Process:
    """One server from start to end. Signals and the loading thread change it; the loop reads it."""

    def __init__(
        self,
        settings: Settings,
        options: ModelOptions,
        keys: KeyRing,
        usage: Usage | None,
        listener: socket.socket,
        started: float,
    ) -> None:
        from farthing.serve.state import ServerState

        self._settings = settings
        self._options = options
        self._listener = listener
        # The load may end when the socket is closed already.
        self._address = listener.getsockname()[:2]
        self._started = started
        self._keys = keys
        self._state = ServerState(
            settings,
            keys=keys,
            usage=usage,
            log=RequestLog(self._word if settings.log_misses else None),
        )
        self._thread = threading.Thread(target=self._load, name="farthing-load", daemon=True)
        store = settings.prefix_store
        self._store = None if store is None else file_at("prefix_store", store)
        self._usage = usage
        self._signals = 0
        self._exit_code = 0
        self._stopping = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def start_loading(self) -> None:
        """Begins to load the model in a thread of its own."""
        self._thread.start()

    def run(self) -> int:
        """Serves, ends, and returns the exit code."""
        with _signals_to(self._signalled):
            asyncio.run(self._serve())
        gc.unfreeze()  # what `_settle_down` spared is taken apart at the end like everything
        return self._exit_code

    @property
    def loads(self) -> bool:
        """Whether the model is still being loaded."""
        return self._thread.is_alive()

    def _load(self) -> None:
        """What the thread does."""
        state = self._state
        try:
            self._load_into_state()
        except FarthingError as error:
            state.loading.failure = str(error)
            self._exit_code = error.exit_code
            tell("load_failed", str(error), level=logging.ERROR)
            self._stop()
        except BaseException as error:
            state.loading.failure = f"{type(error).__name__}: {error}"
            self._exit_code = 1
            logging.getLogger("farthing.serve").exception("the load failed by a fault of farthing")
            self._stop()
        else:
            from farthing.serve.receipts import show_receipt

            _settle_down()
            # Reading all weights once more takes longer than a start may.
            show_receipt(state)

    def _load_into_state(self) -> None:
        from farthing.serve.admission import Admission, objective_of
        from farthing.serve.loading import load_engine
        from farthing.serve.metrics import Metrics
        from farthing.serve.state import card_of
        from farthing.serve.structured import Forms
        from farthing.serve.tools import ModelTools

        state, settings = self._state, self._settings
        objective = objective_of(settings)
        engine = load_engine(
            self._options,
            state.loading,
            latency_target=objective.latency_target,
            weights=self._keys.weights,
        )
        self._restore(engine)
        state.admission = Admission(engine, self._keys.keys, objective, settings.queue_tokens)
        state.structured = Forms(engine.prepare)
        state.tools = ModelTools(lambda: engine.chat_template, engine.prepare)
        state.metrics = Metrics()
        state.serve(engine, card_of(engine, _id_of(settings, self._options)))
        host, port = self._address
        url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        seconds = perf_counter() - self._started
        tell("ready", f"ready on {url} after {seconds:.2f} s", url=url, seconds=seconds)

    def _restore(self, engine: Engine) -> None:
        store = self._store
        if store is None:
            return
        self._state.loading.phase = "restoring the cache of prompts"
        if not store.exists():
            tell("restored", f"{store} is not there yet: the cache begins empty", blocks=0)
            return
        restored = engine.restore_cache(store)
        tell("restored", str(restored), blocks=restored.blocks, refused=restored.refused)

    async def _serve(self) -> None:
        import uvicorn

        from farthing.serve.app import build_app
        from farthing.serve.connection import server_config

        class Server(uvicorn.Server):
            @contextmanager
            def capture_signals(self) -> Iterator[None]:
                yield  # they are handled here, in order

        self._loop = asyncio.get_running_loop()
        # Once the load has its thread: who computes wants long slices.
        ask_for_short_slices()
        state = self._state
        server = Server(
            server_config(
                build_app(state), self._settings, timeout_graceful_shutdown=_LAST_WORDS_SECONDS
            )
        )
        serving = asyncio.create_task(server.serve([self._listener]))
        stopping = asyncio.create_task(self._stopping.wait())
        await asyncio.wait((serving, stopping), return_when=asyncio.FIRST_COMPLETED)
        if not serving.done():
            state.draining = True
            await self._drain(set(server.server_state.tasks))
            server.should_exit = True
        await serving

    async def _drain(self, requests: set[asyncio.Task[None]]) -> None:
        """Lets requests finish, for as long as they have; then saves what is to be kept."""
        engine = self._state.engine
        if engine is None:
            return
        seconds = self._settings.drain_seconds
        tell(
            "draining",
            f"stopping: {len(requests)} requests have {seconds:g} s to finish; a second signal "
            "ends at once",
            requests=len(requests),
            seconds=seconds,
        )
        pending = await _finished(requests, seconds)
        if pending:
            tell(
                "cut_off",
                f"{len(pending)} requests are cut off after {seconds:g} s",
                level=logging.WARNING,
                requests=len(pending),
            )
        await asyncio.to_thread(self._save, engine)
        await asyncio.to_thread(engine.close)
        await _finished(pending, _LAST_WORDS_SECONDS)
        if self._usage is not None:
            await asyncio.to_thread(self._usage.close)
        tell("stopped", "stopped")

    def _save(self, engine: Engine) -> None:
        store = self._store
        if store is None:
            return
        try:
            saved = engine.save_cache(store, self._settings.prefix_store_bytes)
        except FarthingError as error:
            tell("not_saved", f"the cache is not saved: {error}", level=logging.ERROR)
        else:
            tell("saved", str(saved), blocks=saved.blocks, bytes=saved.bytes)

    def _word(self, token: int) -> str:
        engine = self._state.engine
        if engine is None:
            raise RuntimeError("a request ended before there was an engine")
        return engine.tokenizer.decode([token], skip_special_tokens=False, continuation=True)

    def _signalled(self, number: int) -> None:
        self._signals += 1
        if self._signals > 1:
            os._exit(128 + number)
        self._stop()

    def _stop(self) -> None:
        """Begins the end; any thread may call it, at any time."""
        loop = self._loop
        if loop is None:
            self._stopping.set()
        else:
            loop.call_soon_threadsafe(self._stopping.set)


def _settle_down() -> None:
    """Does at leisure, when the server is ready, what would else hold up the first requests.

    What the first scrape and the first chat import is imported. What has been made by now stays,
    and is spared the collections of garbage: one that looked at all of it would hold up everybody
    for some 40 ms.
    """
    import farthing.serve.exposition
    import farthing.text.sandbox  # noqa: F401

    gc.freeze()


async def _finished(requests: set[asyncio.Task[None]], seconds: float) -> set[asyncio.Task[None]]:
    """Waits until all have finished, or so long; returns those that have not."""
    if not requests:
        return requests
    return (await asyncio.wait(requests, timeout=seconds))[1]


@contextmanager
def _signals_to(handler: Callable[[int], None]) -> Iterator[None]:
    """While the block runs, `handler` is called with each signal that ends a server.

    One that the caller has set to be ignored (nohup does, and so does a shell's &) stays so.
    """

    def handle(number: int, _frame: FrameType | None) -> None:
        handler(number)

    before = {number: signal.getsignal(number) for number in _SIGNALS}
    heard = [number for number, handling in before.items() if handling is not signal.SIG_IGN]
    for number in heard:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number in heard:
            signal.signal(number, before[number])
