"""From a Server-Sent Event to an event of a turn."""

from __future__ import annotations

import json
from typing import Any

from pydantic import ValidationError

from .. import events
from .._errors.base import ProtocolError
from .sse import SseMessage

_PHASES: dict[str, type[events.ThreadLifecycleEvent]] = {
    "started": events.TurnStartedEvent,
    "completed": events.TurnCompletedEvent,
    "errored": events.TurnErroredEvent,
    "resumed": events.TurnResumedEvent,
    "retrying": events.TurnRetryingEvent,
    "cancelled": events.TurnCancelledEvent,
}

_TYPES: dict[str, type[events.BaseEvent]] = {
    "error": events.ErrorEvent,
    "text_delta": events.TextDeltaEvent,
    "thinking_delta": events.ThinkingDeltaEvent,
    "content_block_start": events.ContentBlockStartEvent,
    "content_block_stop": events.ContentBlockStopEvent,
    "tool_call": events.ToolCallEvent,
    "tool_result": events.ToolResultEvent,
    "tool_hook": events.ToolHookEvent,
    "hitl_request": events.HitlRequestEvent,
    "hitl_resolved": events.HitlResolvedEvent,
    "approval_request": events.ApprovalRequestEvent,
    "approval_resolved": events.ApprovalResolvedEvent,
    "working_memory_update": events.WorkingMemoryUpdateEvent,
    "compaction_event": events.CompactionEvent,
    "usage": events.UsageEvent,
    "usage_cap": events.UsageCapEvent,
    "citations": events.CitationsEvent,
    "busy_update": events.BusyUpdateEvent,
    "agent_event": events.AgentEvent,
}

KNOWN_TYPES = frozenset({"thread_lifecycle", "heartbeat", *_TYPES})
"""The types of events that this version knows."""


def parse_event(message: SseMessage) -> events.Event:
    """Parses an event. One of an unknown type, or with unreadable data, is an `UnknownEvent`."""
    try:
        data = json.loads(message.data)
    except ValueError as error:
        raise ProtocolError(f"the data of a `{message.event}` event is not JSON: {error}") from error
    header = isinstance(data, dict) and all(name in data for name in ("task_id", "turn_id", "ts"))
    if not header:
        raise ProtocolError(f"the data of a `{message.event}` event has no `task_id`, `turn_id` and `ts`")
    return event_of(message.event, data)


def event_of(kind: str, data: dict[str, Any]) -> events.Event:
    """Returns the event of this type and data."""
    known = _PHASES.get(str(data.get("phase"))) if kind == "thread_lifecycle" else _TYPES.get(kind)
    if known is not None:
        try:
            return known.model_validate({**data, "type": kind})  # type: ignore[return-value]
        except ValidationError:
            pass
    header = {name: data[name] for name in ("task_id", "turn_id", "ts")}
    return events.UnknownEvent.model_validate({**header, "type": kind, "data": data})
