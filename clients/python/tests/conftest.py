"""One fleet for all tests, and what they use. Stories are told to both clients, the rest to one."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from anyio.from_thread import start_blocking_portal

from clients import AsyncClient, Client, SyncClient
from fleet import Fleet as RunningFleet
from roundhouse_client import Engine, Fleet


@pytest.fixture(scope="session")
def running() -> Iterator[RunningFleet]:
    with RunningFleet() as fleet:
        yield fleet


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.module.__name__.startswith("test_stories_"):
        assert "client" in metafunc.fixturenames, f"{metafunc.function.__name__} is told to no client"
        metafunc.parametrize("client", ["sync", "async"], indirect=True, scope="session")


@pytest.fixture(scope="session")
def client(request: pytest.FixtureRequest) -> Iterator[Client]:
    if getattr(request, "param", "sync") == "sync":
        yield SyncClient()
    else:
        with start_blocking_portal() as portal:
            yield AsyncClient(portal)


@pytest.fixture
def fleet(client: Client, running: RunningFleet) -> Iterator[Fleet]:
    with client.fleet(running.url, running.key) as fleet:
        yield fleet


@pytest.fixture(scope="session")
def shared_fleet(client: Client, running: RunningFleet) -> Iterator[Fleet]:
    with client.fleet(running.url, running.key) as fleet:
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
