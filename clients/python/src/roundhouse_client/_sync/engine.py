# Written by `generate` from `_async`; do not edit.
"""A user's engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
from ..options import RequestHandler
from . import transfers
from .connection import Connection, new_http_client
from .connections import ConnectionsResource, ServersResource
from .memory import MemoryResource
from .people import HitlResource
from .schedules import SchedulesResource
from .skills import SkillsResource
from .tasks import TasksResource
from .transfers import Download
from .turn import Turn


class Engine:
    """A user's engine.

    One from `Fleet.admit` admits its user again by itself when the engine is asleep, has moved or has
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
        http: httpx.Client | None = None,
    ) -> None:
        if key is not None and token is None:
            endpoint = Endpoint.engine(url, key)
        elif token is not None and key is None:
            endpoint = Endpoint.page(url, token)
        else:
            raise ValueError("an engine is called with its key or with a browser token")
        self._set_up(Connection(http or new_http_client(), endpoint, retry or RetryPolicy()), http is None)

    @classmethod
    def _from_connection(cls, connection: Connection) -> Self:
        engine = cls.__new__(cls)
        engine._set_up(connection, owned=False)
        return engine

    def _set_up(self, connection: Connection, owned: bool) -> None:
        self._connection = connection
        self._owned = owned
        self.tasks = TasksResource(connection)
        """Conversations, their turns, queues and working memory."""
        self.memory = MemoryResource(connection)
        """What the engine remembers across tasks."""
        self.schedules = SchedulesResource(connection)
        """Messages that the engine sends itself at given times."""
        self.skills = SkillsResource(connection)
        """Skills of the platform and of the user."""
        self.hitl = HitlResource(connection)
        """What waits for a person, and what was allowed for good."""
        self.connections = ConnectionsResource(connection)
        """Tool servers of the catalog."""
        self.servers = ServersResource(connection)
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
        on_request: RequestHandler | None = None,
        **options: Unpack[TurnOptions],
    ) -> Turn:
        """A turn with this message; it begins when its events or its result are asked for.

        `on_request` is asked what the agent asks a person; what it returns is the answer. Without it,
        requests wait, and the turn with them, until somebody answers, with `hitl.respond` for example.
        """
        call = execute_call(task, message, options)
        state = TurnState(task, can_repeat=call.repeatable)
        return Turn(self._connection, state, call, on_request)

    def start(self, task: str, message: str = "", **options: Unpack[TurnOptions]) -> BackgroundTurn:
        """Begins a turn in the background and returns its id, by which `follow` finds it."""
        return self._connection.call(background_call(task, message, options))

    def follow(self, task: str, turn_id: str, *, on_request: RequestHandler | None = None) -> Turn:
        """A turn that has begun, or is queued, with all of its events from the first one on."""
        return Turn(self._connection, TurnState(task, turn_id=turn_id), None, on_request)

    def cancel(self, task: str, *, turn_id: str | None = None) -> Cancelled:
        """Cancels the turn that runs on the task, whichever it is; with `turn_id` no other one."""
        return self._connection.call(cancel_call(task, turn_id))

    def steer(self, task: str, message: str, *, turn_id: str | None = None) -> Steered:
        """Gives the turn that runs on the task another message; with `turn_id` no other one."""
        return self._connection.call(steer_call(task, turn_id, message))

    def messages(self, task: str, *, page_size: int = 50) -> Iterator[ConversationMessage]:
        """All messages of a task, the newest first. Pages are read as they are needed."""
        return self.tasks.messages(task, page_size=page_size)

    def feedback(
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
        return self._connection.call(Call("POST", "/feedback", FeedbackRecorded, body=body))

    def upload(
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
        return transfers.upload(self._connection, path, file, held, chunk_bytes)

    def download(self, path: str) -> Download:
        """A file of the workspace, to be iterated over in pieces, `read()` or `save()`d."""
        return Download(self._connection, f"/workspace/{file_path(path)}")

    def download_archive(self, path: str = "") -> Download:
        """A folder of the workspace as a zip archive, which cannot be resumed."""
        folder = f"/workspace/{file_path(path)}" if path.strip("/") else "/workspace"
        return Download(self._connection, folder, {"format": "zip"})

    def files(self, path: str = "", *, page_size: int = 100) -> Iterator[FileEntry]:
        """The entries of a folder of the workspace, by name. Pages are read as they are needed."""
        folder = f"/workspace/{file_path(path)}" if path.strip("/") else "/workspace"
        after: str | None = None
        while True:
            query = {"limit": page_size, "after": after}
            page = self._connection.call(Call("GET", folder, FolderListing, query=query))
            for entry in page.entries:
                yield entry
            if page.next is None:
                return
            after = page.next

    def file_info(self, path: str) -> UploadedFile | None:
        """The size and the tag of a file; `None` for a folder. Raises `NotFoundError` if there is neither."""
        return file_of(path, (self._connection.exchange(info_call(path))).headers)

    def delete_file(self, path: str, *, recursive: bool = False) -> Deleted:
        """Deletes a file or an empty folder; with `recursive` any folder."""
        query = {"recursive": True if recursive else None}
        return self._connection.call(Call("DELETE", f"/workspace/{file_path(path)}", Deleted, query=query))

    def usage(
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
        return self._connection.call(Call("GET", "/usage", UsageReport, query=query))

    def usage_caps(self, *, task: str | None = None) -> UsageCaps:
        """The caps on usage, and what is used of them."""
        return self._connection.call(Call("GET", "/usage/caps", UsageCaps, query={"task_id": task}))

    def rpc(self, method: str, params: Mapping[str, Any] | None = None, **fields: Any) -> Any:
        """Calls `skill.<name>`, `tool.<name>` or `memory.<op>` without a turn, and returns its result."""
        body = {"method": method, "params": params or {}, **fields}
        answer = self._connection.call(Call[Any]("POST", "/rpc", dict, body=body))
        return answer.get("result")

    def health(self) -> EngineHealth:
        """Whether the engine and what it depends on are healthy."""
        return self._connection.call(Call("GET", "/health", EngineHealth))

    def close(self) -> None:
        """Closes the connections, if they are not those of a fleet."""
        if self._owned:
            self._connection.http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
