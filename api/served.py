"""Sends requests that schemathesis makes of the OpenAPI documents to a fleet: `served.py ROUNDHOUSE DOCUMENTS [EXAMPLES]`.

Fails on a response that is a failure of the service, or that is not as its document says, and unless every operation was
tested in every phase. EXAMPLES is the number of cases of the fuzzing phase for each operation; `schemathesis.toml` has the
checks, and the reasons for those that an operation is spared. The variable SCHEMATHESIS_REPORTS names a folder that keeps
the reports.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from fleet import running

HERE = Path(__file__).resolve().parent
# The phases in which every operation has cases. `examples` has some only where a body or a parameter has an example,
# and `stateful` goes from operation to operation.
PHASES = ("coverage", "fuzzing")
STREAMS = "a stream that does not end by itself; the stories read it"
PROTOCOL = "another protocol, whose own clients drive it, with a form of errors that is not ours"
# The operations that are left out, with the reason.
LEFT_OUT = {
    "engine": {
        "execute": STREAMS,
        "replay_events": STREAMS,
        "call_agent": PROTOCOL,
        "call_mcp": PROTOCOL,
        "run_agui_agent": PROTOCOL,
        "openai_create_chat_completion": PROTOCOL,
        "openai_create_response": PROTOCOL,
    },
    "orchestrator": {
        "follow_audit_rows": STREAMS,
        "follow_fleet_audit_rows": STREAMS,
        **{
            f"proxy_{method}": "the engine answers, which the orchestrator's document does not describe"
            for method in ("get", "post", "put", "patch", "delete")
        },
    },
}
# The operations that have no cases in a phase.
NOT_IN_PHASE = {
    # Its schema is that of a whole recorded turn: the covering cases alone take longer than all other operations.
    "run_cassette": {"coverage"},
}
# One after the other: more of them are hardly faster, because Python makes the cases, and a failure can be repeated.
WORKERS = 1
EXAMPLES = 3
USER = "schemathesis"


def expected(document: Path) -> set[tuple[str, str]]:
    """The phases and the operations that are tested in them, by the names that schemathesis has for them."""
    return {
        (phase, f"{method.upper()} {path}")
        for path, item in json.loads(document.read_text())["paths"].items()
        for method, operation in item.items()
        if (name := operation["operationId"]) not in LEFT_OUT[document.stem]
        for phase in PHASES
        if phase not in NOT_IN_PHASE.get(name, ())
    }


def tested(report: Path) -> set[tuple[str, str]]:
    """The phases and the operations of which a response was checked."""
    finished = (json.loads(line).get("ScenarioFinished") for line in report.open())
    return {
        (scenario["phase"], scenario["recorder"]["label"])
        for scenario in finished
        if scenario and scenario["status"] != "skip" and scenario["recorder"].get("checks")
    }


def check(document: Path, base: str, keys: dict, examples: int) -> bool:
    """Runs schemathesis on a service; returns whether every operation was tested, and all responses as documented."""
    environment = {**os.environ, "SCHEMATHESIS_HOOKS": str(HERE / "hooks.py")}
    with tempfile.TemporaryDirectory() as folder:
        report = Path(os.environ.get("SCHEMATHESIS_REPORTS", folder), f"{document.stem}.ndjson")
        arguments = ["--url", base, "--workers", str(WORKERS), "--max-examples", str(examples)]
        arguments += ["--generation-deterministic", "--continue-on-failure", "--warnings", "off", "--no-color"]
        arguments += ["--report-ndjson-path", str(report)]
        for name in LEFT_OUT[document.stem]:
            arguments += ["--exclude-operation-id", name]
        for name, key in keys.items():
            arguments += ["-H", f"{name}: {key}"]
        program = str(Path(sys.executable).with_name("st"))
        command = [program, "--config-file", str(HERE / "schemathesis.toml"), "run", str(document), *arguments]
        print(f"schemathesis: the {document.stem}", flush=True)
        passed = subprocess.run(command, env=environment, cwd=folder).returncode == 0
        untested = expected(document) - tested(report)
    for phase, operation in sorted(untested):
        print(f"{operation} was not tested in the phase {phase}")
    return passed and not untested


def main() -> None:
    binary, documents = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
    examples = int(sys.argv[3]) if len(sys.argv) > 3 else EXAMPLES
    with running(binary) as fleet:
        engine, key = fleet.admit(USER)
        passed = check(documents / "engine.json", engine, {"X-Engine-Key": key}, examples)
        keys = {"X-Platform-Key": fleet.platform_key, "X-Admin-Key": fleet.admin_key}
        passed = check(documents / "orchestrator.json", fleet.url, keys, examples) and passed
    if not passed:
        sys.exit(1)


main()
