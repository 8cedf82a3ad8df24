"""What else turns do, beside the stories of `stories.md`."""

from __future__ import annotations

import threading

import anyio
import anyio.lowlevel
import pytest

from clients import Client
from cutting import Cutter, after_events, is_stream, stored, through
from fleet import Fleet as RunningFleet
from fleet import eventually
from roundhouse_client import (
    AsyncEngine,
    Engine,
    Reply,
    Request,
    TurnFailedError,
    TurnLostError,
    errors,
)
from roundhouse_client.events import (
    BusyUpdateEvent,
    ErrorEvent,
    HitlRequestEvent,
    HitlResolvedEvent,
    TextDeltaEvent,
    ToolCallEvent,
    TurnCompletedEvent,
    TurnStartedEvent,
)


def test_the_events_of_a_turn_in_order(engine: Engine, task: str) -> None:
    events = list(engine.run(task, "remember colour = grün"))
    assert isinstance(events[0], TurnStartedEvent)
    assert isinstance(events[-1], TurnCompletedEvent)
    assert events[-1].text == "Noted: colour is grün."
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


@pytest.mark.parametrize("size", [1, 40, 150, 333, 470, 611])
def test_a_stream_that_is_cut_within_events_has_all_events_once(
    client: Client, engine: Engine, task: str, size: int
) -> None:
    left = [3]

    def cut(seen: bytes) -> int | None:
        start = seen.find(b"\r\n\r\n") if is_stream(seen) else -1
        if start < 0 or len(seen) < start + size or not left[0]:
            return None
        left[0] -= 1
        return start + size

    with Cutter(engine.url, cut) as cutter, through(cutter, engine, client) as cut_engine:
        turn = cut_engine.run(task, "remember colour = blau")
        received = list(turn)
    assert received == stored(engine, turn)


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


def test_a_queued_turn_whose_stream_is_cut_is_joined_again(client: Client, engine: Engine, task: str) -> None:
    running = engine.run(task, "slowly").start()
    left = [3]

    def cut(seen: bytes) -> int | None:
        at = after_events(seen, 1)
        if at is not None and left[0] and b"busy_update" in seen:
            left[0] -= 1
            return at
        return None

    with Cutter(engine.url, cut) as cutter:
        with through(cutter, engine, client) as cut_engine:
            turn = cut_engine.run(task, "and then", on_busy="queue")
            assert turn.text() == "You said: and then"
        assert left == [0]
    assert running.text().endswith("nine ten")
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
    assert engine.follow(task, begun.turn_id).text().endswith("nine ten")
    with pytest.raises(TurnLostError):
        engine.follow(task, "turn_00000000000000000000000000000000").result()


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


def test_an_option_that_does_not_exist_is_refused(engine: Engine, task: str) -> None:
    with pytest.raises(TypeError, match="on_bussy"):
        engine.run(task, "Hello", on_bussy="queue")  # type: ignore[call-arg]
