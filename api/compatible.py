"""Compares the OpenAPI documents with those of the last release: `compatible.py OASDIFF RELEASED CURRENT`.

Fails on a change that breaks a client, and first shows on a few changes that it can tell those from others.
`corrections.txt` lists what only looks like one: there the released document said something else than what the service
has always done. A correction that is not found any more fails too, so the list ends with the release.
"""

import copy
import json
import subprocess
import sys
import tempfile
from pathlib import Path

SEVERITY = Path(__file__).with_name("severity-levels.txt")
CORRECTIONS = Path(__file__).with_name("corrections.txt")


def comparable(document: dict) -> dict:
    """Returns the document with event streams as JSON: oasdiff takes the values of other media types for text."""
    document = copy.deepcopy(document)
    for item in document["paths"].values():
        for operation in item.values():
            for response in operation["responses"].values():
                content = response.get("content", {})
                if "text/event-stream" in content:
                    content["application/json"] = content.pop("text/event-stream")
    return document


def breaking(oasdiff: str, old: dict, new: dict) -> list[str]:
    """Returns the breaking changes, a line each."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder, name) for name in ("old.json", "new.json")]
        for path, document in zip(paths, (old, new)):
            path.write_text(json.dumps(comparable(document)))
        arguments = ["--flatten-allof", "--severity-levels", str(SEVERITY), "--fail-on", "ERR", "--format", "json"]
        result = subprocess.run(
            [oasdiff, "breaking", *arguments, *map(str, paths)], capture_output=True, text=True
        )
    if result.returncode not in (0, 1) or (result.returncode and not result.stdout):
        sys.exit(f"oasdiff failed: {result.stderr}")
    found = json.loads(result.stdout) if result.returncode else []
    # Level 3 is an error; what is below it does not break a client.
    lines = [f"{each['operation']} {each['path']}: {each['text']}" for each in found if each["level"] == 3]
    return lines + removed_error_codes(old, new)


def removed_error_codes(old: dict, new: dict) -> list[str]:
    """Returns a line for each error code that an operation no longer answers with: oasdiff reads no extensions."""
    codes = lambda document, path, method: {
        code
        for response in document["paths"].get(path, {}).get(method, {}).get("responses", {}).values()
        for code in response.get("x-error-codes", [])
    }
    return [
        f"{method.upper()} {path}: the error code {code} was removed"
        for path, item in old["paths"].items()
        for method in item
        if method in new["paths"].get(path, {})
        for code in sorted(codes(old, path, method) - codes(new, path, method))
    ]


def removed_path(document: dict) -> None:
    del document["paths"]["/tasks"]


def removed_operation(document: dict) -> None:
    del document["paths"]["/schedules"]["post"]


def renamed_operation(document: dict) -> None:
    document["paths"]["/tasks"]["get"]["operationId"] = "tasks"


def removed_response_property(document: dict) -> None:
    schema = document["components"]["schemas"]["TaskSummary"]
    del schema["properties"]["updated_at"]
    schema["required"].remove("updated_at")


def changed_response_type(document: dict) -> None:
    document["components"]["schemas"]["TaskSummary"]["properties"]["message_count"] = {"type": "string"}


def required_request_property(document: dict) -> None:
    schema = document["components"]["schemas"]["Execute"]
    schema["properties"]["new"] = {"type": "string"}
    schema["required"].append("new")


def required_parameter(document: dict) -> None:
    parameter = {"in": "query", "name": "new", "required": True, "schema": {"type": "string"}}
    document["paths"]["/tasks"]["get"]["parameters"].append(parameter)


def narrowed_request_enum(document: dict) -> None:
    document["components"]["schemas"]["Effort"]["enum"].pop()


def removed_event(document: dict) -> None:
    union = document["components"]["schemas"]["TurnEvent"]
    union["oneOf"] = [event for event in union["oneOf"] if not event["$ref"].endswith("/UsageEvent")]
    del union["discriminator"]["mapping"]["usage"]


def removed_event_property(document: dict) -> None:
    schema = document["components"]["schemas"]["TextDeltaData"]
    del schema["properties"]["text"]
    schema["required"].remove("text")


def changed_event_type(document: dict) -> None:
    document["components"]["schemas"]["TextDeltaData"]["properties"]["text"] = {"type": "integer"}


def removed_error_code(document: dict) -> None:
    document["components"]["schemas"]["ErrorCode"]["enum"].remove("TASK_BUSY")


def removed_error_code_of_an_operation(document: dict) -> None:
    document["paths"]["/execute"]["post"]["responses"]["429"]["x-error-codes"].remove("QUEUE_FULL")


def removed_refusal(document: dict) -> None:
    del document["paths"]["/execute"]["post"]["responses"]["409"]


def removed_response_header(document: dict) -> None:
    del document["paths"]["/execute"]["post"]["responses"]["429"]["headers"]["Retry-After"]


def new_path(document: dict) -> None:
    document["paths"]["/new"] = {"get": {"operationId": "new", "responses": {"204": {"description": "Done"}}}}


def new_response_property(document: dict) -> None:
    document["components"]["schemas"]["TaskSummary"]["properties"]["new"] = {"type": "string"}


def optional_request_property(document: dict) -> None:
    document["components"]["schemas"]["Execute"]["properties"]["new"] = {"type": "string"}


def new_error_code(document: dict) -> None:
    document["components"]["schemas"]["ErrorCode"]["enum"].append("NEW")


def new_error_code_of_an_operation(document: dict) -> None:
    document["paths"]["/execute"]["post"]["responses"]["429"]["x-error-codes"].append("NEW")


def new_refusal(document: dict) -> None:
    document["paths"]["/tasks"]["get"]["responses"]["409"] = {"description": "`NEW`", "x-error-codes": ["NEW"]}


def new_response_header(document: dict) -> None:
    headers = document["paths"]["/tasks"]["get"]["responses"]["200"].setdefault("headers", {})
    headers["New"] = {"schema": {"type": "string"}}


def new_event(document: dict) -> None:
    schemas = document["components"]["schemas"]
    schemas["NewEvent"] = copy.deepcopy(schemas["UsageEvent"])
    schemas["NewEvent"]["properties"]["event"]["enum"] = ["new"]
    schemas["TurnEvent"]["oneOf"].append({"$ref": "#/components/schemas/NewEvent"})
    schemas["TurnEvent"]["discriminator"]["mapping"]["new"] = "#/components/schemas/NewEvent"


BREAKING = [
    removed_path, removed_operation, renamed_operation, removed_response_property, changed_response_type,
    required_request_property, required_parameter, narrowed_request_enum, removed_event, removed_event_property,
    changed_event_type, removed_error_code, removed_error_code_of_an_operation, removed_refusal,
    removed_response_header,
]
COMPATIBLE = [
    new_path, new_response_property, optional_request_property, new_error_code, new_error_code_of_an_operation,
    new_refusal, new_response_header, new_event,
]


def test_gate(oasdiff: str, document: dict) -> None:
    """Shows on changes of the engine's document that the comparison goes red on those that break clients."""
    for change in BREAKING:
        changed = copy.deepcopy(document)
        change(changed)
        if not breaking(oasdiff, document, changed):
            sys.exit(f"the comparison takes `{change.__name__}` for compatible")
    changed = copy.deepcopy(document)
    for change in COMPATIBLE:
        change(changed)
    if found := breaking(oasdiff, document, changed):
        sys.exit("the comparison takes compatible changes for breaking:\n" + "\n".join(found))


def main() -> None:
    oasdiff, released, current = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    read = lambda folder, service: json.loads((folder / f"{service}.json").read_text())
    test_gate(oasdiff, read(current, "engine"))
    lines = CORRECTIONS.read_text().splitlines() if CORRECTIONS.exists() else []
    corrections = {line for line in lines if line and not line.startswith("#")}
    found = {
        line
        for service in ("engine", "orchestrator")
        for line in breaking(oasdiff, read(released, service), read(current, service))
    }
    if changes := sorted(found - corrections):
        sys.exit("Clients of the last release break:\n" + "\n".join(changes))
    if stale := sorted(corrections - found):
        sys.exit(f"{CORRECTIONS.name} lists what is not found:\n" + "\n".join(stale))


main()
