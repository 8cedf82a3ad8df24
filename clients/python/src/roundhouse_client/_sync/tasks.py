# Written by `generate` from `_async`; do not edit.
"""Tasks: conversations, their turns, queues and working memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from .._core.call import Call, QueryValue, given, segment
from ..models import (
    Conversation,
    ConversationHits,
    ConversationList,
    ConversationMessage,
    ConversationMessages,
    Deleted,
    TaskList,
    TaskMedia,
    TaskMemory,
    TaskQueue,
    TaskSummary,
    TaskUsage,
    TurnList,
    TurnRecord,
)
from .resource import Resource
from .transfers import Download


class TasksResource(Resource):
    """The tasks of an engine."""

    def list(self, *, page_size: int = 50) -> Iterator[TaskSummary]:
        """All tasks, the most recently changed first. Pages are read as they are needed."""
        offset = 0
        while True:
            query = {"limit": page_size, "offset": offset}
            page = self._call(Call("GET", "/tasks", TaskList, query=query))
            for task in page.tasks:
                yield task
            offset += len(page.tasks)
            if not page.tasks or offset >= page.total:
                return

    def conversations(
        self, *, archived: bool | None = None, pinned: bool | None = None, page_size: int = 50
    ) -> Iterator[Conversation]:
        """All tasks with their titles and marks, the most recently changed first."""
        after: str | None = None
        while True:
            query: dict[str, QueryValue] = {"limit": page_size, "after": after}
            query.update(archived=archived, pinned=pinned)
            page = self._call(Call("GET", "/conversations", ConversationList, query=query))
            for conversation in page.conversations:
                yield conversation
            if page.next is None:
                return
            after = page.next

    def search(self, query: str, *, limit: int = 20) -> ConversationHits:
        """The messages that match, the best first."""
        parameters: dict[str, QueryValue] = {"q": query, "limit": limit}
        return self._call(Call("GET", "/conversations/search", ConversationHits, query=parameters))

    def conversation(self, task: str) -> Conversation:
        """The title and the marks of a task."""
        return self._call(Call("GET", f"/tasks/{segment(task)}/conversation", Conversation))

    def update_conversation(self, task: str, **changes: Any) -> Conversation:
        """Changes `title`, `metadata`, `pinned` or `archived`; a title of `None` removes it."""
        path = f"/tasks/{segment(task)}/conversation"
        return self._call(Call("PATCH", path, Conversation, body=changes, idempotent=True))

    def messages(self, task: str, *, page_size: int = 50) -> Iterator[ConversationMessage]:
        """All messages, the newest first. Pages are read as they are needed."""
        before: str | None = None
        while True:
            page = self.message_page(task, limit=page_size, before=before)
            for message in reversed(page.messages):
                yield message
            if not page.has_older:
                return
            before = page.messages[0].message_id

    def message_page(
        self, task: str, *, limit: int = 50, before: str | None = None, after: str | None = None
    ) -> ConversationMessages:
        """A page of the messages, the oldest first: the newest, or those before or after one."""
        query = {"limit": limit, "before": before, "after": after}
        path = f"/tasks/{segment(task)}/messages"
        return self._call(Call("GET", path, ConversationMessages, query=query))

    def delete(self, task: str) -> Deleted:
        """Deletes a task with its messages."""
        return self._call(Call("DELETE", f"/tasks/{segment(task)}", Deleted))

    def fork(
        self, task: str, new_task: str, *, after: str | None = None, title: str | None = None
    ) -> Conversation:
        """Makes a task with a copy of the conversation up to the message `after`."""
        body = given(task_id=new_task, after=after, title=title)
        path = f"/tasks/{segment(task)}/fork"
        return self._call(Call("POST", path, Conversation, body=body, idempotent=True))

    def turns(self, task: str, *, limit: int = 50, before: str | None = None) -> TurnList:
        """A page of the turns, the newest first."""
        query = {"limit": limit, "before": before}
        return self._call(Call("GET", f"/tasks/{segment(task)}/turns", TurnList, query=query))

    def turn(self, task: str, turn_id: str) -> TurnRecord:
        """The state of a turn; with its text if it has completed."""
        return self._call(Call("GET", f"/tasks/{segment(task)}/turns/{segment(turn_id)}", TurnRecord))

    def queue(self, task: str) -> TaskQueue:
        """The messages that wait for their turns."""
        return self._call(Call("GET", f"/tasks/{segment(task)}/queue", TaskQueue))

    def memory(self, task: str) -> TaskMemory:
        """The working memory."""
        return self._call(Call("GET", f"/tasks/{segment(task)}/memory", TaskMemory))

    def set_memory(self, task: str, key: str, value: Any) -> TaskMemory:
        """Sets a key of the working memory."""
        path = f"/tasks/{segment(task)}/memory/{segment(key)}"
        return self._call(Call("PUT", path, TaskMemory, body={"value": value}))

    def delete_memory(self, task: str, key: str) -> Deleted:
        """Removes a key of the working memory."""
        return self._call(Call("DELETE", f"/tasks/{segment(task)}/memory/{segment(key)}", Deleted))

    def replace_memory(self, task: str, memory: Mapping[str, Any]) -> TaskMemory:
        """Replaces the whole working memory."""
        path = f"/tasks/{segment(task)}/memory"
        return self._call(Call("PUT", path, TaskMemory, body={"memory": memory}))

    def usage(self, task: str) -> TaskUsage:
        """The usage of a task."""
        return self._call(Call("GET", f"/tasks/{segment(task)}/usage", TaskUsage))

    def media(self, task: str) -> TaskMedia:
        """The files that are attached to the messages."""
        return self._call(Call("GET", f"/tasks/{segment(task)}/media", TaskMedia))

    def download_media(self, task: str, hash: str) -> Download:
        """An attached file."""
        return Download(self._connection, f"/tasks/{segment(task)}/media/{segment(hash)}")
