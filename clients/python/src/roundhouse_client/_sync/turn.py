# Written by `generate` from `_async`; do not edit.
"""A turn as an iterator of its events."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Generator
from contextlib import suppress
from types import TracebackType
from typing import Any

from typing_extensions import Self

from .._core.call import Call, segment
from .._core.execute import cancel_call, find_call, replay_call, take_out_call
from .._core.retry import RetryPolicy
from .._core.turn import TurnResult, TurnState, reply_call
from .._errors.base import NetworkError, NotFoundError, RoundhouseError, TurnLostError
from .._errors.codes import (
    ApprovalAnsweredError,
    ApprovalNotFoundError,
    BackendError,
    HitlNotPendingError,
    TaskBusyError,
    TaskNotFoundError,
    TaskNotRunningError,
    TurnNotFoundError,
)
from ..events import Event
from ..models import HitlPending, TurnRecord
from ..options import Request, RequestHandler
from ._runtime import resolve, sleep
from .connection import Connection, EventStream

ENDED = ("completed", "failed", "cancelled")
"""The states of turns that have ended."""

RECONNECT = RetryPolicy(deadline=180.0, max_attempts=1000)
"""How long a turn is looked for after its stream broke, before its iterator gives up."""


class Turn:
    """A turn: iterate over it for its events, or wait for its `result()` or `text()`.

    Nothing is sent before that, or before `start()` or `with`. A stream that breaks is resumed where it
    broke, also if the engine was stopped, put to sleep or killed meanwhile, so each event comes exactly once.
    After a `TurnRetryingEvent` those events are void that it `voids`. Leaving the loop closes the connection;
    the turn goes on, and another loop continues where the last one was left.
    """

    def __init__(
        self,
        connection: Connection,
        state: TurnState,
        execute: Call[None] | None = None,
        on_request: RequestHandler | None = None,
        reconnect: RetryPolicy = RECONNECT,
    ) -> None:
        self._connection = connection
        self._state = state
        self._execute = execute
        self._on_request = on_request
        self._reconnect = reconnect
        self._stream: EventStream | None = None
        self._connects = 0
        self._sent = False
        self._loops = 0
        self._received: deque[Event] = deque()
        self._open_request: Request | None = None
        self._barren = 0
        self._last_progress = 0.0
        self._known_ended: TurnRecord | None = None

    @property
    def task_id(self) -> str:
        """The task of the turn."""
        return self._state.task_id

    @property
    def turn_id(self) -> str | None:
        """The id of the turn; `None` until it is known."""
        return self._state.turn_id

    @property
    def text_so_far(self) -> str:
        """The output text of the events received so far, without what is void."""
        return self._state.text

    @property
    def ended(self) -> bool:
        """Whether the last event of the turn was received."""
        return self._state.ended

    def start(self) -> Self:
        """Sends the message, if that was not done yet. Raises what the engine refuses it with."""
        if self._connects == 0:
            self._connect()
        return self

    def result(self) -> TurnResult:
        """Waits for the end of the turn and returns how it completed.

        Raises `TurnFailedError` or `TurnCancelledError` if it did not.
        """
        for _ in self:
            pass
        return self._state.result()

    def text(self) -> str:
        """Waits for the end of the turn and returns the text of its last answer."""
        return (self.result()).text

    def cancel(self) -> None:
        """Cancels the turn, or takes its message out of the queue; another turn of the task is not touched.

        Does nothing if the turn has ended or its message was never sent.
        """
        if self.turn_id is None:
            self._identify()
        if self.turn_id is None or self._state.ended:
            return
        deadline, attempt = time.monotonic() + self._reconnect.deadline, 0
        with suppress(TaskNotFoundError, TurnNotFoundError):
            while not self._end(self.turn_id):
                # It began between two requests, or its engine did just now: the next round finds it.
                if time.monotonic() > deadline:
                    raise NetworkError("the turn is not cancelled: its engine does not run it", sent=False)
                attempt += 1
                sleep(self._reconnect.back_off(attempt))

    def _end(self, turn_id: str) -> bool:
        """Whether the turn has ended, by itself or by this."""
        calls: tuple[Call[Any], ...] = (
            cancel_call(self.task_id, turn_id),
            take_out_call(self.task_id, turn_id),
        )
        for call in calls:
            with suppress(TaskNotFoundError, TaskNotRunningError, TurnNotFoundError):
                self._connection.call(call)
                return True
        return (self._record()).state in ENDED

    def _identify(self) -> None:
        """Learns the id of a turn of which no event was received, if its message may have arrived."""
        if self._execute is None or not self._sent:
            return
        if self._execute.repeatable:
            # Its idempotency key finds it, also while somebody else reads its events.
            with suppress(TaskBusyError):
                found = self._connection.call(find_call(self._execute), self._reconnect)
                self._state.turn_id = found.turn_id
            return
        while self.turn_id is None and self._stream is not None:
            event = self._receive()
            if event is not None:
                self._received.append(event)

    def close(self) -> None:
        """Closes the connection. The turn goes on."""
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Generator[Event, None]:
        return self._events()

    def _events(self) -> Generator[Event, None]:
        self._loops += 1
        loop = self._loops
        try:
            while True:
                if self._open_request is not None:
                    self._answer(self._open_request)
                if self._received:
                    event = self._received.popleft()
                elif self._state.ended:
                    return
                else:
                    received = self._receive()
                    if received is None:
                        continue
                    event = received
                self._open_request = self._state.request(event)
                yield event
        finally:
            # The end of a loop that was left may come when another one has begun already.
            if loop == self._loops:
                self.close()

    def _receive(self) -> Event | None:
        """The next event, if the next message of the stream is one of this turn; reconnects if necessary."""
        if self._stream is None:
            try:
                self._connect()
            except BackendError as error:
                # The orchestrator's proxy has not noticed yet that the engine is gone.
                if self._connects == 0:
                    raise
                self._after_break(error)
                return None
        stream = self._stream
        assert stream is not None
        broken: NetworkError | None = None
        try:
            message = stream.next()
        except NetworkError as error:
            message, broken = None, error
        if message is None:
            self.close()
            self._after_break(broken)
            return None
        event = self._state.receive(message)
        if event is not None:
            self._known_ended = None
        if event is not None or message.event == "heartbeat":
            self._progress()
        return event

    def _progress(self) -> None:
        self._barren, self._last_progress = 0, time.monotonic()

    def _connect(self) -> None:
        """Opens the stream: with the message, or where the last one broke."""
        position = self._state.position
        if position is not None:
            call, policy = replay_call(self.task_id, position), self._reconnect
        else:
            assert self._execute is not None
            call, policy = self._execute, self._connection.retry if self._connects == 0 else self._reconnect
        sent, self._sent = self._sent, True
        try:
            self._stream = self._connection.events(call, policy)
        except NotFoundError as error:
            self._sent = sent
            if position is None:
                raise
            raise TurnLostError("the events of the turn are gone with its task", code=error.code) from error
        except RoundhouseError as error:
            self._sent = (
                sent or isinstance(error, BackendError) or (isinstance(error, NetworkError) and error.sent)
            )
            raise
        self._connects += 1
        if self._connects == 1:
            self._progress()

    def _after_break(self, broken: RoundhouseError | None) -> None:
        """Decides how to go on after a stream that ended before its turn."""
        if self._state.ended:
            return
        if not self._state.can_resume:
            raise broken or NetworkError("the stream ended before its first event", sent=True)
        self._barren += 1
        if self._state.turn_id is not None and broken is None:
            self._consult_record()
        if self._state.ended or self._barren == 1:
            return
        if time.monotonic() - self._last_progress > self._reconnect.deadline:
            raise broken or NetworkError(
                "the turn's events cannot be read; its outcome is unknown", sent=True
            )
        sleep(self._reconnect.back_off(self._barren - 1))

    def _consult_record(self) -> None:
        """Asks for the state of a turn whose stream ended as if nothing more came."""
        if self._known_ended is not None:
            # This replay began after the turn had ended, so there are no further events.
            self._state.settle(self._known_ended)
            return
        try:
            record = self._record()
        except NotFoundError as error:
            raise TurnLostError("the turn is not part of its task any more", code=error.code) from error
        if record.state in ENDED:
            self._known_ended = record
        else:
            # It is queued, or goes on: there is something to wait for, however long.
            self._last_progress = time.monotonic()

    def _record(self) -> TurnRecord:
        path = f"/tasks/{segment(self.task_id)}/turns/{segment(self.turn_id or '')}"
        return self._connection.call(Call("GET", path, TurnRecord), self._reconnect)

    def _answer(self, request: Request) -> None:
        """Has a request answered, unless that has happened already."""
        if self._on_request is not None and not self._state.ended and self._is_pending(request):
            reply = resolve(self._on_request(request))
            call = reply_call(request.task_id, request.request_id, reply)
            # If none waits any more, somebody else has answered, or the turn has ended.
            with suppress(HitlNotPendingError, ApprovalNotFoundError, ApprovalAnsweredError):
                if call is not None:
                    self._connection.call(call, self._reconnect)
        self._open_request = None

    def _is_pending(self, request: Request) -> bool:
        """Whether a request still waits: one of a replay may have been answered."""
        if self._connects <= 1 and self._execute is not None:
            return True
        call = Call("GET", "/hitl/pending", HitlPending, query={"task_id": request.task_id})
        pending = self._connection.call(call, self._reconnect)
        return any(waiting.request_id == request.request_id for waiting in pending.pending)
