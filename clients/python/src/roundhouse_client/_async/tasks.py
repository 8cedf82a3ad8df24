"""Tasks: conversations, their turns, queues and working memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
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
from .resource import AsyncResource
from .transfers import AsyncDownload


class AsyncTasksResource(AsyncResource):
    """The tasks of an engine."""

    async def list(self, *, page_size: int = 50) -> AsyncIterator[TaskSummary]:
        """All tasks, the most recently changed first. Pages are read as they are needed."""
        offset = 0
        while True:
            query = {"limit": page_size, "offset": offset}
            page = await self._call(Call("GET", "/tasks", TaskList, query=query))
            for task in page.tasks:
                yield task
            offset += len(page.tasks)
            if not page.tasks or offset >= page.total:
                return

    async def conversations(
        self, *, archived: bool | None = None, pinned: bool | None = None, page_size: int = 50
    ) -> AsyncIterator[Conversation]:
        """All tasks with their titles and marks, the most recently changed first."""
        after: str | None = None
        while True:
            query: dict[str, QueryValue] = {"limit": page_size, "after": after}
            query.update(archived=archived, pinned=pinned)
            page = await self._call(Call("GET", "/conversations", ConversationList, query=query))
            for conversation in page.conversations:
                yield conversation
            if page.next is None:
                return
            after = page.next

    async def search(self, query: str, *, limit: int = 20) -> ConversationHits:
        """The messages that match, the best first."""
        parameters: dict[str, QueryValue] = {"q": query, "limit": limit}
        return await self._call(Call("GET", "/conversations/search", ConversationHits, query=parameters))

    async def conversation(self, task: str) -> Conversation:
        """The title and the marks of a task."""
        return await self._call(Call("GET", f"/tasks/{segment(task)}/conversation", Conversation))

    async def update_conversation(self, task: str, **changes: Any) -> Conversation:
        """Changes `title`, `metadata`, `pinned` or `archived`; a title of `None` removes it."""
        path = f"/tasks/{segment(task)}/conversation"
        return await self._call(Call("PATCH", path, Conversation, body=changes, idempotent=True))

    async def messages(self, task: str, *, page_size: int = 50) -> AsyncIterator[ConversationMessage]:
        """All messages, the newest first. Pages are read as they are needed."""
        before: str | None = None
        while True:
            page = await self.message_page(task, limit=page_size, before=before)
            for message in reversed(page.messages):
                yield message
            if not page.has_older:
                return
            before = page.messages[0].message_id

    async def message_page(
        self, task: str, *, limit: int = 50, before: str | None = None, after: str | None = None
    ) -> ConversationMessages:
        """A page of the messages, the oldest first: the newest, or those before or after one."""
        query = {"limit": limit, "before": before, "after": after}
        path = f"/tasks/{segment(task)}/messages"
        return await self._call(Call("GET", path, ConversationMessages, query=query))

    async def delete(self, task: str) -> Deleted:
        """Deletes a task with its messages."""
        return await self._call(Call("DELETE", f"/tasks/{segment(task)}", Deleted))

    async def fork(
        self, task: str, new_task: str, *, after: str | None = None, title: str | None = None
    ) -> Conversation:
        """Makes a task with a copy of the conversation up to the message `after`."""
        body = given(task_id=new_task, after=after, title=title)
        path = f"/tasks/{segment(task)}/fork"
        return await self._call(Call("POST", path, Conversation, body=body, idempotent=True))

    async def turns(self, task: str, *, limit: int = 50, before: str | None = None) -> TurnList:
        """A page of the turns, the newest first."""
        query = {"limit": limit, "before": before}
        return await self._call(Call("GET", f"/tasks/{segment(task)}/turns", TurnList, query=query))

    async def turn(self, task: str, turn_id: str) -> TurnRecord:
        """The state of a turn; with its text if it has completed."""
        return await self._call(Call("GET", f"/tasks/{segment(task)}/turns/{segment(turn_id)}", TurnRecord))

    async def queue(self, task: str) -> TaskQueue:
        """The messages that wait for their turns."""
        return await self._call(Call("GET", f"/tasks/{segment(task)}/queue", TaskQueue))

    async def memory(self, task: str) -> TaskMemory:
        """The working memory."""
        return await self._call(Call("GET", f"/tasks/{segment(task)}/memory", TaskMemory))

    async def set_memory(self, task: str, key: str, value: Any) -> TaskMemory:
        """Sets a key of the working memory."""
        path = f"/tasks/{segment(task)}/memory/{segment(key)}"
        return await self._call(Call("PUT", path, TaskMemory, body={"value": value}))

    async def delete_memory(self, task: str, key: str) -> Deleted:
        """Removes a key of the working memory."""
        return await self._call(Call("DELETE", f"/tasks/{segment(task)}/memory/{segment(key)}", Deleted))

    async def replace_memory(self, task: str, memory: Mapping[str, Any]) -> TaskMemory:
        """Replaces the whole working memory."""
        path = f"/tasks/{segment(task)}/memory"
        return await self._call(Call("PUT", path, TaskMemory, body={"memory": memory}))

    async def usage(self, task: str) -> TaskUsage:
        """The usage of a task."""
        return await self._call(Call("GET", f"/tasks/{segment(task)}/usage", TaskUsage))

    async def media(self, task: str) -> TaskMedia:
        """The files that are attached to the messages."""
        return await self._call(Call("GET", f"/tasks/{segment(task)}/media", TaskMedia))

    def download_media(self, task: str, hash: str) -> AsyncDownload:
        """An attached file."""
        return AsyncDownload(self._connection, f"/tasks/{segment(task)}/media/{segment(hash)}")
