"""A user's engine."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from datetime import date
from types import TracebackType
from typing import Any, Literal

import httpx
from typing_extensions import Self, Unpack

from .._core.call import Call, file_path, given
from .._core.endpoint import Endpoint
from .._core.execute import TurnOptions, background_call, cancel_call, execute_call, steer_call
from .._core.retry import RetryPolicy
from .._core.transfers import CHUNK_BYTES, Content, file_of, info_call
from .._core.turn import TurnState
from ..models import (
    BackgroundTurn,
    Cancelled,
    ConversationMessage,
    Deleted,
    EngineHealth,
    FeedbackRecorded,
    FileEntry,
    FolderListing,
    Steered,
    UploadedFile,
    UsageCaps,
    UsageReport,
)
from ..options import AsyncRequestHandler
from . import transfers
from .connection import AsyncConnection, new_http_client
from .connections import AsyncConnectionsResource, AsyncServersResource
from .memory import AsyncMemoryResource
from .people import AsyncHitlResource
from .schedules import AsyncSchedulesResource
from .skills import AsyncSkillsResource
from .tasks import AsyncTasksResource
from .transfers import AsyncDownload
from .turn import AsyncTurn


class AsyncEngine:
    """A user's engine.

    One from `AsyncFleet.admit` admits its user again by itself when the engine is asleep, has moved or has
    another key. One that is made from an address and a key only has these. With a browser `token` in place of
    the key, the address may also be that of the orchestrator's proxy to the engine.
    """

    def __init__(
        self,
        url: str,
        key: str | None = None,
        *,
        token: str | None = None,
        retry: RetryPolicy | None = None,
        http: httpx.AsyncClient | None = None,
    ) -> None:
        if key is not None and token is None:
            endpoint = Endpoint.engine(url, key)
        elif token is not None and key is None:
            endpoint = Endpoint.page(url, token)
        else:
            raise ValueError("an engine is called with its key or with a browser token")
        self._set_up(
            AsyncConnection(http or new_http_client(), endpoint, retry or RetryPolicy()), http is None
        )

    @classmethod
    def _from_connection(cls, connection: AsyncConnection) -> Self:
        engine = cls.__new__(cls)
        engine._set_up(connection, owned=False)
        return engine

    def _set_up(self, connection: AsyncConnection, owned: bool) -> None:
        self._connection = connection
        self._owned = owned
        self.tasks = AsyncTasksResource(connection)
        """Conversations, their turns, queues and working memory."""
        self.memory = AsyncMemoryResource(connection)
        """What the engine remembers across tasks."""
        self.schedules = AsyncSchedulesResource(connection)
        """Messages that the engine sends itself at given times."""
        self.skills = AsyncSkillsResource(connection)
        """Skills of the platform and of the user."""
        self.hitl = AsyncHitlResource(connection)
        """What waits for a person, and what was allowed for good."""
        self.connections = AsyncConnectionsResource(connection)
        """Tool servers of the catalog."""
        self.servers = AsyncServersResource(connection)
        """The user's own tool servers."""

    @property
    def url(self) -> str:
        """The address of the engine now."""
        return self._connection.endpoint.url

    def run(
        self,
        task: str,
        message: str = "",
        *,
        on_request: AsyncRequestHandler | None = None,
        **options: Unpack[TurnOptions],
    ) -> AsyncTurn:
        """A turn with this message; it begins when its events or its result are asked for.

        `on_request` is asked what the agent asks a person; what it returns is the answer. Without it,
        requests wait, and the turn with them, until somebody answers, with `hitl.respond` for example.
        """
        call = execute_call(task, message, options)
        state = TurnState(task, can_repeat=call.repeatable)
        return AsyncTurn(self._connection, state, call, on_request)

    async def start(self, task: str, message: str = "", **options: Unpack[TurnOptions]) -> BackgroundTurn:
        """Begins a turn in the background and returns its id, by which `follow` finds it."""
        return await self._connection.call(background_call(task, message, options))

    def follow(self, task: str, turn_id: str, *, on_request: AsyncRequestHandler | None = None) -> AsyncTurn:
        """A turn that has begun, or is queued, with all of its events from the first one on."""
        return AsyncTurn(self._connection, TurnState(task, turn_id=turn_id), None, on_request)

    async def cancel(self, task: str, *, turn_id: str | None = None) -> Cancelled:
        """Cancels the turn that runs on the task, whichever it is; with `turn_id` no other one."""
        return await self._connection.call(cancel_call(task, turn_id))

    async def steer(self, task: str, message: str, *, turn_id: str | None = None) -> Steered:
        """Gives the turn that runs on the task another message; with `turn_id` no other one."""
        return await self._connection.call(steer_call(task, turn_id, message))

    def messages(self, task: str, *, page_size: int = 50) -> AsyncIterator[ConversationMessage]:
        """All messages of a task, the newest first. Pages are read as they are needed."""
        return self.tasks.messages(task, page_size=page_size)

    async def feedback(
        self,
        task: str,
        feedback_type: Literal["correction", "rating", "error_report"],
        *,
        correction_text: str | None = None,
        rating: int | None = None,
        comment: str | None = None,
    ) -> FeedbackRecorded:
        """Stores feedback on the newest turn of a task."""
        body = given(
            task_id=task,
            feedback_type=feedback_type,
            correction_text=correction_text,
            rating=rating,
            comment=comment,
        )
        return await self._connection.call(Call("POST", "/feedback", FeedbackRecorded, body=body))

    async def upload(
        self,
        path: str,
        file: Content,
        *,
        if_match: str | None = None,
        if_none_match: Literal["*"] | None = None,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> UploadedFile:
        """Uploads a file into the workspace, in place of the one that is there; creates missing folders.

        `file` is bytes, the `Path` of a local file, or an open binary file. `if_match` (a tag) and
        `if_none_match` (`*`: only a new file) are conditions; if they do not hold, that raises
        `PreconditionFailedError`.
        """
        conditions = {"If-Match": if_match, "If-None-Match": if_none_match}
        held = {name: value for name, value in conditions.items() if value is not None}
        return await transfers.upload(self._connection, path, file, held, chunk_bytes)

    def download(self, path: str) -> AsyncDownload:
        """A file of the workspace, to be iterated over in pieces, `read()` or `save()`d."""
        return AsyncDownload(self._connection, f"/workspace/{file_path(path)}")

    def download_archive(self, path: str = "") -> AsyncDownload:
        """A folder of the workspace as a zip archive, which cannot be resumed."""
        folder = f"/workspace/{file_path(path)}" if path.strip("/") else "/workspace"
        return AsyncDownload(self._connection, folder, {"format": "zip"})

    async def files(self, path: str = "", *, page_size: int = 100) -> AsyncIterator[FileEntry]:
        """The entries of a folder of the workspace, by name. Pages are read as they are needed."""
        folder = f"/workspace/{file_path(path)}" if path.strip("/") else "/workspace"
        after: str | None = None
        while True:
            query = {"limit": page_size, "after": after}
            page = await self._connection.call(Call("GET", folder, FolderListing, query=query))
            for entry in page.entries:
                yield entry
            if page.next is None:
                return
            after = page.next

    async def file_info(self, path: str) -> UploadedFile | None:
        """The size and the tag of a file; `None` for a folder. Raises `NotFoundError` if there is neither."""
        return file_of(path, (await self._connection.exchange(info_call(path))).headers)

    async def delete_file(self, path: str, *, recursive: bool = False) -> Deleted:
        """Deletes a file or an empty folder; with `recursive` any folder."""
        query = {"recursive": True if recursive else None}
        return await self._connection.call(
            Call("DELETE", f"/workspace/{file_path(path)}", Deleted, query=query)
        )

    async def usage(
        self,
        *,
        from_: date | None = None,
        to: date | None = None,
        group_by: str | None = None,
        task: str | None = None,
        utc_offset_minutes: int | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> UsageReport:
        """Tokens, costs and the time of tools; `group_by` is a list such as `day,model`."""
        query = {
            "from": from_.isoformat() if from_ else None,
            "to": to.isoformat() if to else None,
            "group_by": group_by,
            "task_id": task,
            "utc_offset_minutes": utc_offset_minutes,
            "limit": limit,
            "after": after,
        }
        return await self._connection.call(Call("GET", "/usage", UsageReport, query=query))

    async def usage_caps(self, *, task: str | None = None) -> UsageCaps:
        """The caps on usage, and what is used of them."""
        return await self._connection.call(Call("GET", "/usage/caps", UsageCaps, query={"task_id": task}))

    async def rpc(self, method: str, params: Mapping[str, Any] | None = None, **fields: Any) -> Any:
        """Calls `skill.<name>`, `tool.<name>` or `memory.<op>` without a turn, and returns its result."""
        body = {"method": method, "params": params or {}, **fields}
        answer = await self._connection.call(Call[Any]("POST", "/rpc", dict, body=body))
        return answer.get("result")

    async def health(self) -> EngineHealth:
        """Whether the engine and what it depends on are healthy."""
        return await self._connection.call(Call("GET", "/health", EngineHealth))

    async def aclose(self) -> None:
        """Closes the connections, if they are not those of a fleet."""
        if self._owned:
            await self._connection.http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()
