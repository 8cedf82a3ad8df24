# Written by `generate` from `_async`; do not edit.
"""Skills of an engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .._core.call import Call, given, segment
from ..models import Deleted, Skill, SkillList
from .resource import Resource


class SkillsResource(Resource):
    """The skills of the platform and of the user."""

    def list(self) -> SkillList:
        """All skills, by name."""
        return self._call(Call("GET", "/skills", SkillList))

    def get(self, name: str) -> Skill:
        """The definition of a skill."""
        return self._call(Call("GET", f"/skills/{segment(name)}", Skill))

    def create(
        self,
        name: str,
        *,
        description: str | None = None,
        category: str | None = None,
        prompt: str | None = None,
        capabilities: Sequence[str] | None = None,
        scripts: Mapping[str, str] | None = None,
    ) -> Skill:
        """Creates a skill of the user."""
        body = given(
            name=name,
            description=description,
            category=category,
            prompt=prompt,
            capabilities=capabilities,
            scripts=scripts,
        )
        return self._call(Call("POST", "/skills/create", Skill, body=body))

    def update(self, name: str, **changes: Any) -> Skill:
        """Changes a skill of the user."""
        return self._call(Call("PUT", f"/skills/{segment(name)}", Skill, body=changes))

    def delete(self, name: str) -> Deleted:
        """Deletes a skill of the user."""
        return self._call(Call("DELETE", f"/skills/{segment(name)}", Deleted))
