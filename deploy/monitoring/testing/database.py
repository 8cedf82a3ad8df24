"""A PostgreSQL's database of a fleet's own, behind a forwarder that can be slow, hang or be cut."""

import contextlib
import os
import socket
import subprocess
import threading
import time
import urllib.parse


class Database:
    """A new database on the server of `url`."""

    def __init__(self, url):
        self._server, self._name = url, f"alerts_{os.getpid()}"
        parts = urllib.parse.urlsplit(url)
        self._run(f'CREATE DATABASE "{self._name}"')
        self.forwarder = Forwarder((parts.hostname, parts.port or 5432))
        account = parts.netloc.rpartition("@")[0]
        address = f"{account}@127.0.0.1:{self.forwarder.port}"
        self.url = parts._replace(netloc=address, path=f"/{self._name}").geturl()

    def _run(self, statement):
        command = ["psql", "--quiet", "--no-psqlrc", "--command", statement, self._server]
        subprocess.run(command, check=True, timeout=30, stdin=subprocess.DEVNULL)

    def end(self):
        """Removes it."""
        self.forwarder.end()
        self._run(f'DROP DATABASE IF EXISTS "{self._name}" WITH (FORCE)')


class Forwarder:
    """Forwards connections to `to`."""

    # How long each piece of an answer takes.
    delay_s = 0.0

    def __init__(self, to):
        self._to, self._pairs, self._listener = to, set(), None
        self._flows = threading.Event()
        self._flows.set()
        self._listen(0)
        self.port = self._listener.getsockname()[1]

    def _listen(self, port):
        self._listener = socket.create_server(("127.0.0.1", port))
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def _accept(self, listener):
        with contextlib.suppress(OSError):
            while True:
                client = listener.accept()[0]
                server = socket.create_connection(self._to)
                pair = (client, server)
                self._pairs.add(pair)
                for source, sink, is_answer in ((client, server, False), (server, client, True)):
                    threading.Thread(target=self._copy, args=(pair, source, sink, is_answer), daemon=True).start()

    def _copy(self, pair, source, sink, is_answer):
        with contextlib.suppress(OSError):
            while piece := source.recv(65536):
                if is_answer and self.delay_s:
                    time.sleep(self.delay_s)
                self._flows.wait()
                sink.sendall(piece)
        self._pairs.discard(pair)
        for end in pair:
            end.close()

    def hang(self):
        """Nothing comes through any more, until `flow`."""
        self._flows.clear()

    def flow(self):
        """What has waited comes through, and all that follows."""
        self._flows.set()

    def cut(self):
        """Breaks all connections and takes no others, until `mend`."""
        # Both wake whoever waits for them.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for pair in list(self._pairs):
            for end in pair:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def mend(self):
        """Takes connections again."""
        self._listen(self.port)

    def end(self):
        """Ends it for good."""
        self._flows.set()
        self.cut()
