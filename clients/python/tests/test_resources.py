"""Stories of what else an engine offers."""

from __future__ import annotations

import json

import pytest

from roundhouse_client import Decision, Engine, Fleet, errors, models


def test_conversations(engine: Engine, task: str) -> None:
    for number in range(3):
        engine.run(task, f"Nummer {number} ist schön").text()
    messages = list(engine.messages(task, page_size=2))
    assert [message.role for message in messages] == ["assistant", "user"] * 3
    newest = messages[0].content[0]
    assert isinstance(newest, models.MessageBlockText)
    assert newest.text == "You said: Nummer 2 ist schön"
    engine.tasks.update_conversation(task, title="Nümmern", pinned=True)
    assert engine.tasks.conversation(task).title == "Nümmern"
    assert task in {conversation.task_id for conversation in engine.tasks.conversations(pinned=True)}
    assert engine.tasks.fork(task, f"{task}-2", after=messages[2].message_id).message_count == 4
    assert [turn.state for turn in engine.tasks.turns(task).turns] == ["completed"] * 3
    assert task in {summary.task_id for summary in engine.tasks.list(page_size=1)}
    assert engine.tasks.media(task).media == []
    assert engine.tasks.queue(task).entries == []
    assert engine.tasks.search("schön").results
    engine.tasks.delete(task)
    with pytest.raises(errors.TaskNotFoundError):
        engine.tasks.conversation(task)


def test_working_memory(engine: Engine, task: str) -> None:
    engine.run(task, "Hello").text()
    assert engine.tasks.set_memory(task, "a/ö", {"deep": [1, None]}).memory == {"a/ö": {"deep": [1, None]}}
    assert engine.tasks.delete_memory(task, "a/ö").status == "deleted"
    assert engine.tasks.replace_memory(task, {"b": 2}).memory == {"b": 2}


def test_memory(fleet: Fleet, user: str) -> None:
    engine = fleet.admit(user)
    saved = engine.memory.save("Ada mag grüne Äpfel.", tags=["essen"])
    assert [found.content for found in engine.memory.search("Äpfel").results] == [saved.content]
    corrected = engine.memory.correct(saved.id, "Ada mag rote Äpfel.")
    assert corrected.tags == ["essen"]
    assert [fact.content for fact in engine.memory.facts(tag="essen").facts] == ["Ada mag rote Äpfel."]
    with pytest.raises(errors.FactReplacedError):
        engine.memory.correct(saved.id, "Ada mag gelbe Äpfel.")
    with engine.memory.export() as export:
        document = export.read()
    assert json.loads(document)["version"] == 1
    engine.memory.forget(corrected.id)
    assert engine.memory.list().total == 0
    assert engine.memory.import_(document, mode="merge").status == "imported"
    assert engine.memory.list().total == 2


def test_schedules(engine: Engine, user: str) -> None:
    when = {"cron": "0 8 * * mon-fri", "time_zone": "Europe/Berlin"}
    schedule = engine.schedules.create("Morgens", when, "Guten Morgen", id=user)
    assert engine.schedules.create("Morgens", when, "Guten Morgen", id=user).id == schedule.id
    with pytest.raises(errors.ScheduleExistsError):
        engine.schedules.create("Abends", when, "Guten Abend", id=user)
    assert engine.schedules.update(user, paused=True).state == "paused"
    run = engine.schedules.run(user, client_request_id="now")
    assert run.task_id is not None
    assert run.turn_id is not None
    assert engine.follow(run.task_id, run.turn_id).text() == "You said: Guten Morgen"
    assert user in {schedule.id for schedule in engine.schedules.list().schedules}
    engine.schedules.delete(user)


def test_usage_feedback_and_skills(engine: Engine, task: str) -> None:
    engine.run(task, "Hello").text()
    assert engine.usage(task=task, group_by="day,model").rows
    assert engine.tasks.usage(task).task_id == task
    assert engine.usage_caps().model_dump() is not None
    assert engine.feedback(task, "rating", rating=5).status == "recorded"
    skill = engine.skills.create("reim-auf", description="Reimt", prompt="Reime.")
    assert engine.skills.get("reim-auf") == skill
    with pytest.raises(errors.SkillExistsError):
        engine.skills.create("reim-auf", prompt="Reime.")
    assert "reim-auf" in {skill.name for skill in engine.skills.list().skills}
    engine.skills.delete("reim-auf")
    assert engine.connections.list().connections == []
    assert engine.connections.servers().servers == []
    assert engine.servers.list().model_dump() is not None
    assert "tool.list_files" in {method["method"] for method in engine.rpc("rpc.methods")["methods"]}


def test_what_was_allowed_for_good_is_revoked(engine: Engine, task: str) -> None:
    decision = Decision("allow_task", pattern="notizen/*")
    engine.run(task, "write notizen/a.txt: ja", on_request=lambda _: decision).text()
    grants = [grant for grant in engine.hitl.grants().grants if grant.task_id == task]
    assert [grant.pattern for grant in grants] == ["notizen/*"]
    engine.hitl.revoke(grants[0].id)
    assert task not in {grant.task_id for grant in engine.hitl.grants().grants}
