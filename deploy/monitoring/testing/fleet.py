"""A fleet that is used: an orchestrator with engines as processes, and callers that admit their users all the time."""

import base64
import contextlib
import http.client
import itertools
import json
import os
import secrets
import subprocess
import threading
import time

from processes import Process, free_ports, processes_in, wait_for

# Users whose engines are needed all the time, and one who comes now and then, and whose engine sleeps meanwhile.
USERS = ["ada", "ben", "cyd", "dan", "eve"]
SLEEPER = "zoe"
IDLE_S = 2
TURN_EVERY_S = 5
SLEEPER_COMES_EVERY_S = 5
# A restart follows a failure within a second, so that an engine that cannot boot tries again and again.
SETTINGS = {
    "ORCH_BACKEND": "process",
    "ORCH_HOST": "127.0.0.1",
    "ORCH_HEALTH_CHECK_INTERVAL_S": "1",
    "ORCH_HEALTH_CHECK_TIMEOUT_S": "0.9",
    "ORCH_RESTART_BACKOFF_BASE_S": "0.3",
    "ORCH_RESTART_BACKOFF_MAX_S": "1",
    "ORCH_RESTART_MAX_ATTEMPTS": "1000",
    "ORCH_IDLE_SLEEP_THRESHOLD_S": str(IDLE_S),
    "ORCH_ENGINE_ENV_PASSTHROUGH": "LLM_PROVIDER",
    "LLM_PROVIDER": "scripted",
}


class Fleet:
    """The fleet of one group of faults, in a folder of its own."""

    def __init__(self, folder, binary, database=None, open_files=None, engine_ports=20):
        folder.mkdir()
        self.folder, self._binary, self.database, self.open_files = folder, binary, database, open_files
        first = free_ports(engine_ports + 3)
        self.port, self.metrics_port, self.other_metrics_port = range(first, first + 3)
        self.engine_ports = range(first + 3, first + 3 + engine_ports)
        self.data_root = folder / "engines"
        self.admin_key = secrets.token_urlsafe(24)
        self.platform_key = self.product_id = None
        version = subprocess.run([binary, "--version"], check=True, capture_output=True, text=True).stdout.split()[1]
        inherited = {name: os.environ[name] for name in ("PATH", "LANG", "HOME") if name in os.environ}
        self._settings = inherited | SETTINGS | {
            "ORCH_DATABASE_URL": database.url if database else f"sqlite:{folder}/registry.sqlite",
            "ORCH_MASTER_KEY": base64.urlsafe_b64encode(secrets.token_bytes(32)).decode().rstrip("="),
            "ORCH_ADMIN_KEY": self.admin_key,
            "ORCH_ENGINE_IMAGE": f"svc-engine:{version}",
            "ORCH_PORT": str(self.port),
            "ORCH_PORT_MIN": str(self.engine_ports[0]),
            "ORCH_PORT_MAX": str(self.engine_ports[-1]),
            "ORCH_METRICS_ADDR": f"127.0.0.1:{self.metrics_port}",
            "ORCH_DATA_ROOT_PATH": str(self.data_root),
        }
        self._engine_ids = {}

    def launch(self, **settings):
        """Launches an orchestrator, without waiting for it."""
        command = [str(self._binary), "orchestrator"]
        if self.open_files:
            command = ["prlimit", f"--nofile={self.open_files}", *command]
        return Process(command, self.folder / "orchestrator.log", self._settings | settings)

    def start(self):
        """Starts the fleet, with a product and the engines of all users, and its callers."""
        self.orchestrator = self.launch()
        self.wait_until_ready()
        product = self.operator("POST", "/products/register", {"slug": "shop", "display_name": "Shop"})
        self.platform_key, self.product_id = product["platform_api_key"], product["product_id"]
        for user in [*USERS, SLEEPER]:
            status, engine = self.call("POST", "/engines/provision", {"user_id": user})
            assert status < 300, engine
            self._engine_ids[user] = engine["engine_id"]
        for users, pause in ((USERS, 0.05), (USERS[::-1], 0.05), ([SLEEPER], SLEEPER_COMES_EVERY_S)):
            threading.Thread(target=self._use, args=(users, pause), daemon=True).start()
        # On a slow machine it sleeps by now.
        self.admit(USERS[0])
        status, answer = self._turn()
        assert status == 200, answer
        threading.Thread(target=self._talk, daemon=True).start()

    def wait_until_ready(self):
        """Waits until the orchestrator is active."""
        def is_ready():
            self.orchestrator.check_running()
            return self.call("GET", "/health")[0] == 200

        wait_for("the orchestrator is ready", is_ready)

    def _use(self, users, pause):
        for user in itertools.cycle(users):
            time.sleep(pause)
            with contextlib.suppress(OSError):
                self.admit(user)

    def _turn(self):
        """A turn of the first user."""
        turn = {"task_id": "first", "message": "Good morning."}
        return self.call("POST", f"/engines/{USERS[0]}/proxy/execute", turn, raw=True)

    def _talk(self):
        """Turns, for rates of what they use; a fault may take their engine."""
        while True:
            time.sleep(TURN_EVERY_S)
            with contextlib.suppress(OSError, http.client.HTTPException):
                self._turn()

    def admit(self, user):
        """Admits a user, whose engine is woken."""
        return self.call("POST", f"/engines/{user}/admit", {"auto_wake": True})

    def call(self, method, path, body=None, raw=False, timeout=10, **headers):
        """A call of the product: the status and the answer."""
        headers = headers or ({"X-Platform-Key": self.platform_key} if self.platform_key else {})
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            text = None if body is None else json.dumps(body)
            connection.request(method, path, text, headers | {"Content-Type": "application/json"})
            answer = connection.getresponse()
            content = answer.read()
            return answer.status, content if raw else json.loads(content or "null")
        except http.client.HTTPException as error:
            raise ConnectionError(str(error)) from error
        finally:
            connection.close()

    def operator(self, method, path, body=None):
        """A call of the operator, which has to succeed."""
        status, answer = self.call(method, path, body, **{"X-Admin-Key": self.admin_key})
        assert status < 300, (path, status, answer)
        return answer

    def engines(self, users=None):
        """The pids of the engines that run, of some users or of all."""
        wanted = None if users is None else {self._engine_ids[user] for user in users}
        found = processes_in(self.data_root)
        return [pid for pid, folder in found.items() if wanted is None or folder in wanted]

    def brain(self, user):
        """The file of a user's brain."""
        return self.data_root / self._engine_ids[user] / "brain.sqlite"
