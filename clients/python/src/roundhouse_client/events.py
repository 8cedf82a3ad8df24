"""The events of a turn: one class for each type, and `UnknownEvent` for those of a later version.

Fields that a later version adds are kept: they are attributes and in `model_extra`.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from pydantic import AwareDatetime, BaseModel, ConfigDict

from .models import ApprovalPreview, Citation

StopReason: TypeAlias = Literal["end_turn", "max_turns", "budget", "loop"] | str
"""Why a completed turn ended."""


class BaseEvent(BaseModel):
    """What every event has."""

    model_config = ConfigDict(extra="allow", frozen=True)

    type: str
    """The type, as in the `event:` line."""
    task_id: str
    """The task that it belongs to."""
    turn_id: str
    """The turn that it belongs to."""
    ts: int
    """Its time in Unix milliseconds, strictly increasing within its task: its id, except for
    `busy_update`.
    """


class ThreadLifecycleEvent(BaseEvent):
    """The start, the end or a change of phase of a turn: a base class of one class for each phase."""

    type: Literal["thread_lifecycle"]
    phase: str
    message_id: str
    """The turn's user message."""


class TurnStartedEvent(ThreadLifecycleEvent):
    """The turn began."""

    phase: Literal["started"]


class TurnCompletedEvent(ThreadLifecycleEvent):
    """The turn completed; nothing follows."""

    phase: Literal["completed"]
    answer_message_id: str
    """The message with the last answer."""
    text: str
    """The text of the last answer."""
    stop_reason: StopReason


class TurnErroredEvent(ThreadLifecycleEvent):
    """The turn failed; an `ErrorEvent` follows, and nothing after it."""

    phase: Literal["errored"]


class TurnResumedEvent(ThreadLifecycleEvent):
    """The engine was restarted and continues the turn."""

    phase: Literal["resumed"]


class TurnRetryingEvent(ThreadLifecycleEvent):
    """A model step is repeated: what was sent of it is void, and is replaced by what follows.

    `voids(event)` tells whether an event of this turn is one of those.
    """

    phase: Literal["retrying"]
    void_after: int
    """The `ts` of the last event that still counts."""
    attempt: int
    """The number of the attempt that begins; the first repetition is 2."""

    def voids(self, event: BaseEvent) -> bool:
        """Whether an event that came before this one no longer counts."""
        return event.turn_id == self.turn_id and self.void_after < event.ts < self.ts


class TurnCancelledEvent(ThreadLifecycleEvent):
    """The turn was cancelled; nothing follows."""

    phase: Literal["cancelled"]


class ErrorEvent(BaseEvent):
    """The turn failed; nothing follows."""

    type: Literal["error"]
    code: str
    """A stable code."""
    message: str
    """What went wrong and what to do, for a person."""
    retryable: bool
    """Whether the same message may succeed later without a change of configuration."""


class TextDeltaEvent(BaseEvent):
    """A chunk of output text; concatenate in order."""

    type: Literal["text_delta"]
    text: str


class ThinkingDeltaEvent(BaseEvent):
    """A chunk of the model's reasoning."""

    type: Literal["thinking_delta"]
    text: str


class ContentBlockStartEvent(BaseEvent):
    """A content block begins."""

    type: Literal["content_block_start"]
    index: int
    """The block's number, counted through the turn."""
    block_type: Literal["text", "thinking", "tool_use"] | str


class ContentBlockStopEvent(BaseEvent):
    """A content block ends."""

    type: Literal["content_block_stop"]
    index: int


class ToolCallEvent(BaseEvent):
    """The model calls a tool; sent once the call is stored."""

    type: Literal["tool_call"]
    tool_call_id: str
    tool: str
    input: Any


class ToolResultEvent(BaseEvent):
    """A tool finished."""

    type: Literal["tool_result"]
    tool_call_id: str
    tool: str
    output: str
    """The output; empty if it failed."""
    error: str | None = None
    """The reason of a failure."""
    duration_ms: int


class ToolHookEvent(BaseEvent):
    """A hook of the catalog acted on a tool call."""

    type: Literal["tool_hook"]
    tool_call_id: str
    tool: str
    hook: str
    on: Literal["before", "after"] | str
    decision: Literal["allow", "refuse"] | str
    reason: str | None = None
    failure: str | None = None
    input: Any = None
    note: str | None = None
    result_replaced: bool = False


class HitlRequestEvent(BaseEvent):
    """The agent paused for a person's answer."""

    type: Literal["hitl_request"]
    request_id: str
    kind: Literal["permission", "question"] | str
    question: str
    """The text to show."""
    created_at: AwareDatetime
    options: list[str] | None = None
    """The answers to choose from, if the agent provides any."""


class HitlResolvedEvent(BaseEvent):
    """The person answered."""

    type: Literal["hitl_resolved"]
    request_id: str
    answer: str


class ApprovalRequestEvent(BaseEvent):
    """A tool call waits for a person's decision, as fields; a `HitlRequestEvent` with this id follows."""

    type: Literal["approval_request"]
    request_id: str
    tool_call_id: str
    tool: str
    agent: str | None = None
    """The sub-agent that makes the call; `None` for the task's own agent."""
    input: dict[str, Any]
    preview: ApprovalPreview
    """What the call would do."""
    risk: Literal["low", "medium", "high"] | str
    reason: Literal["permission", "untrusted_content", "tool_changed"] | str
    decisions: list[Literal["allow_once", "allow_task", "allow_always", "deny"] | str]
    """What can be answered."""
    pattern_kind: Literal["command", "path", "address"] | str | None = None
    default_pattern: str | None = None
    created_at: AwareDatetime


class ApprovalResolvedEvent(BaseEvent):
    """A person has decided about a tool call."""

    type: Literal["approval_resolved"]
    request_id: str
    tool_call_id: str
    decision: Literal["allow_once", "allow_task", "allow_always", "deny"] | str
    input: dict[str, Any] | None = None
    """The input that the call runs with, if the person changed it."""
    message: str | None = None
    grant_id: str | None = None


class WorkingMemoryUpdateEvent(BaseEvent):
    """The agent wrote to working memory; the key `recalled` tells the memories that the turn was given."""

    type: Literal["working_memory_update"]
    key: str
    value: Any


class CompactionEvent(BaseEvent):
    """Earlier turns were replaced by a summary."""

    type: Literal["compaction_event"]
    reason: Literal["threshold", "reactive"] | str
    messages_collapsed: int
    tokens_before: int
    tokens_after: int


class UsageEvent(BaseEvent):
    """Tokens used by the turn so far, voided model steps included, which are billed too."""

    type: Literal["usage"]
    model: str
    input_tokens: int
    output_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    reasoning_tokens: int
    cost_usd: float | None = None


class UsageCapEvent(BaseEvent):
    """Much of a cap on usage, or all of it, is used."""

    type: Literal["usage_cap"]
    level: Literal["warning", "reached"] | str
    scope: Literal["day", "task"] | str
    unit: Literal["tokens", "usd"] | str
    limit: float
    used: float
    resets_at: AwareDatetime | None = None


class CitationsEvent(BaseEvent):
    """The pages that the answer of the turn names; sent before it completes."""

    type: Literal["citations"]
    message_id: str
    citations: list[Citation]


class BusyUpdateEvent(BaseEvent):
    """What became of a message to a busy task. It has no id of its own: `ts` is that of the event before."""

    type: Literal["busy_update"]
    status: Literal["queued", "steered", "cancelled", "failed"] | str
    position: int | None = None
    """With `queued`: the place in the queue; the next one has 1."""
    message_id: str | None = None
    """With `steered`: the id of the message in the conversation."""
    message: str | None = None
    """With `failed`: why its turn could not begin."""


class AgentEvent(BaseEvent):
    """An event of a sub-agent of the turn; `inner` is that event."""

    type: Literal["agent_event"]
    tool_call_id: str
    """The call that runs the sub-agent."""
    agent: str
    """The sub-agent's name."""
    event: str
    """The type of its event."""
    data: Any

    @property
    def inner(self) -> Event:
        """The sub-agent's event, with the task, the turn and the time of this one."""
        from ._core.event_parsing import event_of

        fields = self.data if isinstance(self.data, dict) else {}
        header = {"task_id": self.task_id, "turn_id": self.turn_id, "ts": self.ts}
        return event_of(self.event, {**fields, **header})

    def voids(self, event: BaseEvent) -> bool:
        """Whether this is a repeated step of the sub-agent that voids an earlier event of it."""
        inner = self.inner
        return (
            isinstance(event, AgentEvent)
            and event.tool_call_id == self.tool_call_id
            and isinstance(inner, TurnRetryingEvent)
            and inner.voids(event)
        )


class UnknownEvent(BaseEvent):
    """An event that this version does not know, or whose data it cannot read: `data` is what was sent."""

    data: dict[str, Any]


Event: TypeAlias = (
    TurnStartedEvent
    | TurnCompletedEvent
    | TurnErroredEvent
    | TurnResumedEvent
    | TurnRetryingEvent
    | TurnCancelledEvent
    | ErrorEvent
    | TextDeltaEvent
    | ThinkingDeltaEvent
    | ContentBlockStartEvent
    | ContentBlockStopEvent
    | ToolCallEvent
    | ToolResultEvent
    | ToolHookEvent
    | HitlRequestEvent
    | HitlResolvedEvent
    | ApprovalRequestEvent
    | ApprovalResolvedEvent
    | WorkingMemoryUpdateEvent
    | CompactionEvent
    | UsageEvent
    | UsageCapEvent
    | CitationsEvent
    | BusyUpdateEvent
    | AgentEvent
    | UnknownEvent
)
"""An event of a turn. Narrow it with `isinstance` or `match`."""
