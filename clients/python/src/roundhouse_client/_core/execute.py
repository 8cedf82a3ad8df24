"""The requests that begin and read turns."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

from ..models import BackgroundTurn, Cancelled, Steered
from .call import Call, given, segment


class TurnOptions(TypedDict, total=False):
    """The optional fields of a turn; see the page on the options of a turn in the documentation."""

    media: Sequence[Mapping[str, Any]]
    """Attached text, images and documents."""
    direct: bool
    """Skip planning."""
    edit_message_id: str
    """Replace this earlier message by the new one."""
    retry_message_id: str
    """Run again from this message; `message` may then be left out."""
    max_turns: int
    """The maximum number of model calls."""
    super_thinking: bool
    """Let the model think before it answers."""
    client_request_id: str
    """A request with the same id joins the turn that the first one began. By default each `run` has one of
    its own, so that it can be repeated after a lost connection.
    """
    on_busy: Literal["reject", "queue", "steer", "interrupt"]
    """What to do while another turn runs on the task."""
    model: str
    """A name from `models` of the configuration."""
    effort: Literal["low", "medium", "high", "xhigh", "max"]
    """How much the model thinks."""
    instructions: str
    """Instructions for this turn only."""
    allowed_tools: Sequence[str]
    """The only tools that may be called."""
    max_output_tokens: int
    max_tokens: int
    max_cost_usd: float
    metadata: Mapping[str, str]
    """Your own data about the turn."""
    response_format: Mapping[str, Any]
    """The JSON Schema of the final answer."""


_KNOWN = frozenset(TurnOptions.__annotations__)


def execute_call(task_id: str, message: str, options: TurnOptions) -> Call[None]:
    """The request that begins a turn and streams its events."""
    body, repeatable = _body(task_id, message, options)
    return Call("POST", "/execute", body=body, idempotent=repeatable)


def background_call(task_id: str, message: str, options: TurnOptions) -> Call[BackgroundTurn]:
    """The request that begins a turn in the background."""
    body, repeatable = _body(task_id, message, options)
    return Call("POST", "/execute", BackgroundTurn, body={**body, "background": True}, idempotent=repeatable)


def find_call(execute: Call[None]) -> Call[BackgroundTurn]:
    """The request that finds the turn of a message with an idempotency key, or begins it if there is none."""
    return Call(
        "POST", "/execute", BackgroundTurn, body={**execute.body, "background": True}, idempotent=True
    )


def cancel_call(task_id: str, turn_id: str | None) -> Call[Cancelled]:
    """The request that cancels the turn that runs on a task, and no other one than `turn_id`."""
    body = given(task_id=task_id, turn_id=turn_id)
    return Call("POST", "/execute/cancel", Cancelled, body=body, idempotent=turn_id is not None)


def take_out_call(task_id: str, turn_id: str) -> Call[None]:
    """The request that takes the message of a turn out of the queue."""
    return Call("DELETE", f"/tasks/{segment(task_id)}/queue/{segment(turn_id)}", idempotent=True)


def steer_call(task_id: str, turn_id: str | None, message: str) -> Call[Steered]:
    """The request that gives the turn that runs on a task a message, and no other one than `turn_id`."""
    return Call(
        "POST", "/execute/steer", Steered, body=given(task_id=task_id, turn_id=turn_id, message=message)
    )


def replay_call(task_id: str, after: int) -> Call[None]:
    """The request that reads the events of a task after one of them."""
    return Call("GET", "/execute/replay", query={"task_id": task_id, "after": after})


def _body(task_id: str, message: str, options: TurnOptions) -> tuple[dict[str, Any], bool]:
    """The body, and whether it may be repeated: what is given to a running turn has no idempotency key."""
    unknown = sorted(set(options) - _KNOWN)
    if unknown:
        raise TypeError(f"a turn has no option `{unknown[0]}`; it has {', '.join(sorted(_KNOWN))}")
    body = given(task_id=task_id, message=message, **options)
    if body.get("on_busy") != "steer":
        body.setdefault("client_request_id", str(uuid.uuid4()))
    return body, "client_request_id" in body
