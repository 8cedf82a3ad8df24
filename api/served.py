"""Sends requests that schemathesis makes of the OpenAPI documents to a fleet: `served.py ROUNDHOUSE DOCUMENTS`.

Fails on a response that is a failure of the service, or that is not as its document says.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

CHECKS = [
    "no_internal_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
]
# Streams that never end, and the engine's answers, which the orchestrator's document does not describe.
LEFT_OUT = {
    "engine": ["execute", "replay_events"],
    "orchestrator": [
        "follow_audit_rows", *(f"proxy_{method}" for method in ("get", "post", "put", "patch", "delete"))
    ],
}
SECONDS = 50
USER = "schemathesis"


def call(base: str, method: str, path: str, header: str, key: str, body: dict) -> dict:
    request = urllib.request.Request(
        base + path, json.dumps(body).encode(), {header: key, "Content-Type": "application/json"}, method=method
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)


def check(document: Path, base: str, keys: dict) -> bool:
    """Runs schemathesis on a service; returns whether all responses were as documented."""
    arguments = ["--url", base, "--checks", ",".join(CHECKS), "--phases", "examples,coverage,fuzzing"]
    arguments += ["--max-time", str(SECONDS), "--max-examples", "10", "--generation-deterministic"]
    arguments += ["--continue-on-failure", "--warnings", "off", "--no-color"]
    for name in LEFT_OUT[document.stem]:
        arguments += ["--exclude-operation-id", name]
    for name, key in keys.items():
        arguments += ["-H", f"{name}: {key}"]
    environment = {**os.environ, "SCHEMATHESIS_HOOKS": str(Path(__file__).with_name("hooks.py"))}
    command = [str(Path(sys.executable).with_name("st")), "run", str(document), *arguments]
    print(f"schemathesis: the {document.stem}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        return subprocess.run(command, env=environment, cwd=folder).returncode == 0


def wait_until_up(up: subprocess.Popen, log: Path) -> None:
    deadline = time.monotonic() + 60
    while "Ctrl-C" not in log.read_text():
        if up.poll() is not None or time.monotonic() > deadline:
            sys.exit(f"the fleet did not start:\n{log.read_text()}")
        time.sleep(0.1)


def main() -> None:
    binary, documents = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
    with tempfile.TemporaryDirectory() as folder:
        fleet = Path(folder, "fleet")
        environment = {**os.environ, "LLM_PROVIDER": "scripted", "ORCH_PORT": "0"}
        log = Path(folder, "log")
        with log.open("w") as output:
            up = subprocess.Popen(
                [binary, "up", "--dir", fleet], env=environment, stdout=output, stderr=subprocess.STDOUT
            )
        try:
            wait_until_up(up, log)
            base = (fleet / "address").read_text().strip()
            platform, admin = ((fleet / name).read_text().strip() for name in ("platform.key", "admin.key"))
            wish = {"auto_provision": True, "auto_wake": True}
            engine = call(base, "POST", f"/engines/{USER}/admit", "X-Platform-Key", platform, wish)["engine"]
            passed = check(documents / "engine.json", engine["url"], {"X-Engine-Key": engine["api_key"]})
            keys = {"X-Platform-Key": platform, "X-Admin-Key": admin}
            passed = check(documents / "orchestrator.json", base, keys) and passed
        finally:
            up.send_signal(signal.SIGINT)
            up.wait()
    if not passed:
        sys.exit(1)


main()
