"""A turn in flight: a task of its own makes it, a client follows what it gives, and either may end first.

What lives here moves bytes and knows nothing of what they say.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from types import TracebackType
from typing import Any, Self

from server.errors import ApiError


class Run:
    """What one turn gives, for the one client that waits for it.

    The task that makes the turn never waits for the client: what the client has not read yet is kept, and a client that
    leaves more than `stream_bytes_max` of a stream unread is let go of, which `on_let_go` is told. `on_leave` is told
    when the client is gone before the end, for whatever reason, and nobody else has joined. Who reads may say how to
    send by `send_by`; what then comes while all before it is sent, is sent by who makes it. `asked_at_s`, by the loop's
    clock, is when its request came; `first_event_s` is how long it took from there to the first bytes.
    """

    def __init__(
        self,
        *,
        is_stream: bool,
        on_leave: Callable[["Run"], None],
        stream_bytes_max: int,
        asked_at_s: float | None = None,
    ) -> None:
        self.is_stream = is_stream
        self.has_begun = False
        self.last_sent_at_s = 0.0
        self._loop = asyncio.get_running_loop()
        self._asked_at_s = self._loop.time() if asked_at_s is None else asked_at_s
        self.first_event_s: float | None = None
        self._on_leave = on_leave
        self._stream_bytes_max = stream_bytes_max
        self._unread: deque[bytes] = deque()
        self._unread_bytes = 0
        self.is_followed = True
        self.on_let_go: Callable[[], None] = lambda: None
        self._has_ended = False
        self._error: ApiError | None = None
        self._news = asyncio.Event()
        self._is_awaited = False
        self.send_by: Callable[[bytes], Awaitable[None] | None] | None = None
        self._sending: Awaitable[None] | None = None
        self._end = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._cancelling: asyncio.TimerHandle | None = None
        self._limiting: asyncio.TimerHandle | None = None
        self.is_out_of_time = False
        self._is_closing = False
        self._is_cancelled = False
        self.reason_to_fail: ApiError | None = None
        self._kept: list[bytes] | None = None
        self._kept_bytes = 0
        self._joined: list[Run] = []

    @property
    def age_s(self) -> float:
        """How long ago it was asked for, by the loop's clock."""
        return self._loop.time() - self._asked_at_s

    def start(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Make the turn in a task, which the caller must hold."""
        self._task = self._loop.create_task(work)
        return self._task

    def cancel(self, reason: ApiError | None = None) -> None:
        """Stop making the turn, unless it is being closed: what an upstream has finished is stored as it is.

        With a reason the turn has failed, without one its client has left it.
        """
        self._is_cancelled = True
        self.reason_to_fail = reason
        # Behind its first step: a task that is cancelled before never takes it, and would leave everything undone.
        self._loop.call_soon(self._cancel_now)

    def _cancel_now(self) -> None:
        if self._task is not None and not self._is_closing:
            self._task.cancel()

    def cancel_after(self, delay_s: float) -> None:
        self._cancelling = self._loop.call_later(delay_s, self.cancel)

    def limit(self, duration_s: float) -> None:
        """Cancel it when it takes longer than this, whoever follows it."""
        self._limiting = self._loop.call_later(duration_s, self._run_out_of_time)

    def _run_out_of_time(self) -> None:
        self.is_out_of_time = True
        self.cancel()

    def close(self) -> None:
        """The turn is made, or refused, and is about to be stored or let go: from here on it can't be cancelled."""
        self._is_closing = True

    def send(self, chunk: bytes) -> None:
        """Hand bytes to the client, if it is still there."""
        if not chunk:
            return
        self.last_sent_at_s = self._loop.time()
        if not self.has_begun:
            self.has_begun = True
            self.first_event_s = self.last_sent_at_s - self._asked_at_s
        if self._kept is not None:
            self._keep(chunk)
        if self._joined:
            for other in tuple(self._joined):
                other.send(chunk)
        if self.is_followed:
            self._hand_over(chunk)

    def _hand_over(self, chunk: bytes) -> None:
        if self.send_by is not None and self._is_awaited and self._sending is None and not self._unread:
            self._sending = self.send_by(chunk)
            if self._sending is not None:
                self._news.set()
            return
        self._unread.append(chunk)
        self._unread_bytes += len(chunk)
        if self.is_stream and self._unread_bytes > self._stream_bytes_max:
            self.leave()
            self.on_let_go()
        self._news.set()

    def end(self, error: ApiError | None = None) -> None:
        """There is no more to come; `error` is the whole answer where nothing was sent."""
        for timer in (self._cancelling, self._limiting):
            if timer is not None:
                timer.cancel()
        self._has_ended = True
        self._error = error
        self._end.set()
        self._news.set()
        self._kept = None
        for other in self._joined:
            other.end(error)

    def tell_all(self, answer: bytes) -> None:
        """Give a whole answer, which nobody has to make."""
        self._unread.append(answer)
        self.end()

    async def ended(self) -> ApiError | None:
        """Wait until the turn is made, whoever follows it; what it was refused with."""
        await self._end.wait()
        return self._error

    def leave(self) -> None:
        """The client has gone, or is let go of: nothing is kept for it from here on."""
        if not self.is_followed:
            return
        self.is_followed = False
        self._unread.clear()
        self._news.set()
        self._tell_if_alone()

    def keep(self) -> None:
        """Keep what is sent from here on, at most `stream_bytes_max` of it, so that others can join."""
        self._kept = []

    def join(self) -> "Run | None":
        """A run that gives another client all of this one, from its beginning.

        None where the beginning is not kept, or the turn may be cut for want of a client: its end is to be awaited.
        """
        if self._kept is None or self._is_cancelled:
            return None
        if self._cancelling is not None:
            self._cancelling.cancel()
        other = Run(is_stream=self.is_stream, on_leave=self._part, stream_bytes_max=self._stream_bytes_max)
        # Not counted as unread: who has just come is no slow reader.
        other._unread.extend(self._kept)
        self._joined.append(other)
        return other

    def _part(self, other: "Run") -> None:
        self._joined.remove(other)
        self._tell_if_alone()

    def _tell_if_alone(self) -> None:
        if not (self.is_followed or self._joined or self._has_ended):
            self._on_leave(self)

    def _keep(self, chunk: bytes) -> None:
        assert self._kept is not None
        self._kept_bytes += len(chunk)
        if self._kept_bytes > self._stream_bytes_max:
            self._kept = None
        else:
            self._kept.append(chunk)

    async def begins(self) -> bool:
        """Wait for the first bytes. False where none came: the turn was refused, or its client has left."""
        while not self._unread and not self._has_ended and self.is_followed:
            self._news.clear()
            self._is_awaited = True
            await self._news.wait()
            self._is_awaited = False
            while self._sending is not None:
                sending, self._sending = self._sending, None
                await sending
        return bool(self._unread)

    async def read(self) -> bytes:
        """All that has come since the last read, in one piece; b"" at the end, and once the client is let go of.

        Raises the turn's ApiError.
        """
        if await self.begins():
            chunk = b"".join(self._unread)
            self._unread.clear()
            self._unread_bytes = 0
            return chunk
        if self._error is not None:
            raise self._error
        return b""


class Heartbeat:
    """Calls `beat` while a run is silent: after `first_wait_s` if it has not begun, then each `interval_s`."""

    def __init__(self, run: Run, beat: Callable[[], None], *, first_wait_s: float, interval_s: float) -> None:
        self._run = run
        self._beat = beat
        self._first_wait_s = first_wait_s
        self._interval_s = interval_s
        self._loop = asyncio.get_running_loop()

    def __enter__(self) -> Self:
        self._begin_at_s = self._loop.time() + self._first_wait_s
        self._timer = self._loop.call_later(min(self._first_wait_s, self._interval_s), self._tick)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._timer.cancel()

    def _tick(self) -> None:
        if self._loop.time() >= self._due_at_s():
            self._beat()
        # A beat has sent something, so that the next one is due an interval later.
        self._timer = self._loop.call_at(self._due_at_s(), self._tick)

    def _due_at_s(self) -> float:
        return self._run.last_sent_at_s + self._interval_s if self._run.has_begun else self._begin_at_s
