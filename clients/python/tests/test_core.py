"""The state of a turn, the policy of repetitions, and the reading of responses."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roundhouse_client import RetryPolicy, TurnCancelledError, TurnFailedError, errors
from roundhouse_client._core.call import error_of, file_path, read_json, segment
from roundhouse_client._core.event_parsing import parse_event
from roundhouse_client._core.execute import execute_call
from roundhouse_client._core.retry import may_repeat, needs_admit, parse_retry_after
from roundhouse_client._core.sse import SseMessage
from roundhouse_client._core.turn import TurnState
from roundhouse_client.errors import CODES, NetworkError, ProtocolError
from roundhouse_client.events import (
    AgentEvent,
    Event,
    TextDeltaEvent,
    TurnCompletedEvent,
    TurnRetryingEvent,
    UnknownEvent,
)
from roundhouse_client.models import ConversationMessage, TurnRecord


def sent(kind: str, ts: int, turn: str = "turn_1", identified: bool = True, **data: Any) -> SseMessage:
    header = {"task_id": "t", "turn_id": turn, "ts": ts}
    return SseMessage(kind, json.dumps({**header, **data}), str(ts) if identified else None)


def lifecycle(phase: str, ts: int, **data: Any) -> SseMessage:
    return sent("thread_lifecycle", ts, phase=phase, message_id="msg_1", **data)


COMPLETED = {"answer_message_id": "msg_2", "text": "ab", "stop_reason": "end_turn"}

TURN = [
    lifecycle("started", 1),
    sent("text_delta", 2, text="a"),
    sent("heartbeat", 2, identified=False),
    sent("text_delta", 5, text="b"),
    sent("text_delta", 6, turn="turn_0", text="another turn's"),
    sent("brand_new", 7, anything=[1]),
    lifecycle("completed", 9, **COMPLETED),
]

MINE = [1, 2, 5, 7, 9]


def receive(state: TurnState, messages: list[SseMessage]) -> list[Event]:
    return [event for message in messages if (event := state.receive(message)) is not None]


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 12)), max_size=8))
def test_breaks_lose_nothing_and_repeat_nothing(breaks: list[tuple[int, int]]) -> None:
    state = TurnState("t", can_repeat=True)
    received: list[Event] = []
    for length, overlap in [*breaks, (len(TURN), 0)]:
        position = state.position or 0
        # A replay begins after the position; a careless service may begin earlier.
        rest = [message for message in TURN if int(json.loads(message.data)["ts"]) > position - overlap]
        received += receive(state, rest[:length])
    assert [event.ts for event in received] == MINE
    assert state.ended
    assert state.text == "ab"
    assert state.result().text == "ab"


def test_what_is_void_does_not_count_and_is_told() -> None:
    state = TurnState("t")
    first = receive(state, TURN[:4])
    retrying = receive(state, [lifecycle("retrying", 8, void_after=1, attempt=2)])[0]
    assert isinstance(retrying, TurnRetryingEvent)
    assert [retrying.voids(event) for event in first] == [False, True, True]
    assert state.text == ""
    (again,) = receive(state, [sent("text_delta", 9, text="new")])
    assert not retrying.voids(again)
    assert state.text == "new"


def test_what_is_void_of_a_sub_agent() -> None:
    def wrapped(ts: int, event: str, call: str = "call_1", **data: Any) -> AgentEvent:
        fields: dict[str, Any] = {"tool_call_id": call, "agent": "writer", "event": event, "data": data}
        parsed = parse_event(sent("agent_event", ts, **fields))
        assert isinstance(parsed, AgentEvent)
        return parsed

    delta, other = wrapped(5, "text_delta", text="a"), wrapped(6, "text_delta", "call_2", text="b")
    assert isinstance(delta.inner, TextDeltaEvent)
    retrying = wrapped(7, "thread_lifecycle", phase="retrying", message_id="msg_1", void_after=4, attempt=2)
    assert retrying.voids(delta)
    assert not retrying.voids(other)
    assert not delta.voids(delta)


def test_unknown_events_are_events() -> None:
    unknown = parse_event(sent("brand_new", 3, anything=[1]))
    assert isinstance(unknown, UnknownEvent)
    assert (unknown.type, unknown.data["anything"]) == ("brand_new", [1])
    phase = parse_event(lifecycle("dreaming", 3))
    assert isinstance(phase, UnknownEvent)
    changed = parse_event(sent("text_delta", 3, text={"not": "a text"}))
    assert isinstance(changed, UnknownEvent)
    richer = parse_event(sent("text_delta", 3, text="a", language="de"))
    assert isinstance(richer, TextDeltaEvent)
    assert richer.model_extra == {"language": "de"}
    reason = parse_event(lifecycle("completed", 3, **{**COMPLETED, "stop_reason": "bored"}))
    assert isinstance(reason, TurnCompletedEvent)
    for data in ("[]", "{}", "not JSON", '{"task_id": "t"}'):
        with pytest.raises(ProtocolError):
            parse_event(SseMessage("text_delta", data, None))


def test_what_becomes_of_a_message_to_a_busy_task() -> None:
    queued = sent("busy_update", 3, identified=False, status="queued", position=1)
    state = TurnState("t", can_repeat=True)
    assert len(receive(state, [queued, queued])) == 1
    assert state.position is None, "a queued message is joined by its own request"
    receive(state, [sent("busy_update", 3, identified=False, status="cancelled")])
    with pytest.raises(TurnCancelledError):
        state.result()
    steered = TurnState("t")
    assert not steered.can_resume
    receive(steered, [sent("busy_update", 3, identified=False, status="steered", message_id="msg_3")])
    assert steered.position == 3
    assert receive(steered, TURN[:2]) == []
    failed = TurnState("t")
    receive(failed, [sent("busy_update", 3, identified=False, status="failed", message="no room")])
    with pytest.raises(TurnFailedError, match="no room"):
        failed.result()


@pytest.mark.parametrize(
    ("fields", "outcome"),
    [
        ({"state": "completed", "text": "ab", "stop_reason": "end_turn"}, None),
        ({"state": "cancelled"}, TurnCancelledError),
        ({"state": "failed"}, TurnFailedError),
        ({"state": "failed", "error": {"code": "X", "message": "y", "retryable": True}}, TurnFailedError),
    ],
)
def test_a_turn_whose_events_are_gone_ends_as_its_record_says(
    fields: dict[str, Any], outcome: type[Exception] | None
) -> None:
    state = TurnState("t", turn_id="turn_1")
    state.settle(TurnRecord.model_validate({"turn_id": "turn_1", **fields}))
    assert state.ended
    if outcome is None:
        assert state.result().text == "ab"
    else:
        with pytest.raises(outcome):
            state.result()


def refused(code: str, retry_after: float | None = None) -> errors.ApiError:
    headers = {} if retry_after is None else {"retry-after": str(retry_after)}
    return error_of(503, headers, json.dumps({"error": {"code": code, "message": "m"}}).encode())


@given(st.integers(1, 40), st.floats(0, 100), st.floats(0, 1), st.none() | st.floats(0, 200))
def test_pauses_are_bounded_and_retry_after_is_honoured(
    attempt: int, elapsed: float, luck: float, retry_after: float | None
) -> None:
    policy = RetryPolicy(random=lambda: luck)
    error = refused("RATE_LIMITED", retry_after)
    delay = policy.delay(error, attempt=attempt, elapsed=elapsed, repeatable=False)
    if delay is None:
        longest = max(retry_after or 0.0, policy.cap * (1 + policy.jitter))
        assert attempt >= policy.max_attempts or elapsed + longest > policy.deadline
    else:
        assert delay >= (retry_after or 0.0)
        assert elapsed + delay <= policy.deadline
        assert attempt < policy.max_attempts


def test_only_what_was_not_carried_out_or_may_be_repeated_is_repeated() -> None:
    unsent, lost = NetworkError("refused", sent=False), NetworkError("reset", sent=True)
    assert may_repeat(unsent, attempt=1, repeatable=False)
    assert not may_repeat(lost, attempt=1, repeatable=False)
    assert may_repeat(lost, attempt=5, repeatable=True)
    for code in ("QUOTA_EXCEEDED", "BOOT_TIMEOUT", "PORT_EXHAUSTION", "INTERNAL_ERROR", "TASK_BUSY"):
        assert not may_repeat(refused(code), attempt=1, repeatable=True)
    assert may_repeat(refused("BACKEND_ERROR"), attempt=1, repeatable=True)
    assert not may_repeat(refused("BACKEND_ERROR"), attempt=2, repeatable=True)
    assert not may_repeat(refused("BACKEND_ERROR"), attempt=1, repeatable=False)
    assert not may_repeat(refused("STARTING_UP"), attempt=1, repeatable=False)
    assert needs_admit(refused("INVALID_ENGINE_KEY"))
    assert not needs_admit(refused("TASK_BUSY"))
    assert [parse_retry_after(value) for value in ("3", "0.5", "soon", "-1", "inf", None)] == [
        3.0,
        0.5,
        None,
        None,
        None,
        None,
    ]


def test_errors_have_the_type_of_their_code() -> None:
    body = b'{"error": {"code": "TASK_BUSY", "message": "busy"}}'
    error = error_of(409, {"x-request-id": "r1"}, body)
    assert type(error) is errors.TaskBusyError
    assert (error.code, error.status, error.message, error.request_id) == ("TASK_BUSY", 409, "busy", "r1")
    later = error_of(409, {}, b'{"error": {"code": "BRAND_NEW", "message": "m"}}')
    assert type(later) is errors.ConflictError
    assert later.code == "BRAND_NEW"
    flat = error_of(404, {}, b'{"error": "METHOD_NOT_FOUND", "message": "m"}')
    assert type(flat) is errors.MethodNotFoundError
    for body in (b"", b"<html>", b"[]", b'{"error": 1}', b'{"error": {"code": 1}}'):
        assert type(error_of(502, {}, body)) is errors.ServerError
    assert len(set(CODES.values())) == len(CODES)


def test_requests_are_repeatable_unless_they_go_to_a_running_turn() -> None:
    call = execute_call("t", "m", {})
    assert call.repeatable
    assert call.body["client_request_id"]
    assert execute_call("t", "m", {"client_request_id": "mine"}).body["client_request_id"] == "mine"
    steered = execute_call("t", "m", {"on_busy": "steer"})
    assert not steered.repeatable
    assert "client_request_id" not in steered.body


def test_names_in_paths() -> None:
    assert segment("a/ö?#%") == "a%2F%C3%B6%3F%23%25"
    assert [segment(name) for name in (".", "..", "...", "a.b")] == ["%2E", "%2E%2E", "...", "a.b"]
    assert file_path("/a b/ü.txt") == "a%20b/%C3%BC.txt"


def test_models_read_what_a_later_version_sends() -> None:
    message = {
        "message_id": "msg_1",
        "turn_id": "turn_1",
        "role": "narrator",
        "superseded": False,
        "created_at": "2026-11-26T09:00:04.120Z",
        "content": [{"type": "hologram", "shape": 1}],
        "mood": "good",
    }
    read = read_json(ConversationMessage, json.dumps(message).encode(), "it")
    assert read.content == [{"type": "hologram", "shape": 1}]
    assert (read.role, read.model_extra) == ("narrator", {"mood": "good"})
    with pytest.raises(ProtocolError):
        read_json(ConversationMessage, b"{}", "it")
