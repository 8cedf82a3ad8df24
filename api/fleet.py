"""A fleet of `roundhouse up` in a temporary folder."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Fleet:
    url: str
    platform_key: str
    admin_key: str
    catalog: Path

    def admit(self, user: str) -> tuple[str, str]:
        """The address and the key of a user's engine."""
        request = urllib.request.Request(
            f"{self.url}/engines/{user}/admit",
            json.dumps({"auto_provision": True, "auto_wake": True}).encode(),
            {"X-Platform-Key": self.platform_key, "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as response:
            engine = json.load(response)["engine"]
        return engine["url"], engine["api_key"]


@contextlib.contextmanager
def running(binary: Path, **variables: str) -> Iterator[Fleet]:
    with tempfile.TemporaryDirectory() as folder:
        fleet, log = Path(folder, "fleet"), Path(folder, "log")
        environment = {**os.environ, "LLM_PROVIDER": "scripted", "ORCH_PORT": "0", **variables}
        with log.open("w") as output:
            up = subprocess.Popen(
                [binary, "up", "--dir", fleet], env=environment, stdout=output, stderr=subprocess.STDOUT
            )
        try:
            _wait_until_up(up, log)
            url, platform, admin = (
                (fleet / name).read_text().strip() for name in ("address", "platform.key", "admin.key")
            )
            yield Fleet(url, platform, admin, fleet / "catalog")
        finally:
            up.send_signal(signal.SIGINT)
            up.wait()


def _wait_until_up(up: subprocess.Popen, log: Path) -> None:
    deadline = time.monotonic() + 60
    while "Ctrl-C" not in log.read_text():
        if up.poll() is not None or time.monotonic() > deadline:
            sys.exit(f"the fleet did not start:\n{log.read_text()}")
        time.sleep(0.1)
