"""The faults, and the alerts that each has to fire. A fault is a function that goes on until `over` is set and then leaves
everything as it was."""

import contextlib
import json
import signal
import socket
import sqlite3
import threading
import time

from fleet import USERS
from processes import Failed, send

GROUPS = {}


class Fault:
    """A fault, and the alerts that it has to fire."""

    def __init__(self, cause, alerts):
        self.name, self.cause, self.alerts = cause.__name__, cause, alerts
        self.text = cause.__doc__.split("\n", 1)[0].rstrip(".")


def fault(group, *alerts):
    """Adds a function to the faults of a group, which are tried one after the other at one fleet."""

    def add(cause):
        GROUPS.setdefault(group, []).append(Fault(cause, [f"Roundhouse{alert}" for alert in alerts]))
        return cause

    return add


@fault("orchestrator", "OrchestratorRestarts")
def restarts(fleet, over):
    """The orchestrator is killed and started again, four times."""
    for _ in range(4):
        fleet.orchestrator.kill()
        fleet.orchestrator = fleet.launch()
        fleet.wait_until_ready()
        # Each start is scraped.
        time.sleep(1.2)
    over.wait()


@fault("orchestrator", "NoActiveOrchestrator")
def orchestrator_killed(fleet, over):
    """The orchestrator is killed."""
    fleet.orchestrator.kill()
    over.wait()
    fleet.orchestrator = fleet.launch()
    fleet.wait_until_ready()


@fault("orchestrator", "TwoActiveOrchestrators")
def two_registries(fleet, over):
    """Another orchestrator, with a registry of its own, is scraped as well."""
    other = fleet.launch(
        ORCH_DATABASE_URL=f"sqlite:{fleet.folder}/other.sqlite",
        ORCH_DATA_ROOT_PATH=f"{fleet.folder}/other-engines",
        ORCH_PORT="0",
        ORCH_METRICS_ADDR=f"127.0.0.1:{fleet.other_metrics_port}",
    )
    over.wait()
    other.end()


@fault("orchestrator", "FilesRunOut")
def connections_left_open(fleet, over):
    """Callers leave their connections open."""
    with contextlib.ExitStack() as connections:
        # It has some of its own.
        for _ in range(int(fleet.open_files * 0.8)):
            connections.enter_context(socket.create_connection(("127.0.0.1", fleet.port)))
        over.wait()


@fault("orchestrator", "HealthChecksLate")
def no_processor_time(fleet, over):
    """The orchestrator gets no processor time for half of the time."""
    # Checks follow a second after the last ones, which is just after it was stopped.
    while not over.wait(0.8):
        fleet.orchestrator.signal(signal.SIGSTOP)
        over.wait(0.9)
        fleet.orchestrator.signal(signal.SIGCONT)


@fault("engines", "HealthChecksFailing")
def engines_hang(fleet, over):
    """Two of five engines hang (SIGSTOP), also after their restarts."""
    # Those that boot are let be: they are to run before they hang.
    seen = {}
    while not over.wait(0.2):
        for pid in fleet.engines(USERS[:2]):
            if time.monotonic() - seen.setdefault(pid, time.monotonic()) > 1:
                send(pid, signal.SIGSTOP)
    for pid in fleet.engines():
        send(pid, signal.SIGCONT)


@fault("engines", "BootsFailing", "EnginesFailed", "AdmitsFailing")
def brains_of_a_later_version(fleet, over):
    """The brains of two of five engines are of a later version, which these cannot read."""
    users = USERS[:2]
    kept = {user: _set_version(fleet, user, 9999) for user in users}
    over.wait()
    for user in users:
        _set_version(fleet, user, kept[user])
    fleet.operator("POST", "/fleet/start-failed")


def _set_version(fleet, user, version):
    """Sets the version of the format of a user's brain, while its engine does not run; returns the one before."""
    for pid in fleet.engines([user]):
        send(pid, signal.SIGKILL)
    with contextlib.closing(sqlite3.connect(fleet.brain(user), timeout=5, isolation_level=None)) as brain:
        before = brain.execute("PRAGMA user_version").fetchone()[0]
        brain.execute(f"PRAGMA user_version = {version}")
    for pid in fleet.engines([user]):
        send(pid, signal.SIGKILL)
    return before


@fault("capacity", "EnginesFailing")
def engines_killed(fleet, over):
    """The engines are killed, again and again."""
    while True:
        for pid in fleet.engines():
            send(pid, signal.SIGKILL)
        if over.wait(1.5):
            return


@fault("capacity", "HostFull")
def ports_leased(fleet, over):
    """Engines have all ports, and another user comes."""
    _come(fleet, over, "leased")


@fault("capacity", "HostFull")
def ports_taken_by_others(fleet, over):
    """Other programs listen on all ports that are left, and another user comes."""
    with contextlib.ExitStack() as listeners:
        for port in fleet.engine_ports:
            with contextlib.suppress(OSError):
                listeners.enter_context(socket.create_server(("127.0.0.1", port)))
        _come(fleet, over, "taken")


def _come(fleet, over, slug):
    """Users come, one after the other, and go when it is over. Their engines never sleep: then they give up their ports."""
    product = {"slug": slug, "display_name": slug, "policy": {"idle_sleep_threshold_s": 0}}
    key = {"X-Platform-Key": fleet.operator("POST", "/products/register", product)["platform_api_key"]}
    users = []
    while not over.wait(0.2):
        user = f"user-{len(users)}"
        status, answer = fleet.call("POST", "/engines/provision", {"user_id": user}, timeout=30, **key)
        if status < 300:
            users.append(user)
        elif answer["error"]["code"] != "PORT_EXHAUSTION":
            raise Failed(f"a provision was answered with {answer}")
    for user in users:
        fleet.call("DELETE", f"/engines/{user}", timeout=30, **key)


@fault("capacity", "RequestsLimited")
def a_greedy_product(fleet, over):
    """A product makes many more admits than its policy allows."""
    product = {"slug": "greedy", "display_name": "Greedy", "policy": {"rate_limit_rpm": 30}}
    key = fleet.operator("POST", "/products/register", product)["platform_api_key"]
    while not over.wait(0.1):
        fleet.call("POST", "/engines/nobody/admit", {}, **{"X-Platform-Key": key})


@fault("disk", "BootsSlow")
def slow_boots(fleet, over):
    """Engines boot on a host that gives them no processor time for three seconds."""
    stop = threading.Event()

    def freeze():
        known, frozen = set(fleet.engines()), {}
        while not stop.is_set():
            # At once: it is to be stopped before it is ready.
            for pid in set(fleet.engines()) - known:
                send(pid, signal.SIGSTOP)
                known.add(pid)
                frozen[pid] = time.monotonic()
            now = time.monotonic()
            for pid in [pid for pid, since in frozen.items() if now - since > 3]:
                send(pid, signal.SIGCONT)
                del frozen[pid]
            time.sleep(0.01)
        for pid in frozen:
            send(pid, signal.SIGCONT)

    freezer = threading.Thread(target=freeze, daemon=True)
    freezer.start()
    # One of them boots at each time.
    while not over.is_set():
        for user in USERS[:3]:
            fleet.call("POST", f"/engines/{user}/stop", timeout=30)
            fleet.call("POST", f"/engines/{user}/start", timeout=30)
    stop.set()
    freezer.join()


@fault("disk", "ServerErrors")
def drained(fleet, over):
    """The deployment is drained, and callers do not know."""
    fleet.operator("POST", "/fleet/drain")
    over.wait()
    fleet.operator("DELETE", "/fleet/drain")


@fault("disk", "BackendFailing")
def data_root_gone(fleet, over):
    """The disk with the engines' data is not mounted, and another user comes."""
    away = fleet.data_root.with_name("away")
    fleet.data_root.rename(away)
    while not over.wait(0.5):
        fleet.call("POST", "/engines/provision", {"user_id": "one-more"}, timeout=30)
    away.rename(fleet.data_root)


@fault("disk", "BackupsOverdue")
def backup_store_gone(fleet, over):
    """The disk for backups has been away for two hours."""
    fleet.orchestrator.kill()
    store = fleet.folder / "store"
    # A file where its folder should be.
    store.write_text("")
    two_hours_ago = int((time.time() - 7200) * 1000)
    with contextlib.closing(sqlite3.connect(fleet.folder / "registry.sqlite", isolation_level=None)) as registry:
        registry.execute("INSERT INTO meta (name, value) VALUES ('backup_succeeded_at', ?)", [str(two_hours_ago)])
    fleet.orchestrator = fleet.launch(ORCH_BACKUP_URL=f"file://{store}", ORCH_BACKUP_INTERVAL="1m")
    fleet.wait_until_ready()
    over.wait()
    fleet.orchestrator.kill()
    store.unlink()
    fleet.orchestrator = fleet.launch()
    fleet.wait_until_ready()


@fault("disk", "RolloutFailed")
def rollout_paused_by_failures(fleet, over):
    """A rollout has paused because an engine failed on its version."""
    _with_rollout(
        fleet,
        "INSERT INTO rollouts (rollout_id, engine_version, previous_version, plan, phase, phase_since, paused, discards_turns,"
        " reason, started_at) VALUES (?, 'svc-engine:0.0.1', 'svc-engine:0.0.1', ?, 'canary', ?, 1, 0, ?, ?)",
        [f"roll_{1:032x}", json.dumps(_PLAN), _now_ms(), "1 engine has failed on the new version", _now_ms()],
    )
    over.wait()
    _with_rollout(fleet, "DELETE FROM rollouts", [])


# Processes have no images to roll out, so that the registry gets what a rollout would have left there.
_PLAN = {
    **{"canaries": 1, "bake_s": 0, "window_s": 0, "max_failures": 0, "max_error_percent": 5},
    **{"concurrency": 1, "on_failure": "pause"},
}


def _now_ms():
    return int(time.time() * 1000)


def _with_rollout(fleet, statement, values):
    """Changes the registry's rollouts while no orchestrator has it."""
    fleet.orchestrator.kill()
    with contextlib.closing(sqlite3.connect(fleet.folder / "registry.sqlite", isolation_level=None)) as registry:
        registry.execute(statement, values)
    fleet.orchestrator = fleet.launch()
    fleet.wait_until_ready()


@fault("database", "RegistryFailing", "NoActiveOrchestrator")
def database_gone(fleet, over):
    """The database's server cannot be reached."""
    fleet.database.forwarder.cut()
    over.wait()
    fleet.database.forwarder.mend()
    fleet.wait_until_ready()


@fault("database", "RegistrySlow", "AdmitsSlow")
def database_slow(fleet, over):
    """Each answer of the database takes 0.3 seconds."""
    fleet.database.forwarder.delay_s = 0.3
    over.wait()
    fleet.database.forwarder.delay_s = 0


@fault("database", "EngineCountsStale")
def database_hangs(fleet, over):
    """The database's server does not answer any more."""
    fleet.database.forwarder.hang()
    over.wait()
    fleet.database.forwarder.flow()
    fleet.wait_until_ready()
