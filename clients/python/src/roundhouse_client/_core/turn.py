"""The state of a turn as a client follows it: what counts, and how to go on after a break."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .. import events
from .._errors.base import TurnCancelledError, TurnFailedError
from ..events import Event
from ..models import Citation, TurnRecord
from ..options import Answer, Decision, Reply, Request
from .call import Call, given, segment
from .event_parsing import parse_event
from .sse import SseMessage


@dataclass(frozen=True)
class TurnResult:
    """How a turn completed."""

    task_id: str
    turn_id: str
    message_id: str | None
    """The turn's user message."""
    answer_message_id: str | None
    """The message with the last answer."""
    text: str
    """The text of the last answer."""
    stop_reason: str | None
    usage: events.UsageEvent | None
    """The last usage that was received."""
    citations: tuple[Citation, ...]


class TurnState:
    """Follows one turn: takes the events of its streams and lets through each of the turn's once."""

    def __init__(self, task_id: str, *, turn_id: str | None = None, can_repeat: bool = False) -> None:
        self.task_id = task_id
        self.turn_id = turn_id
        self.usage: events.UsageEvent | None = None
        self.ended = False
        self._can_repeat = can_repeat
        self._position: int | None = None if turn_id is None else 0
        self._last_seen = 0
        self._busy_update: events.BusyUpdateEvent | None = None
        self._result: TurnResult | None = None
        self._failure: TurnFailedError | TurnCancelledError | None = None
        self._citations: tuple[Citation, ...] = ()
        self._chunks: list[tuple[int, str]] = []
        self._approvals: dict[str, events.ApprovalRequestEvent] = {}
        self._requests_seen: set[str] = set()

    @property
    def text(self) -> str:
        """The output text so far, without what is void."""
        return "".join(text for _, text in self._chunks)

    @property
    def position(self) -> int | None:
        """The event after which a replay goes on; `None` if the turn can only be joined by its message."""
        return self._position

    @property
    def can_resume(self) -> bool:
        """Whether the turn can be followed further after its stream broke."""
        return self._position is not None or self._can_repeat

    def receive(self, message: SseMessage) -> Event | None:
        """Takes an event of a stream; returns it if it is the turn's and was not received before."""
        if self.ended or message.event == "heartbeat":
            return None
        event = parse_event(message)
        if isinstance(event, events.BusyUpdateEvent):
            return self._receive_busy_update(event)
        if self.turn_id is None:
            self.turn_id = event.turn_id
        if message.id is None or event.turn_id != self.turn_id or event.ts <= self._last_seen:
            return None
        self._position = self._last_seen = event.ts
        self._apply(event)
        return event

    def _receive_busy_update(self, event: events.BusyUpdateEvent) -> Event | None:
        if self._last_seen or self.turn_id not in (None, event.turn_id) or event == self._busy_update:
            return None
        self.turn_id, self._busy_update = event.turn_id, event
        if event.status == "steered":
            # The turn's events follow from here on. Its earlier ones were another request's.
            self._position = self._last_seen = event.ts
        elif event.status == "cancelled":
            self._end(TurnCancelledError("the message was taken out of the queue"))
        elif event.status == "failed":
            message = event.message or "the turn could not begin"
            self._end(TurnFailedError(message, code=None, retryable=False))
        return event

    def _apply(self, event: Event) -> None:
        match event:
            case events.TextDeltaEvent():
                self._chunks.append((event.ts, event.text))
            case events.TurnRetryingEvent():
                self._chunks = [chunk for chunk in self._chunks if chunk[0] <= event.void_after]
            case events.UsageEvent():
                self.usage = event
            case events.CitationsEvent():
                self._citations = tuple(event.citations)
            case events.ApprovalRequestEvent():
                self._approvals[event.request_id] = event
            case events.ApprovalResolvedEvent() | events.HitlResolvedEvent():
                self._approvals.pop(event.request_id, None)
            case events.TurnCompletedEvent():
                self._complete(event.message_id, event.answer_message_id, event.text, event.stop_reason)
            case events.TurnCancelledEvent():
                self._end(TurnCancelledError("the turn was cancelled"))
            case events.ErrorEvent():
                self._end(TurnFailedError(event.message, code=event.code, retryable=event.retryable))
            case _:
                pass

    def settle(self, record: TurnRecord) -> None:
        """Takes what the engine says about the turn whose events have ended."""
        if record.state == "completed":
            self._complete(record.message_id, record.answer_message_id, record.text or "", record.stop_reason)
        elif record.state == "cancelled":
            self._end(TurnCancelledError("the turn was cancelled"))
        elif record.state == "failed":
            failure = record.error
            message = failure.message if failure else "the turn failed; the reason is not known any more"
            code, retryable = (failure.code, failure.retryable) if failure else (None, False)
            self._end(TurnFailedError(message, code=code, retryable=retryable))

    def _complete(
        self, message_id: str | None, answer_message_id: str | None, text: str, stop_reason: str | None
    ) -> None:
        self._result = TurnResult(
            task_id=self.task_id,
            turn_id=self.turn_id or "",
            message_id=message_id,
            answer_message_id=answer_message_id,
            text=text,
            stop_reason=stop_reason,
            usage=self.usage,
            citations=self._citations,
        )
        self.ended = True

    def _end(self, failure: TurnFailedError | TurnCancelledError) -> None:
        self._failure = failure
        self.ended = True

    def result(self) -> TurnResult:
        """The result of the turn, which must have ended."""
        if self._failure is not None:
            raise self._failure
        assert self._result is not None, "the turn has not ended"
        return self._result

    def request(self, event: Event) -> Request | None:
        """The request that `event` is, unless it was returned before."""
        if not isinstance(event, events.HitlRequestEvent) or event.request_id in self._requests_seen:
            return None
        self._requests_seen.add(event.request_id)
        return Request(
            request_id=event.request_id,
            task_id=event.task_id,
            kind=event.kind,
            question=event.question,
            options=tuple(event.options or ()),
            approval=self._approvals.get(event.request_id),
            event=event,
        )


def reply_call(task_id: str, request_id: str, reply: Reply) -> Call[None] | None:
    """The request that gives an answer, which may be repeated; `None` if there is none."""
    if reply is None:
        return None
    if isinstance(reply, Decision):
        path = f"/tasks/{segment(task_id)}/approvals/{segment(request_id)}"
        fields: Mapping[str, Any] = given(
            decision=reply.decision, pattern=reply.pattern, input=reply.input, message=reply.message
        )
        return Call("POST", path, body=fields, idempotent=True)
    if isinstance(reply, bool):
        reply = "yes" if reply else "no"
    answer = reply if isinstance(reply, Answer) else Answer(reply)
    body = given(
        task_id=task_id,
        request_id=request_id,
        answer=answer.answer,
        feedback=answer.feedback,
        content_blocks=list(answer.content_blocks) or None,
        scope=answer.scope,
    )
    return Call("POST", "/hitl/respond", body=body, idempotent=True)
