"""One fleet for all stories, and what they use."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from fleet import Fleet as RunningFleet
from roundhouse_client import Engine, Fleet


@pytest.fixture(scope="session")
def running() -> Iterator[RunningFleet]:
    with RunningFleet() as fleet:
        yield fleet


@pytest.fixture
def fleet(running: RunningFleet) -> Iterator[Fleet]:
    with Fleet(running.url, running.key) as fleet:
        yield fleet


@pytest.fixture(scope="session")
def shared_fleet(running: RunningFleet) -> Iterator[Fleet]:
    with Fleet(running.url, running.key) as fleet:
        yield fleet


@pytest.fixture(scope="session")
def engine(shared_fleet: Fleet) -> Engine:
    return shared_fleet.admit("ada")


@pytest.fixture
def task() -> str:
    return f"task-{uuid.uuid4()}"


@pytest.fixture
def user() -> str:
    return f"user-{uuid.uuid4()}"
