"""Stories of turns."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable

import anyio
import anyio.lowlevel
import pytest

from fleet import Cutter, eventually
from fleet import Fleet as RunningFleet
from roundhouse_client import (
    Answer,
    AsyncEngine,
    Decision,
    Engine,
    Event,
    Fleet,
    NetworkError,
    Reply,
    Request,
    RetryPolicy,
    TurnCancelledError,
    TurnFailedError,
    TurnLostError,
    errors,
)
from roundhouse_client.events import (
    ApprovalResolvedEvent,
    BusyUpdateEvent,
    ErrorEvent,
    HitlRequestEvent,
    HitlResolvedEvent,
    TextDeltaEvent,
    ToolCallEvent,
    ToolResultEvent,
    TurnCancelledEvent,
    TurnCompletedEvent,
    TurnResumedEvent,
    TurnStartedEvent,
)


def test_the_events_of_a_turn_in_order(engine: Engine, task: str) -> None:
    events = list(engine.run(task, "remember colour = grün"))
    assert isinstance(events[0], TurnStartedEvent)
    assert isinstance(events[-1], TurnCompletedEvent)
    assert events[-1].text == "Noted: grün"
    assert [event.tool for event in events if isinstance(event, ToolCallEvent)] == ["working_memory_set"]
    assert [event.ts for event in events] == sorted({event.ts for event in events})
    assert engine.tasks.memory(task).memory == {"colour": "grün"}


def test_the_text_of_texts_that_are_not_english(engine: Engine) -> None:
    message = "Ünïcode 世界 🎉 \u202e مرحبا \n\r\u2028 end"
    task = "задача/ö 1"
    result = engine.run(task, message).result()
    assert result.text == f"You said: {message}"
    assert result.usage is not None
    assert engine.tasks.turn(task, result.turn_id).state == "completed"
    engine.tasks.delete(task)


def cut_events(engine: Engine, cutter: Cutter, task: str) -> tuple[list[Event], list[Event]]:
    """The events of a turn through a proxy that cuts, and those that the engine has of it."""
    with Engine(cutter.url, engine._connection.endpoint.headers["X-Engine-Key"]) as cut:
        turn = cut.run(task, "remember colour = blau", on_request=lambda _: True)
        received = list(turn)
    assert turn.turn_id is not None
    return received, list(engine.follow(task, turn.turn_id))


def is_stream(seen: bytes) -> bool:
    return b"text/event-stream" in seen


def after_events(seen: bytes, count: int) -> int | None:
    """Where the event with this number ends; `None` if it has not."""
    head = seen.find(b"\r\n\r\n") if is_stream(seen) else -1
    at = head + 2
    for _ in range(count):
        at = seen.find(b"\n\n", at + 2)
        if at < 0:
            return None
    return at + 2 if head >= 0 else None


def once_after(count: int) -> Callable[[bytes], int | None]:
    """Cuts one stream, after so many of its events."""
    left = [1]

    def cut(seen: bytes) -> int | None:
        at = after_events(seen, count)
        if at is None or not left[0]:
            return None
        left[0] = 0
        return at

    return cut


def test_a_stream_that_is_cut_after_each_event_in_turn_has_all_events_once(engine: Engine, task: str) -> None:
    count = len(list(engine.run(f"{task}-uncut", "remember colour = blau")))
    assert count > 8
    # Deltas of one millisecond are one event, so turns differ a little in their number of events.
    for number in range(count + 1):
        cut = once_after(number)
        with Cutter(engine.url, cut) as cutter:
            received, stored = cut_events(engine, cutter, f"{task}-{number}")
        assert received == stored, f"cut after {number} events"
        assert cutter.cuts == (1 if number <= len(stored) else 0)


def test_a_stream_that_is_cut_after_every_event_has_all_events_once(engine: Engine, task: str) -> None:
    with Cutter(engine.url, lambda seen: after_events(seen, 1)) as cutter:
        received, stored = cut_events(engine, cutter, task)
    assert received == stored
    assert cutter.cuts >= len(received) - 1


@pytest.mark.parametrize("size", [1, 40, 150, 333, 470, 611])
def test_a_stream_that_is_cut_within_events_has_all_events_once(engine: Engine, task: str, size: int) -> None:
    left = [3]

    def cut(seen: bytes) -> int | None:
        start = seen.find(b"\r\n\r\n") if is_stream(seen) else -1
        if start < 0 or len(seen) < start + size or not left[0]:
            return None
        left[0] -= 1
        return start + size

    with Cutter(engine.url, cut) as cutter:
        received, stored = cut_events(engine, cutter, task)
    assert received == stored


@pytest.mark.parametrize("proxy", [False, True])
def test_a_turn_goes_on_when_its_engine_is_killed_in_the_middle(
    running: RunningFleet, fleet: Fleet, user: str, proxy: bool
) -> None:
    engine = fleet.admit(user, proxy=proxy)
    before = set(running.engine_processes())
    received: list[Event] = []
    turn = engine.run("killed", "slowly")
    for event in turn:
        received.append(event)
        if sum(isinstance(one, TextDeltaEvent) for one in received) == 4 and before:
            process = [pid for pid in before if is_of(pid, fleet.engine_record(user).engine_id)]
            os.kill(process[0], signal.SIGKILL)
            before.clear()
    assert any(isinstance(event, TurnResumedEvent) for event in received)
    assert isinstance(received[-1], TurnCompletedEvent)
    assert turn.text_so_far == received[-1].text
    assert received[-1].text.endswith("sixteen")
    assert [event.ts for event in received] == sorted({event.ts for event in received})
    assert turn.turn_id is not None
    assert received == list(engine.follow("killed", turn.turn_id))


def is_of(pid: int, engine_id: str) -> bool:
    with open(f"/proc/{pid}/environ", "rb") as environment:
        return engine_id.encode() in environment.read()


def test_a_loop_that_is_left_does_not_cancel_and_can_be_entered_again(engine: Engine, task: str) -> None:
    turn = engine.run(task, "slowly")
    first = []
    for event in turn:
        first.append(event)
        if isinstance(event, TextDeltaEvent):
            break
    assert turn._stream is None, "the connection is closed"
    assert not turn.ended
    rest = list(turn)
    assert isinstance(rest[-1], TurnCompletedEvent)
    assert turn.turn_id is not None
    assert first + rest == list(engine.follow(task, turn.turn_id))


def test_an_asynchronous_loop_that_is_left_can_be_entered_again(running: RunningFleet, task: str) -> None:
    async def session() -> None:
        address, key = running.admit("ada")
        async with AsyncEngine(address, key) as engine, engine.run(task, "slowly") as turn:
            received = []
            for _ in range(4):
                async for event in turn:
                    received.append(event)
                    if isinstance(event, TextDeltaEvent):
                        break
                await anyio.lowlevel.checkpoint()
            received += [event async for event in turn]
            assert turn.turn_id is not None
            assert received == [event async for event in engine.follow(task, turn.turn_id)]

    anyio.run(session)


def test_a_turn_is_cancelled(engine: Engine, task: str) -> None:
    turn = engine.run(task, "slowly")
    for event in turn:
        if isinstance(event, TextDeltaEvent):
            turn.cancel()
            break
    assert isinstance(list(turn)[-1], TurnCancelledEvent)
    with pytest.raises(TurnCancelledError):
        turn.result()
    turn.cancel()


def test_cancelling_a_queued_turn_leaves_the_running_one(engine: Engine, task: str) -> None:
    running = engine.run(task, "slowly").start()
    queued = engine.run(task, "then this", on_busy="queue")
    queued.cancel()
    with pytest.raises(TurnCancelledError):
        queued.result()
    assert running.text().endswith("sixteen")


def test_a_busy_task_refuses_queues_and_steers(engine: Engine, task: str) -> None:
    with engine.run(task, "slowly") as running:
        with pytest.raises(errors.TaskBusyError):
            engine.run(task, "Hello").start()
        queued = engine.run(task, "and then", on_busy="queue").start()
        steered = list(engine.run(task, "faster", on_busy="steer"))
        assert isinstance(steered[0], BusyUpdateEvent)
        assert steered[0].turn_id == steered[-1].turn_id == list(running)[-1].turn_id
        updates = [event for event in queued if isinstance(event, BusyUpdateEvent)]
        assert updates[0].status == "queued"
        assert queued.text() == "You said: and then"


def test_a_queued_turn_whose_stream_is_cut_is_joined_again(engine: Engine, task: str) -> None:
    running = engine.run(task, "slowly").start()
    left = [3]

    def cut(seen: bytes) -> int | None:
        at = after_events(seen, 1)
        if at is not None and left[0] and b"busy_update" in seen:
            left[0] -= 1
            return at
        return None

    with Cutter(engine.url, cut) as cutter:
        with Engine(cutter.url, engine._connection.endpoint.headers["X-Engine-Key"]) as through:
            turn = through.run(task, "and then", on_busy="queue")
            assert turn.text() == "You said: and then"
        assert left == [0]
    assert running.text().endswith("sixteen")
    assert len(engine.tasks.turns(task).turns) == 2


def test_a_message_that_is_sent_twice_begins_one_turn(engine: Engine, task: str) -> None:
    first = engine.run(task, "Hello", client_request_id="once").result()
    second = engine.run(task, "Hello", client_request_id="once").result()
    assert first == second
    assert len(engine.tasks.turns(task).turns) == 1


def test_a_background_turn_is_followed(engine: Engine, task: str) -> None:
    begun = engine.start(task, "slowly")
    assert begun.status == "started"
    queued = engine.start(task, "and then", on_busy="queue")
    assert engine.follow(task, queued.turn_id).text() == "You said: and then"
    assert engine.follow(task, begun.turn_id).text().endswith("sixteen")
    with pytest.raises(TurnLostError):
        engine.follow(task, "turn_00000000000000000000000000000000").result()


def test_a_permission_is_given_by_callback(engine: Engine, task: str) -> None:
    requests: list[Request] = []

    def decide(request: Request) -> Reply:
        requests.append(request)
        return Decision("allow_once", input={"path": "b.txt", "content": "änders"}, message="Lieber so.")

    events = list(engine.run(task, "write a.txt: anders", on_request=decide))
    assert [request.kind for request in requests] == ["permission"]
    assert requests[0].approval is not None
    assert requests[0].approval.tool == "write_file"
    assert requests[0].approval.input == {"path": "a.txt", "content": "anders"}
    assert any(isinstance(event, ApprovalResolvedEvent) for event in events)
    assert engine.download("b.txt").read() == "änders".encode()


def test_a_permission_is_refused_with_a_word(engine: Engine, task: str) -> None:
    answer = Answer("no", feedback="Nicht jetzt.")
    events = list(engine.run(task, "write c.txt: nein", on_request=lambda _: answer))
    results = [event for event in events if isinstance(event, ToolResultEvent)]
    assert results[0].error is not None
    assert "Nicht jetzt." in results[0].error


def test_a_question_is_answered_by_an_asynchronous_callback(running: RunningFleet, task: str) -> None:
    async def answer(request: Request) -> Reply:
        await anyio.lowlevel.checkpoint()
        assert request.question == "Welche Farbe, 色?"
        return request.options[2]

    async def session() -> None:
        address, key = running.admit("ada")
        async with AsyncEngine(address, key) as engine:
            assert await engine.run(task, "ask me", on_request=answer).text() == "You like 青."

    anyio.run(session)


def test_a_request_is_asked_once_although_each_event_is_cut_off(engine: Engine, task: str) -> None:
    asked: list[str] = []

    def answer(request: Request) -> Reply:
        asked.append(request.request_id)
        return "rot"

    with (
        Cutter(engine.url, lambda seen: after_events(seen, 1)) as cutter,
        Engine(cutter.url, engine._connection.endpoint.headers["X-Engine-Key"]) as cut,
    ):
        turn = cut.run(task, "ask me", on_request=answer)
        received = list(turn)
    assert len(asked) == 1
    assert turn.turn_id is not None
    assert received == list(engine.follow(task, turn.turn_id, on_request=answer))
    assert len(asked) == 1, "what was answered is not asked again"


def test_a_request_that_is_left_is_answered_by_somebody_else(engine: Engine, task: str) -> None:
    def somebody() -> None:
        eventually("a request waits", lambda: bool(requests_of(engine, task)))
        engine.hitl.respond(task, requests_of(engine, task)[0], "grün")

    person = threading.Thread(target=somebody)
    person.start()
    events = list(engine.run(task, "ask me", on_request=lambda _: None))
    person.join()
    assert [event.answer for event in events if isinstance(event, HitlResolvedEvent)] == ["grün"]
    request = next(event for event in events if isinstance(event, HitlRequestEvent))
    with pytest.raises(errors.HitlNotPendingError):
        engine.hitl.respond(task, request.request_id, "rot")


def requests_of(engine: Engine, task: str) -> list[str]:
    return [request.request_id for request in engine.hitl.pending().pending if request.task_id == task]


def test_a_failed_turn_tells_why(engine: Engine, task: str) -> None:
    turn = engine.run(task, "fail")
    assert isinstance(list(turn)[-1], ErrorEvent)
    with pytest.raises(TurnFailedError) as caught:
        turn.text()
    assert caught.value.code == "PROVIDER_REFUSED"
    assert not caught.value.retryable


def test_typed_errors_of_the_engine(engine: Engine, task: str) -> None:
    with pytest.raises(errors.InvalidRequestError) as invalid:
        engine.run(task, " ").result()
    assert "message" in invalid.value.message
    with pytest.raises(errors.TaskNotFoundError):
        engine.cancel(task)
    with pytest.raises(errors.MessageNotFoundError):
        engine.run(task, "Hello").text()
        engine.run(task, "Hello", edit_message_id="msg_unknown").text()
    with pytest.raises(errors.MethodNotFoundError):
        engine.rpc("tool.unknown")
    with pytest.raises(errors.SkillNotFoundError):
        engine.skills.get("unknown")
    with pytest.raises(TypeError, match="on_bussy"):
        engine.run(task, "Hello", on_bussy="queue")  # type: ignore[call-arg]
    with (
        Engine("http://127.0.0.1:9", "sk-svc-x", retry=RetryPolicy(deadline=0.5)) as nobody,
        pytest.raises(NetworkError),
    ):
        nobody.cancel(task)
