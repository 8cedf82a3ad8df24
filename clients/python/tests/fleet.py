"""A fleet of the real binary, in a temporary folder."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from urllib.parse import quote

BINARY = Path(os.environ.get("ROUNDHOUSE_BINARY", Path(__file__).parents[3] / "target/debug/roundhouse"))
ENGINE_PORTS = 160

SCRIPT = Path(__file__).parents[2] / "stories.yaml"


def eventually(what: str, condition: Callable[[], bool], seconds: float = 30.0) -> None:
    """Waits until the condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"after {seconds} s still not: {what}"
        time.sleep(0.02)


def free_ports(count: int) -> int:
    """The first of `count` ports in a row that nothing listens on."""
    for _ in range(100):
        first = random.randrange(12000, 32000 - count)
        if all(_is_free(port) for port in range(first, first + count)):
            return first
    raise AssertionError(f"no {count} free ports in a row")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


class Fleet:
    """A `roundhouse up` with the scripted provider, which ends with all of its engines."""

    def __init__(self, **variables: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="roundhouse-python-"))
        catalog = self.folder / "fleet" / "catalog"
        catalog.mkdir(parents=True)
        (catalog / "soul.md").write_text("You are somebody's own assistant.")
        first = free_ports(ENGINE_PORTS)
        self.variables = {
            "PATH": os.environ.get("PATH", ""),
            "HOME": str(self.folder),
            "ORCH_PORT": "0",
            "ORCH_PORT_MIN": str(first),
            "ORCH_PORT_MAX": str(first + ENGINE_PORTS - 1),
            "LLM_PROVIDER": "scripted",
            "LLM_SCRIPT_PATH": str(SCRIPT),
            **variables,
        }
        self._output = self.folder / "output"
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self.start()
        except BaseException:
            self.close()
            raise

    def start(self) -> None:
        """Starts it and waits until it is ready."""
        assert BINARY.is_file(), f"{BINARY} is missing: build it, or name it with ROUNDHOUSE_BINARY"
        command = [str(BINARY), "up", "--dir", str(self.folder / "fleet")]
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(command, env=self.variables, stdout=output, stderr=output)
        eventually("the fleet is up", self._is_up)
        self.url = self._read("address")
        self.key = self._read("platform.key")
        self.admin_key = self._read("admin.key")

    def _is_up(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self._output.read_text()
        return "Ctrl-C" in self._output.read_text()

    def _read(self, name: str) -> str:
        return (self.folder / "fleet" / name).read_text().strip()

    def admit(self, user: str, *, key: str | None = None) -> tuple[str, str]:
        """The address and the key of a user's engine, without the client under test."""
        request = urllib.request.Request(
            f"{self.url}/engines/{quote(user, safe='')}/admit",
            data=b'{"auto_provision": true, "auto_wake": true}',
            headers={"X-Platform-Key": key or self.key},
            method="POST",
        )
        with urllib.request.urlopen(request, timeout=90) as response:
            engine = json.load(response)["engine"]
        return engine["url"], engine["api_key"]

    def engine_processes(self) -> list[int]:
        """The processes of the engines."""
        mark = f"{self.folder}/".encode()
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                try:
                    command = (entry / "cmdline").read_bytes()
                    if mark in (entry / "environ").read_bytes() and b"\0engine" in command:
                        found.append(int(entry.name))
                except OSError:
                    continue
        return found

    def kill_engine(self, engine_id: str) -> None:
        """Kills the process of an engine, as a crash does."""
        (process,) = (pid for pid in self.engine_processes() if _is_of(pid, engine_id))
        os.kill(process, signal.SIGKILL)

    def close(self) -> None:
        """Ends everything and removes the folder."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        for pid in self.engine_processes():
            os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Fleet:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _is_of(pid: int, engine_id: str) -> bool:
    return engine_id.encode() in Path(f"/proc/{pid}/environ").read_bytes()
