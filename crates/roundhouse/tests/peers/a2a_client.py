"""Sends messages to an engine with the official SDK of the Agent2Agent protocol: `a2a_client.py SCENARIO URL KEY`. Prints
one JSON object per line."""

import asyncio
import json
import sys
import uuid

import httpx
from a2a.client import A2ACardResolver, ClientConfig, ClientFactory
from a2a.types import (
    CancelTaskRequest,
    GetTaskRequest,
    ListTasksRequest,
    Message,
    Part,
    Role,
    SendMessageRequest,
    SubscribeToTaskRequest,
    TaskPushNotificationConfig,
    TaskState,
)
from google.protobuf.json_format import MessageToDict

url, key = sys.argv[2:4]


def show(**fields):
    print(json.dumps(fields, ensure_ascii=False), flush=True)


async def pressed_enter():
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)


class Connection:
    """A client that has discovered the agent."""

    def __init__(self, streaming=True, key=key):
        self.http = httpx.AsyncClient(headers={"Authorization": f"Bearer {key}"}, timeout=60)
        self.streaming = streaming

    async def __aenter__(self):
        self.card = await A2ACardResolver(self.http, url).get_agent_card()
        config = ClientConfig(httpx_client=self.http, streaming=self.streaming)
        self.client = ClientFactory(config).create(self.card)
        return self

    async def __aexit__(self, *_error):
        await self.http.aclose()

    async def send(self, *parts, context="", task="", message_id=None, known=None):
        message = Message(
            message_id=message_id or uuid.uuid4().hex, role=Role.ROLE_USER, context_id=context, task_id=task,
            parts=[Part(text=part) if isinstance(part, str) else part for part in parts])
        return await follow(self.client.send_message(SendMessageRequest(message=message)), known)


class Known:
    """What is known of a task by what was received."""

    def __init__(self):
        self.task = self.context = self.state = self.text = ""
        self.states, self.question, self.kinds = [], None, []

    def take(self, event):
        kind = event.WhichOneof("payload")
        self.kinds.append(kind)
        status = None
        if kind == "task":
            self.task, self.context = event.task.id, event.task.context_id
            status = event.task.status
            for artifact in event.task.artifacts:
                self.text = "".join(part.text for part in artifact.parts)
        elif kind == "status_update":
            status = event.status_update.status
        elif kind == "artifact_update":
            update = event.artifact_update
            text = "".join(part.text for part in update.artifact.parts)
            self.text = self.text + text if update.append else text
        if status is not None:
            self.state = TaskState.Name(status.state).removeprefix("TASK_STATE_").lower()
            if self.states[-1:] != [self.state]:
                self.states.append(self.state)
            if self.state == "input_required":
                self.question = MessageToDict(status.message)

    def shown(self):
        return {"task": self.task, "context": self.context, "states": self.states, "text": self.text}


async def follow(events, known=None):
    known = known or Known()
    async for event in events:
        known.take(event)
    return known


async def chat():
    async with Connection() as agent:
        show(card=MessageToDict(agent.card))
        first = await agent.send("Wer bist du?", context="täsk", message_id="m1")
        show(**first.shown(), kinds=first.kinds[:1])
        again = await agent.send("Wer bist du?", context="täsk", message_id="m1")
        show(same=again.task == first.task, text=again.text)
        follows = await agent.send("Und?", context="täsk")
        show(**follows.shown())
        fresh = await agent.send("Neu.")
        show(**fresh.shown())
        task = await agent.client.get_task(GetTaskRequest(id=first.task))
        show(state=TaskState.Name(task.status.state), text=task.artifacts[0].parts[0].text, timed=task.status.HasField("timestamp"))
        listed = await agent.client.list_tasks(ListTasksRequest(context_id="täsk", page_size=1))
        rest = await agent.client.list_tasks(
            ListTasksRequest(context_id="täsk", page_token=listed.next_page_token, include_artifacts=True))
        everything = await agent.client.list_tasks(ListTasksRequest())
        show(newest=[task.id == follows.task for task in listed.tasks], total=listed.total_size,
             rest=[[task.id == first.task, task.artifacts[0].parts[0].text] for task in rest.tasks],
             last=rest.next_page_token == "", all=[task.context_id for task in everything.tasks])
    async with Connection(streaming=False) as agent:
        whole = await agent.send("Am Stück.")
        show(**whole.shown(), kinds=whole.kinds)


async def permission():
    async with Connection() as agent:
        known = await agent.send("Write.", context="task")
        show(state=known.state, question=known.question)
        waiting = await agent.client.get_task(GetTaskRequest(id=known.task))
        show(waits=TaskState.Name(waiting.status.state))
        # In words.
        known = await agent.send("Yes", task=known.task, message_id="words", known=known)
        show(state=known.state, question=known.question)
        again = await agent.send("Yes", task=known.task, message_id="words")
        show(again=again.state)
        # By data, which names the question.
        part = Part()
        part.data.struct_value.update(
            {"request_id": known.question["messageId"], "answer": "no", "feedback": "Nicht dorthin."})
        known = await agent.send(part, task=known.task, context="task", known=known)
        show(**known.shown())


class Told(Known):
    """Says when the first text has come."""

    def take(self, event):
        had = self.text
        super().take(event)
        if self.text and not had:
            show(began=True)


async def retried():
    """The engine is killed while it waits for the answer, and after it got it; then the answer is sent again."""
    async with Connection() as agent:
        known = await agent.send("Write.", context="task")
        show(state=known.state)
    await pressed_enter()
    async with Connection() as agent:
        waiting = await agent.client.get_task(GetTaskRequest(id=known.task))
        show(waits=TaskState.Name(waiting.status.state))
        try:
            await agent.send("yes", task=known.task, message_id="words")
            show(broken=False)
        except Exception as error:
            show(broken=type(error).__name__)
    await pressed_enter()
    async with Connection() as agent:
        known = await agent.send("yes", task=known.task, message_id="words")
        show(state=known.state, question=known.question)
        known = await agent.send("no", task=known.task, message_id="other words", known=known)
        show(**known.shown())
        again = await agent.send("yes", task=known.task, message_id="words")
        show(**again.shown())


async def killed():
    known = Told()
    try:
        async with Connection() as agent:
            await agent.send("Tell.", context="task", message_id="once", known=known)
        show(broken=False)
    except Exception as error:
        show(broken=type(error).__name__, had=known.text)
    await pressed_enter()
    async with Connection() as agent:
        show(subscribed=True)
        rest = await follow(agent.client.subscribe(SubscribeToTaskRequest(id=known.task)), known)
        show(**rest.shown())
        again = await agent.send("Tell.", context="task", message_id="once")
        show(same=again.task == known.task, text=again.text)


async def cancel():
    async with Connection() as agent:
        sending = asyncio.create_task(agent.send("Think.", context="task"))
        await pressed_enter()
        task = (await agent.client.list_tasks(ListTasksRequest())).tasks[0]
        cancelled = await agent.client.cancel_task(CancelTaskRequest(id=task.id))
        show(cancelled=TaskState.Name(cancelled.status.state), seen=(await sending).state)
        await refused(agent.client.cancel_task(CancelTaskRequest(id=task.id)))
        await refused(follow(agent.client.subscribe(SubscribeToTaskRequest(id=task.id))))
        await refused(agent.send("More.", task=task.id))


async def refused(call):
    try:
        await call
        show(error=None)
    except Exception as error:
        show(error=type(error).__name__, message=str(error))


async def errors():
    async with Connection() as agent:
        client = agent.client
        await refused(client.get_task(GetTaskRequest(id="turn_1")))
        await refused(agent.send("Hi", context="busy"))
        await refused(agent.send(" ", context="blank"))
        await refused(agent.send("Hi", task="turn_1"))
        data = Part()
        data.data.struct_value.update({"a": 1})
        await refused(agent.send(data))
        await refused(client.list_tasks(ListTasksRequest(page_token="turn_1")))
        await refused(client.create_task_push_notification_config(
            TaskPushNotificationConfig(task_id="turn_1", url="https://example.com")))
    try:
        async with Connection(key="sk-svc-wrong"):
            show(refused=False)
    except Exception as error:
        show(refused=getattr(error, "status_code", None))


asyncio.run(globals()[sys.argv[1]]())
