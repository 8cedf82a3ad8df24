"""What an engine remembers across tasks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from .._core.call import Call, given, segment
from ..models import (
    Deleted,
    EpisodeList,
    Fact,
    FactList,
    Imported,
    Knowledge,
    KnowledgeList,
    KnowledgeResults,
    LessonList,
)
from .connection import OpenResponse
from .resource import AsyncResource


class AsyncMemoryResource(AsyncResource):
    """The memory of an engine."""

    async def facts(
        self, *, tag: str | None = None, source: str | None = None, limit: int = 50, offset: int = 0
    ) -> FactList:
        """What the engine knows about its user now, the last said first."""
        query = {"limit": limit, "offset": offset, "tag": tag, "source": source}
        return await self._call(Call("GET", "/memory/facts", FactList, query=query))

    async def fact(self, id: str) -> Fact:
        """A fact with its history."""
        return await self._call(Call("GET", f"/memory/facts/{segment(id)}", Fact))

    async def correct(self, id: str, content: str, *, tags: Sequence[str] | None = None) -> Fact:
        """Replaces a fact by what its user says."""
        body = given(content=content, tags=tags)
        call = Call("PUT", f"/memory/facts/{segment(id)}", Fact, body=body, idempotent=False)
        return await self._call(call)

    async def forget(self, id: str) -> Deleted:
        """Erases a fact and all that it replaced."""
        return await self._call(Call("DELETE", f"/memory/facts/{segment(id)}", Deleted))

    async def save(
        self, content: str, *, tags: Sequence[str] | None = None, supersedes: str | None = None
    ) -> Knowledge:
        """Saves a record of knowledge."""
        body = given(content=content, tags=tags, supersedes=supersedes)
        return await self._call(Call("POST", "/memory/knowledge", Knowledge, body=body))

    async def search(self, query: str, *, limit: int = 10, offset: int = 0) -> KnowledgeResults:
        """What matches, the best first."""
        body = {"query": query, "limit": limit, "offset": offset}
        call = Call("POST", "/memory/knowledge/search", KnowledgeResults, body=body, idempotent=True)
        return await self._call(call)

    async def list(self, *, limit: int = 50, offset: int = 0) -> KnowledgeList:
        """A page of the records of knowledge, the newest first."""
        query = {"limit": limit, "offset": offset}
        return await self._call(Call("GET", "/memory/knowledge", KnowledgeList, query=query))

    async def delete(self, id: str) -> Deleted:
        """Deletes a record of knowledge."""
        return await self._call(Call("DELETE", f"/memory/knowledge/{segment(id)}", Deleted))

    async def episodes(self, *, limit: int = 50, offset: int = 0) -> EpisodeList:
        """A page of the summaries of turns, the newest first."""
        query = {"limit": limit, "offset": offset}
        return await self._call(Call("GET", "/memory/episodes", EpisodeList, query=query))

    async def lessons(self, *, limit: int = 50, offset: int = 0) -> LessonList:
        """A page of what was learned from feedback, the newest first."""
        query = {"limit": limit, "offset": offset}
        return await self._call(Call("GET", "/memory/lessons", LessonList, query=query))

    async def undo_lesson(self, id: str) -> Deleted:
        """Takes a lesson back."""
        return await self._call(Call("DELETE", f"/memory/lessons/{segment(id)}", Deleted))

    async def export(self) -> OpenResponse:
        """The document with the engine's memory, to be read in `chunks()` or by `read()`, and closed."""
        return await self._connection.open(Call[None]("GET", "/memory/export"))

    async def import_(self, document: bytes, *, mode: Literal["merge", "replace"] | None = None) -> Imported:
        """Takes over a document that was exported."""
        headers = {"Content-Type": "application/json"}
        query = {"mode": mode}
        call = Call("POST", "/memory/import", Imported, query=query, raw=document, headers=headers)
        return await self._call(call)
