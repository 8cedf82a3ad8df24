"""The stories of `stories.md` about turns: lost connections, people, and cancellation."""

from __future__ import annotations

import httpx
import pytest

from clients import Client
from cutting import Cutter, after_events, key_of, once_after, stored, through
from fickle import fickle_model
from fleet import Fleet as RunningFleet
from roundhouse_client import (
    Answer,
    Decision,
    Engine,
    Event,
    NetworkError,
    Reply,
    Request,
    RetryPolicy,
    Turn,
    TurnCancelledError,
    errors,
    models,
)
from roundhouse_client.events import (
    ApprovalResolvedEvent,
    TextDeltaEvent,
    ToolResultEvent,
    TurnCancelledEvent,
    TurnCompletedEvent,
    TurnRetryingEvent,
)


def test_cut_once_after_any_event(client: Client, engine: Engine, task: str) -> None:
    count = len(list(engine.run(f"{task}-uncut", "remember colour = blau")))
    assert count > 8
    # Deltas of one millisecond are one event, so turns differ a little in their number of events.
    for number in range(count + 1):
        with Cutter(engine.url, once_after(number)) as cutter, through(cutter, engine, client) as cut:
            turn = cut.run(f"{task}-{number}", "remember colour = blau")
            received = list(turn)
        assert received == stored(engine, turn), f"cut after {number} events"
        assert len({event.ts for event in received}) == len(received), "none came twice"
        assert turn.text() == "Noted: colour is blau."
        assert cutter.cuts == (1 if number <= len(received) else 0)
        assert len(engine.tasks.turns(turn.task_id).turns) == 1, "the message was not sent twice"


def test_cut_after_every_event(client: Client, engine: Engine, task: str) -> None:
    with (
        Cutter(engine.url, lambda seen: after_events(seen, 1)) as cutter,
        through(cutter, engine, client) as cut,
    ):
        turn = cut.run(task, "remember colour = blau")
        received = list(turn)
    assert received == stored(engine, turn)
    assert len({event.ts for event in received}) == len(received)
    assert turn.text() == "Noted: colour is blau."
    assert cutter.cuts >= len(received) - 1


def test_repeated_step_is_void(client: Client) -> None:
    with fickle_model() as model:
        variables = {"LLM_PROVIDER": "openai-compatible", "LLM_MODEL": "m", "LLM_BASE_URL": model}
        with (
            RunningFleet(**variables, LLM_API_KEY="provider-key") as running,
            client.fleet(running.url, running.key) as fleet,
        ):
            turn = fleet.admit("ada").run("fickle", "Count")
            shown: list[Event] = []
            voided: list[Event] = []
            for event in turn:
                if isinstance(event, TurnRetryingEvent):
                    voided += [earlier for earlier in shown if event.voids(earlier)]
                    shown = [earlier for earlier in shown if not event.voids(earlier)]
                shown.append(event)
    assert "".join(event.text for event in voided if isinstance(event, TextDeltaEvent)) == "eins zwei drei "
    assert "".join(event.text for event in shown if isinstance(event, TextDeltaEvent)) == "uno dos"
    assert isinstance(shown[-1], TurnCompletedEvent)
    assert turn.text_so_far == turn.text() == "uno dos"


def test_question_answered(engine: Engine, task: str) -> None:
    def answer(request: Request) -> Reply:
        assert (request.kind, request.question) == ("question", "Welche Farbe, 色?")
        assert request.options == ("rot", "grün", "青")
        return "зелёный"

    assert engine.run(task, "ask me", on_request=answer).text() == "You like зелёный."


def test_permission_allowed(engine: Engine, task: str) -> None:
    requests: list[Request] = []

    def allow(request: Request) -> Reply:
        requests.append(request)
        return True

    assert engine.run(task, f"write {task}.txt: ja", on_request=allow).text().startswith("Done: ")
    (request,) = requests
    assert request.kind == "permission"
    assert request.approval is not None
    assert request.approval.tool == "write_file"
    assert isinstance(request.approval.preview, models.ApprovalPreviewDiff)
    assert engine.download(f"{task}.txt").read() == b"ja"


def test_permission_denied(engine: Engine, task: str) -> None:
    answer = Answer("no", feedback="Nicht jetzt.")
    events = list(engine.run(task, f"write {task}.txt: nein", on_request=lambda _: answer))
    (result,) = (event for event in events if isinstance(event, ToolResultEvent))
    assert result.error is not None
    assert "Nicht jetzt." in result.error
    with pytest.raises(errors.FileNotFoundError):
        engine.download(f"{task}.txt").read()


def test_permission_with_edited_input(engine: Engine, task: str) -> None:
    def decide(request: Request) -> Reply:
        assert request.approval is not None
        assert request.approval.input == {"path": f"{task}.txt", "content": "anders"}
        return Decision("allow_once", input={"path": f"{task}-2.txt", "content": "änders 🍐"}, message="So.")

    events = list(engine.run(task, f"write {task}.txt: anders", on_request=decide))
    (resolved,) = (event for event in events if isinstance(event, ApprovalResolvedEvent))
    assert resolved.decision == "allow_once"
    assert engine.download(f"{task}-2.txt").read() == "änders 🍐".encode()
    with pytest.raises(errors.FileNotFoundError):
        engine.download(f"{task}.txt").read()


def test_asked_once_over_cut_connections(client: Client, engine: Engine, task: str) -> None:
    asked: list[str] = []

    def answer(request: Request) -> Reply:
        asked.append(request.request_id)
        return "rot"

    with (
        Cutter(engine.url, lambda seen: after_events(seen, 1)) as cutter,
        through(cutter, engine, client) as cut,
    ):
        turn = cut.run(task, "ask me", on_request=answer)
        received = list(turn)
    assert turn.text() == "You like rot."
    assert len(asked) == 1
    assert turn.turn_id is not None
    assert received == list(engine.follow(task, turn.turn_id, on_request=answer))
    assert len(asked) == 1, "what was answered is not asked again"


def until_text(turn: Turn) -> None:
    """Reads a turn until it says something."""
    for event in turn:
        if isinstance(event, TextDeltaEvent):
            return


def test_turn_cancelled(engine: Engine, task: str) -> None:
    turn = engine.run(task, "slowly")
    until_text(turn)
    turn.cancel()
    assert isinstance(list(turn)[-1], TurnCancelledEvent)
    with pytest.raises(TurnCancelledError):
        turn.result()
    turn.cancel()
    assert turn.turn_id is not None
    assert engine.tasks.turn(task, turn.turn_id).state == "cancelled"


def test_queued_message_cancelled(engine: Engine, task: str) -> None:
    running = engine.run(task, "slowly").start()
    queued = engine.run(task, "then this", on_busy="queue").start()
    queued.cancel()
    with pytest.raises(TurnCancelledError):
        queued.result()
    assert running.text().endswith("nine ten")


def test_late_cancel_spares_the_next_turn(client: Client, engine: Engine, task: str) -> None:
    following: list[Turn] = []

    def hold(request: httpx.Request) -> None:
        # The cancellation is on its way until its turn has ended and the next one runs.
        if request.url.path == "/execute/cancel":
            assert turn.turn_id is not None
            engine.follow(task, turn.turn_id).text()
            following.append(engine.run(task, "slowly"))
            until_text(following[-1])

    with (
        client.http(before=hold) as http,
        client.engine(engine.url, key_of(engine), http=http) as late,
    ):
        turn = late.run(task, "slowly")
        until_text(turn)
        turn.cancel()
    (other,) = following
    with pytest.raises(errors.TaskNotRunningError):
        engine.cancel(task, turn_id=turn.turn_id)
    with pytest.raises(errors.TaskNotRunningError):
        engine.steer(task, "In French.", turn_id=turn.turn_id)
    assert other.text().endswith("nine ten")
    assert [record.state for record in engine.tasks.turns(task).turns] == ["completed", "completed"]


def test_cancelled_before_its_first_event(engine: Engine, task: str) -> None:
    turn = engine.run(task, "slowly").start()
    turn.close()
    assert not turn.turn_id
    turn.cancel()
    with pytest.raises(TurnCancelledError):
        turn.result()
    (record,) = engine.tasks.turns(task).turns
    assert (record.turn_id, record.state) == (turn.turn_id, "cancelled")
    engine.run(f"{task}-unsent", "Hello").cancel()
    with pytest.raises(errors.TaskNotFoundError):
        engine.tasks.turns(f"{task}-unsent")


def test_typed_errors_of_the_engine(client: Client, engine: Engine, task: str) -> None:
    with pytest.raises(errors.InvalidRequestError) as invalid:
        engine.run(task, " ").result()
    assert (invalid.value.code, invalid.value.status) == ("INVALID_REQUEST", 400)
    assert "message" in invalid.value.message
    assert invalid.value.request_id
    with pytest.raises(errors.TaskNotFoundError):
        engine.cancel(task)
    with engine.run(task, "slowly") as running:
        with pytest.raises(errors.TaskBusyError) as busy:
            engine.run(task, "Hello").start()
        assert (busy.value.code, busy.value.status) == ("TASK_BUSY", 409)
        with pytest.raises(errors.HitlNotPendingError):
            engine.hitl.respond(task, "request_unknown", "yes")
        running.cancel()
    with pytest.raises(errors.MessageNotFoundError):
        engine.run(task, "Hello", edit_message_id="msg_unknown").text()
    with pytest.raises(errors.MethodNotFoundError):
        engine.rpc("tool.unknown")
    with pytest.raises(errors.SkillNotFoundError):
        engine.skills.get("unknown")
    with (
        client.engine("http://127.0.0.1:9", "sk-svc-x", retry=RetryPolicy(deadline=0.5)) as nobody,
        pytest.raises(NetworkError),
    ):
        nobody.cancel(task)
