"""Sends requests that schemathesis makes of the OpenAPI documents to a fleet: `served.py ROUNDHOUSE DOCUMENTS`.

Fails on a response that is a failure of the service, or that is not as its document says.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from fleet import running

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


def main() -> None:
    binary, documents = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
    with running(binary) as fleet:
        engine, key = fleet.admit(USER)
        passed = check(documents / "engine.json", engine, {"X-Engine-Key": key})
        keys = {"X-Platform-Key": fleet.platform_key, "X-Admin-Key": fleet.admin_key}
        passed = check(documents / "orchestrator.json", fleet.url, keys) and passed
    if not passed:
        sys.exit(1)


main()
