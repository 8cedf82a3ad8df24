# Written by `generate` from `_async`; do not edit.
"""The orchestrator, as a product and as its operator see it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, TypeVar

import httpx
from typing_extensions import Self

from .._core.call import Call, given, read_json, segment
from .._core.endpoint import Endpoint
from .._core.retry import RetryPolicy
from .._errors.base import NetworkError, NotAdmittedError
from ..models import (
    Admission,
    AllowedOrigins,
    AuditList,
    AuditRow,
    ChangedVersion,
    DestroyedEngine,
    EngineList,
    EngineLogs,
    EngineRecord,
    EngineSummary,
    Explanation,
    FleetStatus,
    Health,
    Inbox,
    InboxQuestion,
    Metrics,
    MintedToken,
    MovedEngines,
    ProductList,
    ProvisionedEngine,
    RegisteredProduct,
    ReplacedPolicy,
    RevokedToken,
    RotatedKey,
    StartedEngine,
    StoppedEngine,
    TokenList,
    TokenSummary,
    VersionList,
)
from ._runtime import sleep
from .connection import Connection, new_http_client
from .engine import Engine

T = TypeVar("T")

BrowserScope = Literal["chat", "read", "answer"]
EngineStatus = Literal["provisioning", "running", "sleeping", "stopped", "failed", "destroying"]


class _Orchestrator:
    """What the clients of an orchestrator have in common."""

    def __init__(self, endpoint: Endpoint, retry: RetryPolicy | None, http: httpx.Client | None) -> None:
        self._owned = http is None
        self._connection = Connection(http or new_http_client(), endpoint, retry or RetryPolicy())

    def health(self) -> Health:
        """Whether the orchestrator is ready."""
        return self._connection.call(Call("GET", "/health", Health))

    def close(self) -> None:
        """Closes the connections, also those of engines that were admitted by it."""
        if self._owned:
            self._connection.http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Fleet(_Orchestrator):
    """A product's engines.

    `retry` says how long calls are repeated; `http` is an HTTP client of your own, which you close yourself.
    """

    def __init__(
        self,
        url: str,
        product_key: str,
        *,
        retry: RetryPolicy | None = None,
        http: httpx.Client | None = None,
    ) -> None:
        super().__init__(Endpoint.product(url, product_key), retry, http)

    def admit(
        self,
        user: str,
        *,
        auto_provision: bool = True,
        auto_wake: bool = True,
        proxy: bool = False,
        deadline: float | None = None,
    ) -> Engine:
        """Returns the user's engine, which is created or woken if necessary.

        Waits while the fleet is starting or the product's rate is exceeded, for `deadline` seconds at most.
        Raises `NotAdmittedError` if the user cannot have an engine now. With `proxy` the engine is called
        through the orchestrator, for products that cannot reach engines themselves.
        """
        retry = self._retry(deadline)

        def admit_again() -> Endpoint:
            return self._admit(user, auto_provision, auto_wake, proxy, retry)

        endpoint = admit_again()
        connection = Connection(self._connection.http, endpoint, self._connection.retry, admit_again)
        return Engine._from_connection(connection)

    def _retry(self, deadline: float | None) -> RetryPolicy:
        policy = self._connection.retry
        if deadline is None:
            return policy
        fields: dict[str, Any] = {**policy.__dict__, "deadline": deadline}
        return RetryPolicy(**fields)

    def _admit(
        self, user: str, auto_provision: bool, auto_wake: bool, proxy: bool, retry: RetryPolicy
    ) -> Endpoint:
        body = {"auto_provision": auto_provision, "auto_wake": auto_wake}
        path = f"/engines/{segment(user)}/admit"
        admission = self._connection.call(Call("POST", path, Admission, body=body, idempotent=True), retry)
        engine = admission.engine
        if not admission.admitted or engine is None:
            raise NotAdmittedError(user, admission.reason or "unknown")
        if proxy:
            return self._connection.endpoint.proxied(user)
        if engine.url is None:
            raise NotAdmittedError(user, "without_address")
        return Endpoint.engine(engine.url, engine.api_key)

    def wake(self, user: str) -> Engine:
        """Returns the user's engine and wakes it if it sleeps; raises `NotAdmittedError` if there is none."""
        return self.admit(user, auto_provision=False)

    def engines(self, *, status: EngineStatus | None = None, page_size: int = 100) -> Iterator[EngineSummary]:
        """All engines, or those in a state, the oldest first. Pages are read as they are needed."""
        offset = 0
        while True:
            page = self.engine_page(status=status, limit=page_size, offset=offset)
            for engine in page.engines:
                yield engine
            offset += len(page.engines)
            if not page.engines or offset >= page.total:
                return

    def engine_page(
        self, *, status: EngineStatus | None = None, limit: int = 100, offset: int = 0
    ) -> EngineList:
        """A page of the engines, and how many there are."""
        query = {"status": status, "limit": limit, "offset": offset}
        return self._connection.call(Call("GET", "/engines", EngineList, query=query))

    def engine_record(self, user: str) -> EngineRecord:
        """The record of the user's engine, with its key. Changes nothing."""
        return self._engine_call("GET", user, "", EngineRecord)

    def provision(self, user: str, *, engine_version: str | None = None) -> ProvisionedEngine:
        """Creates the user's engine; `admit` does that too, if there is none."""
        body = given(user_id=user, engine_version=engine_version)
        return self._connection.call(Call("POST", "/engines/provision", ProvisionedEngine, body=body))

    def destroy(self, user: str) -> DestroyedEngine:
        """Destroys the user's engine with all of its data."""
        return self._engine_call("DELETE", user, "", DestroyedEngine)

    def start(self, user: str) -> StartedEngine:
        """Starts an engine that is stopped, sleeps or has failed."""
        return self._engine_call("POST", user, "/start", StartedEngine)

    def stop(self, user: str) -> StoppedEngine:
        """Stops an engine; only `start` starts it again."""
        return self._engine_call("POST", user, "/stop", StoppedEngine)

    def rotate_key(self, user: str) -> RotatedKey:
        """Gives an engine a new key. Engines that this fleet has admitted find it by themselves."""
        return self._engine_call("POST", user, "/rotate-key", RotatedKey)

    def explain(self, user: str) -> Explanation:
        """Why the engine is in its state, and what happens next."""
        return self._engine_call("GET", user, "/explain", Explanation)

    def logs(self, user: str, *, tail: int | None = None) -> EngineLogs:
        """The last lines of the engine's log."""
        path = f"/engines/{segment(user)}/logs"
        return self._connection.call(Call("GET", path, EngineLogs, query={"tail": tail}))

    def change_version(self, user: str, engine_version: str) -> ChangedVersion:
        """Moves the engine to another image, or with `default` back to the deployment's."""
        path, body = f"/engines/{segment(user)}/version", {"engine_version": engine_version}
        return self._connection.call(Call("PUT", path, ChangedVersion, body=body))

    def mint_token(
        self,
        user: str,
        scopes: Sequence[BrowserScope],
        *,
        task: str | None = None,
        lifetime: int | None = None,
    ) -> MintedToken:
        """Mints a token with which a page may call the user's engine.

        It permits what its scopes say, for one task if `task` is given, for `lifetime` seconds (900 by
        default).
        """
        body = given(scopes=list(scopes), task_id=task, lifetime_s=lifetime)
        path = f"/engines/{segment(user)}/tokens"
        return self._connection.call(Call("POST", path, MintedToken, body=body))

    def tokens(self, user: str, *, page_size: int = 100) -> Iterator[TokenSummary]:
        """The tokens of the user's engine that have not expired, the newest first, without their secrets."""
        before: str | None = None
        while True:
            path, query = f"/engines/{segment(user)}/tokens", {"limit": page_size, "before": before}
            page = self._connection.call(Call("GET", path, TokenList, query=query))
            for token in page.tokens:
                yield token
            if len(page.tokens) < page_size:
                return
            before = page.tokens[-1].token_id

    def revoke_token(self, user: str, token_id: str) -> RevokedToken:
        """Revokes a token. `in_force` is false while the engine runs and has not been reached."""
        return self._engine_call("DELETE", user, f"/tokens/{segment(token_id)}", RevokedToken)

    def origins(self) -> AllowedOrigins:
        """The origins of the product's pages, which may call its engines with tokens."""
        return self._connection.call(Call("GET", "/origins", AllowedOrigins))

    def set_origins(self, origins: Sequence[str]) -> AllowedOrigins:
        """Replaces the origins of the product's pages."""
        body = {"origins": list(origins)}
        return self._connection.call(Call("PUT", "/origins", AllowedOrigins, body=body))

    def inbox(self, *, user: str | None = None, page_size: int = 100) -> Iterator[InboxQuestion]:
        """What waits for a person at the product's engines, also at those that sleep, the oldest first."""
        after: str | None = None
        while True:
            query = {"limit": page_size, "after": after, "user_id": user}
            page = self._connection.call(Call("GET", "/inbox", Inbox, query=query))
            for question in page.questions:
                yield question
            if len(page.questions) < page_size:
                return
            after = page.questions[-1].request_id

    def status(self) -> FleetStatus:
        """How many engines there are, by state."""
        return self._connection.call(Call("GET", "/status", FleetStatus))

    def metrics(self) -> Metrics:
        """Figures of the last hour."""
        return self._connection.call(Call("GET", "/metrics", Metrics))

    def audit(
        self, *, event: str | None = None, user: str | None = None, page_size: int = 100
    ) -> Iterator[AuditRow]:
        """The rows of the audit log, the newest first. Pages are read as they are needed."""
        before: int | None = None
        while True:
            query = {"limit": page_size, "before": before, "event": event, "user_id": user}
            page = self._connection.call(Call("GET", "/audit", AuditList, query=query))
            for row in page.rows:
                yield row
            if len(page.rows) < page_size:
                return
            before = page.rows[-1].id

    def events(self, *, after: int | None = None) -> Iterator[AuditRow]:
        """The rows of the audit log as they are committed, without end.

        They begin now, or after the row `after` (0: all). A stream that breaks is resumed without a gap.
        """
        position, failures = after, 0
        while True:
            call = Call[None]("GET", "/events", query={"after": position})
            stream = self._connection.events(call)
            try:
                while (message := stream.next()) is not None:
                    if message.id is not None:
                        row = read_json(AuditRow, message.data.encode(), "GET /events")
                        position, failures = row.id, 0
                        yield row
            except NetworkError:
                pass
            finally:
                stream.close()
            failures += 1
            sleep(self._connection.retry.back_off(failures))

    def _engine_call(self, method: str, user: str, action: str, answer: type[T]) -> T:
        return self._connection.call(Call(method, f"/engines/{segment(user)}{action}", answer))


class Admin(_Orchestrator):
    """The operator's view of an orchestrator: products, their policies, and versions of engines."""

    def __init__(
        self,
        url: str,
        admin_key: str,
        *,
        retry: RetryPolicy | None = None,
        http: httpx.Client | None = None,
    ) -> None:
        super().__init__(Endpoint.operator(url, admin_key), retry, http)

    def register(
        self,
        slug: str,
        display_name: str,
        *,
        policy: Mapping[str, Any] | None = None,
        platform_api_key: str | None = None,
    ) -> RegisteredProduct:
        """Registers a product. With a `platform_api_key` of your own the call can be repeated."""
        body = given(slug=slug, display_name=display_name, policy=policy, platform_api_key=platform_api_key)
        repeatable = platform_api_key is not None
        call = Call("POST", "/products/register", RegisteredProduct, body=body, idempotent=repeatable)
        return self._connection.call(call)

    def replace_policy(self, product_id: str, policy: Mapping[str, Any]) -> ReplacedPolicy:
        """Replaces the whole policy of a product."""
        path = f"/products/{segment(product_id)}/policy"
        return self._connection.call(Call("PUT", path, ReplacedPolicy, body={"policy": policy}))

    def products(self, *, limit: int = 100, offset: int = 0) -> ProductList:
        """A page of the products."""
        query = {"limit": limit, "offset": offset}
        return self._connection.call(Call("GET", "/products", ProductList, query=query))

    def versions(self) -> VersionList:
        """How many engines are on each image."""
        return self._connection.call(Call("GET", "/admin/versions", VersionList))

    def move_engines(self, **fields: Any) -> MovedEngines:
        """Moves engines of one image to another, with the fields of the API."""
        return self._connection.call(Call("POST", "/admin/versions/move", MovedEngines, body=fields))
