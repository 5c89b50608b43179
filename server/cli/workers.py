"""Several processes that serve one port, forked by a parent that watches over them and serves nothing (ADR 10).

The parent has no event loop and no thread, so that what it forks is whole. A worker says by a byte in a pipe of its own
that it serves; the end of that pipe is the worker's, however that came. A second pipe ends with the parent, and with it
the workers do.
"""

import asyncio
import contextlib
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from server.cli.outcome import exit_code_of
from server.telemetry import Telemetry

REPLACEMENT_INTERVAL_S = 1.0
"""Between two replacements: a worker that dies as soon as it serves must not keep a core busy with its starts."""

_ENDINGS = (signal.SIGINT, signal.SIGTERM)


class Bond(NamedTuple):
    """What a worker has of its parent: its number, a pipe to tell it something, and one that ends when the parent does.

    The numbers begin at 1; who takes the place of a dead worker has its number.
    """

    number: int
    news: int
    parent: int

    def tell_serving(self) -> None:
        # Without a parent this worker is about to end.
        with contextlib.suppress(BrokenPipeError):
            os.write(self.news, b"s")

    @contextlib.asynccontextmanager
    async def around(self, opened: contextlib.AbstractAsyncContextManager[None]) -> AsyncIterator[None]:
        """What the worker opens; while it lasts, the parent's end is a SIGTERM to the worker."""
        loop = asyncio.get_running_loop()

        def end() -> None:
            loop.remove_reader(self.parent)
            signal.raise_signal(signal.SIGTERM)

        loop.add_reader(self.parent, end)
        try:
            async with opened:
                yield
        finally:
            loop.remove_reader(self.parent)


@dataclass
class _Worker:
    """A worker as its parent sees it. A negative exit code is the signal that ended it."""

    number: int
    pid: int
    news: int
    is_serving: bool = False
    exit_code: int | None = None


class Workers:
    """`count` processes, each of which runs `serve` to its end. `serve` tells its bond when requests are answered."""

    def __init__(self, count: int, serve: Callable[[Bond], int], telemetry: Telemetry) -> None:
        self._count = count
        self._serve = serve
        self._telemetry = telemetry
        self._workers: list[_Worker] = []
        self._selector = selectors.DefaultSelector()
        self._signals, self._signalled = socket.socketpair()
        self._parent_end, self._parent = os.pipe()
        self._is_stopping = False

    def run(self, announce: Callable[[], None]) -> int:
        """Serve until SIGINT or SIGTERM, and then until all workers have ended.

        `announce` is called once all of them serve. The exit code is 0, or that of a worker that could not start.
        """
        with self._signals_heard():
            exit_code = self._start_all()
            if exit_code == 0 and not self._is_stopping:
                announce()
            while exit_code == 0 and not self._is_stopping:
                self._replace_or_wait()
            self._end_all()
        return exit_code

    @contextlib.contextmanager
    def _signals_heard(self) -> Iterator[None]:
        """While this lasts a signal is a byte to be read, at a moment when nothing is half done."""
        for end in (self._signals, self._signalled):
            end.setblocking(False)
        self._selector.register(self._signals, selectors.EVENT_READ)
        before = [signal.signal(number, lambda *_: None) for number in _ENDINGS]
        signal.set_wakeup_fd(self._signalled.fileno())
        try:
            yield
        finally:
            signal.set_wakeup_fd(-1)
            for number, handler in zip(_ENDINGS, before, strict=True):
                signal.signal(number, handler)

    def _start_all(self) -> int:
        """One before the others, so that what keeps all of them from starting is told once."""
        for count in (1, self._count - 1):
            starting = [self._start() for _ in range(count)]
            while not self._is_stopping and not all(worker.is_serving for worker in starting):
                self._wait()
                for worker in starting:
                    if worker.exit_code is not None and not (worker.is_serving or self._is_stopping):
                        return max(worker.exit_code, 1)
        return 0

    def _replace_or_wait(self) -> None:
        if len(self._workers) == self._count:
            self._wait()
        else:
            self._start()
            may_start_at_s = time.monotonic() + REPLACEMENT_INTERVAL_S
            while not self._is_stopping and (left_s := may_start_at_s - time.monotonic()) > 0:
                self._wait(left_s)

    def _end_all(self) -> None:
        self._is_stopping = True
        for worker in self._workers:
            os.kill(worker.pid, signal.SIGTERM)
        while self._workers:
            self._wait()

    def _start(self) -> _Worker:
        news, told = os.pipe()
        number = min(set(range(1, self._count + 1)) - {worker.number for worker in self._workers})
        # A signal between the fork and the worker's first steps waits for these.
        signal.pthread_sigmask(signal.SIG_BLOCK, _ENDINGS)
        pid = os.fork()
        if pid == 0:
            exit_code = 1
            try:
                exit_code = exit_code_of(lambda: self._work(Bond(number, told, self._parent_end)))
                sys.stderr.flush()
            finally:
                # What the parent has opened is not the worker's to close in order.
                os._exit(exit_code)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDINGS)
        os.close(told)
        worker = _Worker(number, pid, news)
        self._workers.append(worker)
        self._selector.register(news, selectors.EVENT_READ, worker)
        return worker

    def _work(self, bond: Bond) -> int:
        """The whole life of a worker."""
        os.close(self._parent)
        self._selector.close()
        signal.set_wakeup_fd(-1)
        # Ctrl-C reaches the group of the parent, which passes it on: twice at once would mean not to wait for turns.
        os.setpgrp()
        for number in _ENDINGS:
            signal.signal(number, signal.default_int_handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDINGS)
        return self._serve(bond)

    def _wait(self, within_s: float | None = None) -> None:
        """Until something happens, and then do what it asks for."""
        for key, _ in self._selector.select(within_s):
            if key.data is None:
                for number in self._signals.recv(64):
                    self._end_by(number)
            else:
                self._hear(key.data)

    def _end_by(self, number: int) -> None:
        if not self._is_stopping:
            self._is_stopping = True
            return
        # A second Ctrl-C means not to wait for turns.
        for worker in self._workers:
            os.kill(worker.pid, number)

    def _hear(self, worker: _Worker) -> None:
        if os.read(worker.news, 1):
            worker.is_serving = True
            self._telemetry.info("worker_serving", worker=worker.pid)
            return
        self._selector.unregister(worker.news)
        os.close(worker.news)
        self._workers.remove(worker)
        _, status = os.waitpid(worker.pid, 0)
        worker.exit_code = os.waitstatus_to_exitcode(status)
        log = self._telemetry.info if self._is_stopping else self._telemetry.error
        log("worker_ended", worker=worker.pid, exit_code=worker.exit_code)
