"""Work in turn: a bounded queue in front of two threads, one for what is quick, one for the rest.

The newest waiting request is done first: whoever zooms on no longer waits for where he came from.
A request whose asker has gone is not begun; one that is under way is told through `cancelled`.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from threading import Condition, Thread
from time import monotonic
from typing import Any

WAITING = 64  # at most, in each lane


class Busy(Exception):
    """Too many requests wait; this one, the oldest, is given up."""


class _Ticket:
    def __init__(self, work: Callable[[Callable[[], bool]], Any]) -> None:
        self.work = work
        self.result: Future[Any] = Future()
        self.gone = False  # nobody waits for it any more


class Desk:
    """Two lanes of work; `close` ends both at once."""

    def __init__(self, waiting: int = WAITING) -> None:
        self._waiting = waiting
        self._lanes: dict[bool, list[_Ticket]] = {False: [], True: []}
        self._turn = Condition()
        self._current: dict[bool, _Ticket | None] = {False: None, True: None}
        self._closed = False
        # Daemons: a pass over a long map must not keep the process when it is told to stop.
        self._threads = [
            Thread(target=self._serve, args=(slow,), daemon=True, name="clearhead-view")
            for slow in self._lanes
        ]
        for thread in self._threads:
            thread.start()

    async def do(self, work: Callable[[Callable[[], bool]], Any], *, slow: bool = False) -> Any:
        """The result of work(cancelled), computed on a thread. Cancelling this cancels that.

        Raises `Busy` where so many newer requests came that this one is given up.
        """
        ticket = _Ticket(work)
        given_up: _Ticket | None = None
        with self._turn:
            if self._closed:
                raise Busy
            lane = self._lanes[slow]
            lane.append(ticket)
            if len(lane) > self._waiting:
                given_up = lane.pop(0)
            self._turn.notify_all()
        # False: whoever asked has gone as well, and only has not been cleared away yet.
        if given_up is not None and given_up.result.set_running_or_notify_cancel():
            given_up.result.set_exception(Busy())
        try:
            return await asyncio.wrap_future(ticket.result)
        finally:
            ticket.gone = True
            with self._turn:
                if ticket in self._lanes[slow]:
                    self._lanes[slow].remove(ticket)

    @property
    def waiting(self) -> int:
        """How many requests have not begun."""
        with self._turn:
            return sum(map(len, self._lanes.values()))

    def close(self, patience_s: float = 0.5) -> bool:
        """Begin nothing more, and tell what is under way; whether that came to an end in time."""
        with self._turn:
            self._closed = True
            for lane in self._lanes.values():
                for ticket in lane:
                    ticket.gone = True
                lane.clear()
            for current in self._current.values():
                if current is not None:
                    current.gone = True
            self._turn.notify_all()
        until = monotonic() + patience_s
        for thread in self._threads:
            thread.join(max(0.0, until - monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _serve(self, slow: bool) -> None:
        while True:
            with self._turn:
                self._turn.wait_for(lambda: self._closed or self._lanes[slow])
                if self._closed:
                    return
                ticket = self._lanes[slow].pop()
                self._current[slow] = ticket
            if ticket.gone or not ticket.result.set_running_or_notify_cancel():
                continue
            try:
                result = ticket.work(lambda ticket=ticket: ticket.gone or self._closed)  # type: ignore[misc]
            except BaseException as error:
                ticket.result.set_exception(error)
            else:
                ticket.result.set_result(result)
            self._current[slow] = None
