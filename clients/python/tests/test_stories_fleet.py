"""The stories of `stories.md` about admission, and engines that move under their client."""

from __future__ import annotations

import time
import uuid
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from clients import Client
from cutting import stored
from fleet import Fleet as RunningFleet
from fleet import eventually
from roundhouse_client import (
    Decision,
    Event,
    Fleet,
    NetworkError,
    NotAdmittedError,
    Reply,
    Request,
    errors,
)
from roundhouse_client.events import TextDeltaEvent, TurnCompletedEvent, TurnResumedEvent


@pytest.fixture(scope="module", autouse=True)
def limited_key(client: Client, running: RunningFleet) -> str:
    """The key of a product whose rate is used up. Most of its minute passes during the other stories."""
    with client.admin(running.url, running.admin_key) as admin:
        key = admin.register(
            f"patient-{uuid.uuid4()}", "Patient", policy={"rate_limit_rpm": 1}
        ).platform_api_key
    running.admit("one", key=key)
    return key


def test_first_admit(fleet: Fleet, user: str) -> None:
    engine = fleet.admit(user)
    assert engine.run("first", "Hello").text() == "You said: Hello"
    assert engine.health().status == "ok"
    record = fleet.engine_record(user)
    assert (record.status, record.user_id) == ("running", user)
    assert fleet.admit(user).url == engine.url
    assert fleet.engine_record(user).engine_id == record.engine_id


def test_hundred_users_at_once(fleet: Fleet) -> None:
    users = [f"crowd-{number}" for number in range(100)]
    with ThreadPoolExecutor(len(users)) as pool:
        answers = list(pool.map(lambda user: fleet.admit(user).run("crowd", f"I am {user}").text(), users))
        assert answers == [f"You said: I am {user}" for user in users]
        listed = [engine.user_id for engine in fleet.engines(page_size=30)]
        assert set(listed) >= set(users)
        assert len(set(listed)) == len(listed), "no engine is on two pages"
    with ThreadPoolExecutor(10) as pool:
        list(pool.map(fleet.destroy, users))


def test_sleeping_engine_is_woken(client: Client, running: RunningFleet, user: str) -> None:
    with client.admin(running.url, running.admin_key) as admin:
        product = admin.register(user, "Sleepy", policy={"idle_sleep_threshold_s": 0.2})
    with client.fleet(running.url, product.platform_api_key) as fleet:
        engine = fleet.admit("ada")
        assert engine.run("before", "Hello").text() == "You said: Hello"
        eventually("the engine sleeps", lambda: fleet.engine_record("ada").status == "sleeping", 60)
        assert [message.role for message in engine.messages("before")] == ["assistant", "user"]
        eventually("the engine sleeps", lambda: fleet.engine_record("ada").status == "sleeping", 60)
        assert engine.run("after", "Good morning").text() == "You said: Good morning"


def test_retry_after_is_honoured(client: Client, running: RunningFleet, limited_key: str, user: str) -> None:
    with client.admin(running.url, running.admin_key) as admin:
        product = admin.register(user, "Slow", policy={"rate_limit_rpm": 1})
    with client.fleet(running.url, product.platform_api_key) as fleet:
        fleet.admit("one")
        started = time.monotonic()
        with pytest.raises(errors.RateLimitedError) as caught:
            fleet.admit("one", deadline=5)
        assert time.monotonic() - started < 4, "a wait beyond the deadline is not begun"
        assert caught.value.retry_after is not None
        assert 5 < caught.value.retry_after <= 60
        assert (caught.value.code, caught.value.status) == ("RATE_LIMITED", 429)
        assert caught.value.request_id

    answers: list[tuple[float, httpx.Response]] = []

    def record(response: httpx.Response) -> None:
        answers.append((time.monotonic(), response))

    with (
        client.http(after=record) as http,
        client.fleet(running.url, limited_key, http=http) as fleet,
    ):
        while all(response.status_code != 429 for _, response in answers):
            # If the minute is over already, this begins another one.
            fleet.admit("one", deadline=90)
    (refused_at, refused), (admitted_at, admitted) = answers[-2:]
    assert (refused.status_code, admitted.status_code) == (429, 200)
    assert len(answers) <= 3, "it comes back once"
    assert admitted_at - refused_at >= int(refused.headers["retry-after"]) >= 1


def test_stopped_engine_stays_stopped(fleet: Fleet, user: str) -> None:
    engine = fleet.admit(user)
    fleet.stop(user)
    with pytest.raises(NotAdmittedError) as caught:
        engine.health()
    assert caught.value.reason == "engine_stopped"
    fleet.start(user)
    assert engine.run("again", "Hello").text() == "You said: Hello"


def test_key_rotated_under_a_client(client: Client, running: RunningFleet, fleet: Fleet, user: str) -> None:
    engine = fleet.admit(user)
    address, key = running.admit(user)
    fleet.rotate_key(user)
    assert engine.run("rotated", "Hello").text() == "You said: Hello"
    fleet.rotate_key(user)
    engine.upload("a.txt", b"a")
    with client.engine(address, key) as old, pytest.raises(errors.InvalidEngineKeyError) as caught:
        old.run("rotated", "Hello").text()
    assert (caught.value.status, caught.value.code) == (401, "INVALID_ENGINE_KEY")


def test_key_rotated_in_mid_turn(fleet: Fleet, user: str) -> None:
    turn = fleet.admit(user).run("rotated", "slowly")
    for event in turn:
        if isinstance(event, TextDeltaEvent):
            break
    fleet.rotate_key(user)
    assert turn.text().endswith("nine ten")


def test_one_admission_for_many_calls(client: Client, running: RunningFleet, user: str) -> None:
    admissions: list[str] = []

    def count(request: httpx.Request) -> None:
        if request.url.path.endswith("/admit"):
            admissions.append(request.url.path)

    with (
        client.http(before=count) as http,
        client.fleet(running.url, running.key, http=http) as fleet,
        ThreadPoolExecutor(20) as pool,
    ):
        engine = fleet.admit(user)
        fleet.rotate_key(user)
        list(pool.map(lambda _: engine.usage(), range(20)))
    assert len(admissions) == 2


def check_killed(running: RunningFleet, fleet: Fleet, user: str, *, proxy: bool) -> None:
    engine = fleet.admit(user, proxy=proxy)
    engine_id = fleet.engine_record(user).engine_id
    received: list[Event] = []
    turn = engine.run("killed", "slowly")
    for event in turn:
        received.append(event)
        if (
            isinstance(event, TextDeltaEvent)
            and sum(isinstance(one, TextDeltaEvent) for one in received) == 4
        ):
            running.kill_engine(engine_id)
    assert any(isinstance(event, TurnResumedEvent) for event in received)
    assert isinstance(received[-1], TurnCompletedEvent)
    assert turn.text_so_far == received[-1].text
    assert received[-1].text.endswith("nine ten")
    assert [event.ts for event in received] == sorted({event.ts for event in received})
    assert received == stored(engine, turn)


def test_engine_killed_in_mid_answer(running: RunningFleet, fleet: Fleet, user: str) -> None:
    check_killed(running, fleet, user, proxy=False)


def test_engine_killed_behind_the_proxy(running: RunningFleet, fleet: Fleet, user: str) -> None:
    check_killed(running, fleet, user, proxy=True)


def test_page_with_a_browser_token(client: Client, running: RunningFleet, fleet: Fleet, user: str) -> None:
    origin = "https://app.example.com"
    assert fleet.set_origins([origin]).origins == [origin] == fleet.origins().origins
    engine = fleet.admit(user)
    token = fleet.mint_token(user, ["chat", "answer"], task="mine", lifetime=600)
    assert [known.token_id for known in fleet.tokens(user, page_size=1)] == [token.token_id]
    asked: list[str] = []

    def allow(request: Request) -> Reply:
        (question,) = fleet.inbox(user=user, page_size=1)
        assert question.request_id == request.request_id
        asked.append(question.request_id)
        return Decision("allow_once")

    for address in (engine.url, f"{running.url}/engines/{user}/proxy"):
        with client.engine(address, token=token.token) as page:
            assert page.run("mine", "write page.txt: ja", on_request=allow).text().startswith("Done: ")
            assert list(fleet.inbox(user=user)) == []
            with pytest.raises(errors.TokenScopeError):
                page.run("other", "Hello").text()
            with pytest.raises(errors.TokenScopeError):
                page.download("page.txt").read()
    assert len(set(asked)) == 2
    assert fleet.revoke_token(user, token.token_id).in_force
    with client.engine(engine.url, token=token.token) as page, pytest.raises(errors.TokenRevokedError):
        page.run("mine", "Hello").text()
    with pytest.raises(ValueError, match="key or with a browser token"):
        client.engine(engine.url)


def test_typed_errors_of_the_orchestrator(
    client: Client, running: RunningFleet, fleet: Fleet, user: str
) -> None:
    fleet.provision(user)
    with pytest.raises(errors.EngineAlreadyExistsError):
        fleet.provision(user)
    with pytest.raises(errors.EngineAlreadyRunningError):
        fleet.start(user)
    with pytest.raises(errors.EngineNotFoundError) as caught:
        fleet.destroy(f"no-{user}")
    assert isinstance(caught.value, errors.NotFoundError)
    assert (caught.value.code, caught.value.status) == ("ENGINE_NOT_FOUND", 404)
    assert caught.value.message
    assert caught.value.request_id
    with pytest.raises(NotAdmittedError) as refused:
        fleet.wake(f"no-{user}")
    assert refused.value.reason == "engine_not_found"
    with client.fleet(running.url, "pk-svc-wrong") as wrong, pytest.raises(errors.InvalidPlatformKeyError):
        wrong.status()
    with client.admin(running.url, "wrong") as wrong_admin, pytest.raises(errors.InvalidAdminKeyError):
        wrong_admin.products()
    with client.admin(running.url, running.admin_key) as admin:
        with pytest.raises(errors.InvalidRequestError):
            admin.register("Not A Slug", "x")
        product = admin.register(user, "Small", policy={"max_engines": 0})
        with client.fleet(running.url, product.platform_api_key) as full:
            with pytest.raises(errors.QuotaExceededError):
                full.admit("one")
            admin.replace_policy(product.product_id, {"suspended": True})
            with pytest.raises(errors.PolicyDeniedError):
                full.admit("one")
    with client.fleet("http://127.0.0.1:9", "pk-svc-x") as nobody, pytest.raises(NetworkError) as broken:
        nobody.admit(user, deadline=0.5)
    assert not broken.value.sent
