"""What is started here, and its end."""

import os
import pathlib
import random
import signal
import socket
import subprocess
import threading
import time


class Failed(Exception):
    """Something is not as it should be."""


_started, _is_over, _lock = [], False, threading.Lock()


class Process:
    """A child process, whose output goes to a file."""

    def __init__(self, command, log, env=None):
        self.log = log
        with _lock, open(log, "ab") as output:
            if _is_over:
                raise Failed("nothing is started any more")
            self._child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=env)
            _started.append(self)

    def check_running(self):
        """Fails if it has ended."""
        if self._child.poll() is not None:
            raise Failed(f"{self._child.args[0]} has ended: {self.log.read_text()[-2000:]}")

    def signal(self, number):
        """Sends a signal."""
        self._child.send_signal(number)

    def kill(self):
        """Kills it, and waits for its end."""
        self._child.kill()
        self._child.wait()

    def end(self):
        """Asks it to end; after five seconds it is killed."""
        # One that was stopped hears nothing else.
        self._child.send_signal(signal.SIGCONT)
        self._child.terminate()
        try:
            self._child.wait(5)
        except subprocess.TimeoutExpired:
            self.kill()


def end_all(folder):
    """Kills all that was started and all that works in a folder, and lets nothing start any more."""
    global _is_over
    with _lock:
        _is_over = True
    for process in _started:
        process.kill()
    # Engines outlive their orchestrator.
    deadline = time.monotonic() + 10
    while (left := processes_in(folder)) and time.monotonic() < deadline:
        for pid in left:
            send(pid, signal.SIGKILL)
        time.sleep(0.05)


def processes_in(folder):
    """The pids of the processes that work in a folder, with the name of the folder below it."""
    found = {}
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                place = pathlib.Path(os.readlink(entry / "cwd"))
            except OSError:
                continue
            if place.is_relative_to(folder) and place != folder:
                found[int(entry.name)] = place.relative_to(folder).parts[0]
    return found


def send(pid, number):
    """Sends a signal to a process that may have ended."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def wait_for(what, is_so, seconds=30):
    """Waits until something is so; an error is a no."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if is_so():
                return
        except OSError:
            pass
        time.sleep(0.05)
    raise Failed(f"not within {seconds} s: {what}")


_taken = set()


def free_ports(number):
    """The first of consecutive ports of the loopback interface that nobody listens on, below those of outgoing connections."""
    for _ in range(1000):
        first = random.randrange(20000, 32000)
        ports = range(first, first + number)
        if _taken.isdisjoint(ports) and all(map(_is_free, ports)):
            _taken.update(ports)
            return first
    raise Failed("there are no free ports")


def _is_free(port):
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
