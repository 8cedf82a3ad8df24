"""Schedules: messages that an engine sends itself at given times."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from .._core.call import Call, given, segment
from ..models import Deleted, Schedule, ScheduleList, ScheduleRun
from .resource import AsyncResource


class AsyncSchedulesResource(AsyncResource):
    """The schedules of an engine."""

    async def list(self) -> ScheduleList:
        """All schedules, the oldest first."""
        return await self._call(Call("GET", "/schedules", ScheduleList))

    async def get(self, id: str) -> Schedule:
        """A schedule with its newest runs."""
        return await self._call(Call("GET", f"/schedules/{segment(id)}", Schedule))

    async def create(
        self,
        name: str,
        when: Mapping[str, Any],
        message: str,
        *,
        id: str | None = None,
        task_id: str | None = None,
        missed: Literal["run_once", "skip"] | None = None,
        options: Mapping[str, Any] | None = None,
        paused: bool | None = None,
    ) -> Schedule:
        """Sets a schedule. With an `id` of your own the call can be repeated.

        `when` is `{"cron": …, "time_zone": …}`, `{"at": …}` or `{"every_seconds": …, "start": …}`.
        """
        body = given(
            id=id,
            name=name,
            when=when,
            message=message,
            task_id=task_id,
            missed=missed,
            options=options,
            paused=paused,
        )
        return await self._call(Call("POST", "/schedules", Schedule, body=body, idempotent=id is not None))

    async def update(self, id: str, **changes: Any) -> Schedule:
        """Changes `name`, `when`, `message`, `task_id`, `missed`, `options` or `paused`."""
        path = f"/schedules/{segment(id)}"
        return await self._call(Call("PATCH", path, Schedule, body=changes, idempotent=True))

    async def run(self, id: str, *, client_request_id: str | None = None) -> ScheduleRun:
        """Runs a schedule now. With a `client_request_id` the call can be repeated."""
        query = {"client_request_id": client_request_id}
        path, repeatable = f"/schedules/{segment(id)}/run", client_request_id is not None
        return await self._call(Call("POST", path, ScheduleRun, query=query, idempotent=repeatable))

    async def delete(self, id: str) -> Deleted:
        """Deletes a schedule with the record of its runs."""
        return await self._call(Call("DELETE", f"/schedules/{segment(id)}", Deleted))
