# Written by `generate` from `_async`; do not edit.
"""What waits for a person, and what was allowed for good."""

from __future__ import annotations

from .._core.call import Call, segment
from .._core.turn import reply_call
from ..models import ApprovalGrantList, ApprovalList, Deleted, HitlPending
from ..options import Answer, Decision
from .resource import Resource


class HitlResource(Resource):
    """The requests of all tasks, for products that answer them outside of a turn's iterator."""

    def pending(self, *, task: str | None = None) -> HitlPending:
        """The requests that wait, the oldest first."""
        return self._call(Call("GET", "/hitl/pending", HitlPending, query={"task_id": task}))

    def approvals(self, task: str) -> ApprovalList:
        """The tool calls of a task that wait for a decision, as fields."""
        return self._call(Call("GET", f"/tasks/{segment(task)}/approvals", ApprovalList))

    def respond(self, task: str, request_id: str, reply: Answer | Decision | str | bool) -> None:
        """Answers a request; raises a `HitlNotPendingError` or `ApprovalAnsweredError` if none waits."""
        call = reply_call(task, request_id, reply)
        if call is not None:
            self._call(call)

    def grants(self) -> ApprovalGrantList:
        """What was allowed for good, the oldest first."""
        return self._call(Call("GET", "/approvals/grants", ApprovalGrantList))

    def revoke(self, grant_id: str) -> Deleted:
        """Revokes a grant."""
        return self._call(Call("DELETE", f"/approvals/grants/{segment(grant_id)}", Deleted))
