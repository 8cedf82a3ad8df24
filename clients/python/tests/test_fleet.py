"""What else a fleet offers, beside the stories of `stories.md`."""

from __future__ import annotations

import pytest

from roundhouse_client import Fleet
from roundhouse_client.events import TextDeltaEvent


def test_an_engine_through_the_orchestrators_proxy(fleet: Fleet) -> None:
    user = "ádá/ö 1"
    engine = fleet.admit(user, proxy=True)
    assert engine.url.startswith(fleet._connection.endpoint.url)
    assert [event.text for event in engine.run("t", "Grüße, 世界") if isinstance(event, TextDeltaEvent)]
    engine.upload("ö/ü.txt", "ß".encode())
    assert engine.download("ö/ü.txt").read() == "ß".encode()
    assert fleet.destroy(user).status == "destroyed"


def test_the_audit_log_in_pages_and_as_a_stream(fleet: Fleet, user: str) -> None:
    fleet.admit(user)
    fleet.rotate_key(user)
    rows = list(fleet.audit(user=user, page_size=1))
    assert [row.event for row in rows] == ["rotate_key", "provision"]
    for row in fleet.events(after=0):
        if row.id == rows[0].id:
            assert row == rows[0]
            break


def test_an_address_without_a_scheme_is_refused() -> None:
    with pytest.raises(ValueError, match="http"):
        Fleet("localhost:8000", "pk-svc-x")
