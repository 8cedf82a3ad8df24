"""Stories of a product and its fleet."""

from __future__ import annotations

import time

import anyio
import pytest

from fleet import Fleet as RunningFleet
from fleet import eventually
from roundhouse_client import Admin, AsyncFleet, Engine, Fleet, NetworkError, NotAdmittedError, errors
from roundhouse_client.events import TextDeltaEvent


def test_the_first_admit_creates_an_engine_that_answers(fleet: Fleet, user: str) -> None:
    engine = fleet.admit(user)
    assert engine.run("first", "Hello").text() == "You said: Hello"
    assert fleet.engine_record(user).status == "running"
    assert engine.health().status == "ok"


def test_a_user_without_an_engine_is_not_admitted_if_none_is_wanted(fleet: Fleet, user: str) -> None:
    with pytest.raises(NotAdmittedError) as caught:
        fleet.wake(user)
    assert caught.value.reason == "engine_not_found"


def test_100_users_at_once_each_get_their_own_answer(running: RunningFleet) -> None:
    async def session() -> None:
        async with AsyncFleet(running.url, running.key) as fleet:
            answers: dict[int, str] = {}

            async def one(number: int) -> None:
                engine = await fleet.admit(f"crowd-{number}")
                answers[number] = await engine.run("crowd", f"I am number {number}").text()

            async with anyio.create_task_group() as group:
                for number in range(100):
                    group.start_soon(one, number)
            assert answers == {number: f"You said: I am number {number}" for number in range(100)}
            users = {engine.user_id async for engine in fleet.engines(page_size=30)}
            assert users >= {f"crowd-{number}" for number in range(100)}
            async with anyio.create_task_group() as group:
                for number in range(100):
                    group.start_soon(fleet.destroy, f"crowd-{number}")

    anyio.run(session)


def test_a_product_over_its_rate_waits_as_long_as_retry_after_says(running: RunningFleet, user: str) -> None:
    with Admin(running.url, running.admin_key) as admin:
        product = admin.register(user, "Slow", policy={"rate_limit_rpm": 1})
    with Fleet(running.url, product.platform_api_key) as fleet:
        fleet.admit("one")
        started = time.monotonic()
        with pytest.raises(errors.RateLimitedError) as caught:
            fleet.admit("one", deadline=5)
        assert time.monotonic() - started < 4, "a wait beyond the deadline is not begun"
        assert caught.value.retry_after is not None
        assert 5 < caught.value.retry_after <= 60
        assert caught.value.status == 429
        assert caught.value.request_id


def test_a_product_over_its_quota_is_told_at_once(running: RunningFleet, user: str) -> None:
    with Admin(running.url, running.admin_key) as admin:
        product = admin.register(user, "Small", policy={"max_engines": 0})
        with Fleet(running.url, product.platform_api_key) as fleet, pytest.raises(errors.QuotaExceededError):
            fleet.admit("one")
        admin.replace_policy(product.product_id, {"suspended": True})
        with Fleet(running.url, product.platform_api_key) as fleet, pytest.raises(errors.PolicyDeniedError):
            fleet.admit("one")
        assert user in {product.slug for product in admin.products().products}


def test_an_engine_that_has_gone_to_sleep_is_woken_by_its_next_use(running: RunningFleet, user: str) -> None:
    with Admin(running.url, running.admin_key) as admin:
        product = admin.register(user, "Sleepy", policy={"idle_sleep_threshold_s": 0.2})
    with Fleet(running.url, product.platform_api_key) as fleet:
        engine = fleet.admit("ada")
        assert engine.run("before", "Hello").text() == "You said: Hello"
        eventually("the engine sleeps", lambda: fleet.engine_record("ada").status == "sleeping", 60)
        assert engine.run("after", "Good morning").text() == "You said: Good morning"
        assert [message.role for message in engine.messages("before")] == ["assistant", "user"]


def test_an_engine_that_was_stopped_is_not_started_behind_the_products_back(fleet: Fleet, user: str) -> None:
    engine = fleet.admit(user)
    fleet.stop(user)
    with pytest.raises(NotAdmittedError) as caught:
        engine.health()
    assert caught.value.reason == "engine_stopped"
    fleet.start(user)
    assert engine.run("again", "Hello").text() == "You said: Hello"


def test_a_key_that_is_rotated_under_an_engine_is_found_by_itself(
    running: RunningFleet, fleet: Fleet, user: str
) -> None:
    engine = fleet.admit(user)
    address, key = running.admit(user)
    fleet.rotate_key(user)
    assert engine.run("rotated", "Hello").text() == "You said: Hello"
    engine.upload("a.txt", b"a")
    with Engine(address, key) as old, pytest.raises(errors.InvalidEngineKeyError) as caught:
        old.run("rotated", "Hello").text()
    assert (caught.value.status, caught.value.code) == (401, "INVALID_ENGINE_KEY")


def test_many_calls_that_find_the_key_rotated_admit_once(running: RunningFleet, user: str) -> None:
    async def session() -> None:
        async with AsyncFleet(running.url, running.key) as fleet:
            engine = await fleet.admit(user)
            await fleet.rotate_key(user)
            async with anyio.create_task_group() as group:
                for _ in range(20):
                    group.start_soon(engine.usage)

    anyio.run(session)


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


def test_typed_errors_of_the_orchestrator(running: RunningFleet, fleet: Fleet, user: str) -> None:
    fleet.provision(user)
    with pytest.raises(errors.EngineAlreadyExistsError):
        fleet.provision(user)
    with pytest.raises(errors.EngineAlreadyRunningError):
        fleet.start(user)
    with pytest.raises(errors.EngineNotFoundError) as caught:
        fleet.destroy(f"no-{user}")
    assert isinstance(caught.value, errors.NotFoundError)
    with Fleet(running.url, "pk-svc-wrong") as wrong, pytest.raises(errors.InvalidPlatformKeyError):
        wrong.status()
    with Fleet("http://127.0.0.1:9", "pk-svc-x") as nobody, pytest.raises(NetworkError) as broken:
        nobody.admit(user, deadline=0.5)
    assert not broken.value.sent
    with pytest.raises(ValueError, match="http"):
        Fleet("localhost:8000", "pk-svc-x")
