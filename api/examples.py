"""Plays the examples of the OpenAPI documents against a fleet: `examples.py ROUNDHOUSE DOCUMENTS`.

The requests are sent as they are, but for the ids in them. Each answer, and each event, must have the fields of its
example and no other.
"""

import base64
import json
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import quote

import outside
from fleet import running

# Operations whose answers need somebody else, or are those of another protocol, which its own clients check:
# `testkit::openapi_examples` holds their examples against the schemas.
NOT_PLAYED = {
    "engine": {
        *("connect_server", "complete_authorization", "receive_oauth_redirect", "delete_connection"),
        *("connect_user_server", "undo_lesson"),
        *("call_agent", "call_mcp", "run_agui_agent", "get_openapi"),
    },
    # `roundhouse up` makes no backups, and processes have no images to roll out.
    "orchestrator": {
        *("start_backup_job", "get_backup_status", "list_backups"),
        *("start_rollout", "list_rollouts", "get_rollout", "list_rollout_engines"),
        *("pause_rollout", "resume_rollout", "roll_back_rollout"),
    },
}
# Their fields are names that somebody has chosen.
MAPS = {"by_status", "detail", "input", "input_schema", "memory", "metadata", "policy", "scripts", "value"}
KINDS = {bool: "boolean", int: "number", float: "number", str: "text", list: "list", dict: "object"}


def differences(example: Any, answer: Any, place: str) -> list[str]:
    """What an answer has that its example has not, and the other way round."""
    if example is None or answer is None:
        return []
    if KINDS[type(example)] != KINDS[type(answer)]:
        return [f"{place}: {example!r} has become {answer!r}"]
    if isinstance(example, dict):
        found = [f"{place}.{name} is only in one of them" for name in example.keys() ^ answer.keys()]
        for name in example.keys() & answer.keys() - MAPS:
            found += differences(example[name], answer[name], f"{place}.{name}")
        return found
    if isinstance(example, list) and example:
        return [
            fault
            for index, item in enumerate(answer)
            for fault in least_differences(example, item, f"{place}[{index}]")
        ]
    return []


def least_differences(examples: list, answer: Any, place: str) -> list[str]:
    """The differences of an answer that may be of several kinds: it is right if it is like any of the examples."""
    return min((differences(example, answer, place) for example in examples), key=len)


def examples_of(response: dict) -> list:
    """The examples of a documented answer."""
    content = response.get("content", {}).get("application/json", {})
    only = [content["example"]] if "example" in content else []
    return only + [named["value"] for named in content.get("examples", {}).values()]


class Service:
    """A service, called by the ids of its operations."""

    def __init__(self, document: Path, url: str, headers: dict[str, str]) -> None:
        self.url, self.headers = url, headers
        self.faults: list[str] = []
        self.played: set[str] = set()
        self.operations: dict[str, tuple[str, str, dict]] = {}
        self.events: dict[str, Any] = {}
        for path, item in json.loads(document.read_text())["paths"].items():
            for method, operation in item.items():
                self.operations[operation["operationId"]] = (method, path, operation)
                for response in operation["responses"].values():
                    stream = response.get("content", {}).get("text/event-stream", {})
                    self.events |= {name: one["value"] for name, one in stream.get("examples", {}).items()}

    def __call__(self, operation: str, query: str = "", fields: dict | None = None, **path: str) -> Any:
        """Sends the example of an operation, with other `fields`; compares the answer, and returns it."""
        _, _, described = self.operations[operation]
        content = described.get("requestBody", {}).get("content", {}).get("application/json", {})
        body = {**content["example"], **(fields or {})} if "example" in content else None
        return self.play(operation, query, body, {}, path)

    def upload(self, operation: str, part: bytes, headers: dict[str, str], **path: str) -> Any:
        """Sends a part of a file by an operation; compares the answer, and returns it."""
        (kind,) = self.operations[operation][2]["requestBody"]["content"]
        return self.play(operation, "", part, {"Content-Type": kind, **headers}, path)

    def play(self, operation: str, query: str, body: Any, headers: dict, path: dict[str, str]) -> Any:
        method, template, described = self.operations[operation]
        segments = {name: quote(value, safe="/" if name == "path" else "") for name, value in path.items()}
        status, answer = self.send(method.upper(), template.format(**segments) + query, body, headers)
        examples = examples_of(described["responses"].get(str(status), {}))
        if status >= 300 or not examples:
            self.faults.append(f"{operation}: {status} {answer}")
        else:
            self.faults += least_differences(examples, answer, f"{operation} {status}")
        self.played.add(operation)
        return answer

    def send(self, method: str, path: str, body: Any = None, headers: dict | None = None) -> tuple[int, Any]:
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        headers = {**self.headers, "Content-Type": "application/json", **(headers or {})}
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def operations_with_examples(self) -> set[str]:
        """The operations whose successes are described by an example."""
        return {
            name
            for name, (_, _, operation) in self.operations.items()
            for status, response in operation["responses"].items()
            if status.startswith("2") and examples_of(response)
        }


def play_orchestrator(admin: Service, product: Service) -> str:
    """Plays the examples of both keys; returns the new product's key."""
    registered = admin("register_product")
    product.headers["X-Platform-Key"] = key = registered["platform_api_key"]
    product("get_health")
    admin("list_products")
    admin("get_fleet_overview")
    admin("get_fleet_drain")
    for operation in (
        "get_fleet_log_filter", "set_fleet_log_filter", "reset_fleet_log_filter",
        "begin_fleet_maintenance", "get_fleet_maintenance", "end_fleet_maintenance",
    ):
        admin(operation)
    admin("replace_product_policy", product_id=registered["product_id"])
    for operation in ("get_product", "disable_product", "plan_product_deletion", "enable_product"):
        admin(operation, product_id=registered["product_id"])
    second = admin("create_platform_key", product_id=registered["product_id"])["key_id"]
    admin("list_platform_keys", product_id=registered["product_id"])
    admin("revoke_platform_key", product_id=registered["product_id"], key_id=second)
    webhook = product("create_webhook")["webhook_id"]
    for operation in ("update_webhook", "get_webhook", "rotate_webhook_secret", "replay_webhook"):
        product(operation, webhook_id=webhook)
    product("list_webhooks")
    for operation in ("list_dead_letters", "retry_dead_letters", "discard_dead_letters", "delete_webhook"):
        product(operation, webhook_id=webhook)
    product("provision_engine")
    product("admit_user", user_id="ada")
    for operation in ("get_engine", "explain_engine", "get_engine_logs", "rotate_engine_key"):
        product(operation, user_id="ada")
    for operation in ("get_engine_log_filter", "set_engine_log_filter", "reset_engine_log_filter"):
        product(operation, user_id="ada")
    for operation in ("list_engines", "get_fleet_status", "get_fleet_metrics", "get_product_usage"):
        product(operation)
    product("replace_origins")
    product("get_origins")
    token = product("mint_browser_token", user_id="ada")["token_id"]
    product("list_browser_tokens", user_id="ada")
    product("revoke_browser_token", user_id="ada", token_id=token)
    product("list_inbox")
    product("stop_engine", user_id="grace")
    product("start_engine", user_id="grace")
    admin("list_fleet_engines")
    admin("get_fleet_usage")
    admin("start_failed_engines")
    admin("list_fleet_drift")
    admin("repair_fleet_drift")
    admin("list_fleet_audit_rows")
    image = admin("list_versions")["default"]
    product("change_engine_version", fields={"engine_version": image}, user_id="grace")
    admin("move_engines", fields={"from": image})
    product("list_audit_rows")
    product("destroy_engine", user_id="grace")
    return key


def play_ends(admin: Service) -> None:
    """Plays the examples that end engines."""
    (product,) = (each for each in admin("list_products")["products"] if each["slug"] != "demo")
    admin("drain_fleet")
    admin("lift_fleet_drain")
    admin("disable_product", product_id=product["product_id"])
    plan = admin("plan_product_deletion", product_id=product["product_id"])
    admin("delete_product", f"?confirmation={plan['confirmation']}", product_id=product["product_id"])


class Turns:
    """Turns of the engine that is played with."""

    def __init__(self, engine: Service) -> None:
        self.engine = engine

    def start(self, task: str, message: str, **fields: Any) -> str:
        body = {"task_id": task, "message": message, "background": True, **fields}
        _, started = self.engine.send("POST", "/execute", body)
        return started["turn_id"]

    def wait(self, task: str, turn: str, state: str = "completed") -> None:
        deadline = time.monotonic() + 60
        while self.engine.send("GET", f"/tasks/{task}/turns/{turn}")[1]["state"] != state:
            if time.monotonic() > deadline:
                sys.exit(f"the turn {turn} did not become {state}")
            time.sleep(0.05)

    def run(self, task: str, message: str, **fields: Any) -> str:
        turn = self.start(task, message, **fields)
        self.wait(task, turn)
        return turn

    def compare_events(self, task: str) -> None:
        path = f"{self.engine.url}/execute/replay?task_id={task}&after=0"
        request = urllib.request.Request(path, headers=self.engine.headers)
        with urllib.request.urlopen(request, timeout=60) as response:
            messages = response.read().decode().split("\n\n")
        for message in messages:
            lines = dict(line.split(": ", 1) for line in message.split("\n") if ": " in line)
            if "event" not in lines:
                continue
            event = {**lines, "data": json.loads(lines["data"])}
            example = self.engine.events[event["event"]]
            # Those of another phase, or of another kind of request, have other fields.
            if all(example["data"].get(name) == event["data"].get(name) for name in ("phase", "kind")):
                self.engine.faults += differences(example, event, f"the event {event['event']}")


def play_turns(engine: Service) -> None:
    turns = Turns(engine)
    engine("execute", fields={"stream": False, "task_id": "trip-2"})
    engine("execute", fields={"background": True, "task_id": "trip-3", "client_request_id": "another"})
    turn = turns.run("trip", "Plan three days in Bergen.")
    saving = turns.start("trip", "Save the plan.")
    turns.wait("trip", saving, "waiting_for_person")
    engine("list_pending_hitl")
    (approval,) = engine("list_task_approvals", task_id="trip")["approvals"]
    engine("answer_approval", task_id="trip", request_id=approval["request_id"])
    turns.wait("trip", saving)
    (grant,) = engine("list_approval_grants")["grants"]
    engine("list_hitl_grants")
    asking = turns.start("trip", "Where to?")
    turns.wait("trip", asking, "waiting_for_person")
    (pending,) = engine.send("GET", "/hitl/pending")[1]["pending"]
    engine("respond_to_hitl", fields={"request_id": pending["request_id"]})
    turns.wait("trip", asking)
    turns.compare_events("trip")
    engine("revoke_approval_grant", id=grant["id"])
    always = {"task_id": "trip-3", "answer": "always"}
    saving = turns.start("trip-3", "Save the plan.")
    turns.wait("trip-3", saving, "waiting_for_person")
    engine.send("POST", "/hitl/respond", always)
    turns.wait("trip-3", saving)
    engine("revoke_hitl_grant", id=engine.send("GET", "/hitl/grants")[1]["grants"][0]["id"])

    document = {"type": "document", "media_type": "text/plain", "data": "cGxhaW4=", "name": "notes.txt"}
    turns.run("trip", "Look at this.", media=[document])
    engine("list_task_media", task_id="trip")
    for operation in ("list_turns", "get_task_messages", "list_messages"):
        engine(operation, task_id="trip-2")
    for operation in ("get_turn", "read_turn_result"):
        engine(operation, task_id="trip", turn_id=turn)
    cassette = engine("export_cassette", task_id="trip", turn_id=turn)
    engine("run_cassette", fields={"cassette": cassette})
    engine("get_task_usage", task_id="trip")
    engine("get_usage", "?group_by=day,model")
    engine("get_usage_caps")

    running_turn = turns.start("busy", "slowly")
    turns.wait("busy", running_turn, "running")
    queued = turns.start("busy", "And a museum.", on_busy="queue")
    engine("list_queued_messages", task_id="busy")
    engine("steer_turn")
    engine("cancel_queued_message", task_id="busy", turn_id=queued)
    engine("cancel_turn")


def play_tasks(engine: Service) -> None:
    engine("list_tasks")
    engine("get_task_memory", task_id="trip")
    engine("set_task_memory_value", task_id="trip", key="budget")
    engine("delete_task_memory_value", task_id="trip", key="budget")
    engine("replace_task_memory", task_id="trip")
    engine("clear_task_memory", task_id="trip-2")
    engine("list_conversations")
    engine("search_conversations", "?q=fjord")
    engine("get_conversation", task_id="trip")
    engine("update_conversation", task_id="trip")
    first = engine.send("GET", "/tasks/trip-2/messages")[1]["messages"][0]["message_id"]
    engine("fork_task", fields={"after": first}, task_id="trip-2")
    engine("give_feedback")
    engine("delete_task", task_id="trip-2")


def play_memory(engine: Service, empty: Service) -> None:
    fact = engine("save_knowledge")["id"]
    for operation in ("list_knowledge", "search_knowledge", "list_episodes", "list_facts"):
        engine(operation)
    engine("get_fact", id=fact)
    engine("forget_fact", id=engine("correct_fact", id=fact)["id"])
    engine("delete_knowledge", id=engine("save_knowledge")["id"])
    empty.send("POST", "/memory/knowledge", {"content": "Ada likes to walk.", "tags": ["travel"]})
    empty("export_memory")
    empty("import_memory", "?mode=merge")
    engine.faults += empty.faults
    engine.played |= empty.played


def play_files(engine: Service) -> None:
    engine.upload("put_workspace_file", b"# Bergen\n", {}, path="plans/notes.md")
    engine.upload("put_workspace_file", b"# Oslo\n", {}, path="plans/notes.md")
    unfinished = {"Upload-Complete": "?0"}
    last_part = {"Upload-Offset": "0", "Upload-Complete": "?1"}
    for _ in ("created", "replaced"):
        upload = engine.upload("put_workspace_file", b"", unfinished, path="plans/large.bin")["upload_id"]
        engine.upload("append_to_upload", b"abc", last_part, upload_id=upload)
    engine("list_workspace")
    engine("get_workspace_file", "?format=json", path="plans")
    engine("delete_workspace_file", path="plans/bergen.md")


def play_user_servers(engine: Service, address: str) -> None:
    server = {"url": f"{address}/mcp"}
    engine("add_user_server", fields=server)
    engine("add_user_server", fields=server)
    engine.send("POST", "/mcp/servers/notes/connect", {"credentials": {"api_key": outside.KEY}})
    shown = engine("get_user_server", name="notes")
    engine("approve_user_server_tools", fields={"digest": shown["digest"]}, name="notes")
    engine("list_user_servers")
    engine("update_user_server", name="notes")
    engine("delete_user_server", name="notes")


def play_the_rest(engine: Service, key: str) -> None:
    engine("get_health")
    engine("create_schedule")
    engine("run_schedule", id="morning-weather")
    engine("list_schedules")
    for operation in ("get_schedule", "update_schedule", "delete_schedule"):
        engine(operation, id="morning-weather")
    engine("create_skill")
    engine("list_skills")
    for operation in ("get_skill", "update_skill", "delete_skill"):
        engine(operation, name="packing-list")
    for operation in ("list_servers", "list_connections", "list_lessons", "get_webhook", "test_webhook"):
        engine(operation)
    engine("list_webhook_deliveries")
    for operation in ("trigger_learning", "reload_catalog", "reload_core_soul", "call_rpc"):
        engine(operation)

    engine.headers = {"Authorization": f"Bearer {key}"}
    engine("get_agent_card")
    engine("openai_list_models")
    engine("openai_read_model", model="default")
    engine("openai_create_chat_completion")
    response = engine("openai_create_response")["id"]
    engine("openai_read_response", response_id=response)
    slow = {"model": "default", "input": "slowly", "background": True}
    engine("openai_cancel_response", response_id=engine.send("POST", "/v1/responses", slow)[1]["id"])
    engine("openai_delete_response", response_id=response)


def write_catalog(catalog: Path, address: str) -> None:
    """Has engines report to a webhook and permits their users tool servers of their own."""
    secret = "whsec_" + base64.b64encode(bytes(32)).decode()
    (catalog / "webhook.json").write_text(json.dumps({"url": f"{address}/webhook", "secrets": [secret]}))
    permissions = json.loads((catalog / "permissions.json").read_text())
    permissions["user_mcp_servers"] = {"max": 5, "allow": ["127.0.0.1"]}
    (catalog / "permissions.json").write_text(json.dumps(permissions))


def main() -> None:
    binary, documents = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
    script = Path(__file__).resolve().with_name("examples.yaml")
    variables = {"LLM_SCRIPT_PATH": str(script), "ENGINE_WEB_ALLOW": "127.0.0.1"}
    with outside.serving() as address, running(binary, **variables) as fleet:
        write_catalog(fleet.catalog, address)
        orchestrator = documents / "orchestrator.json"
        admin = Service(orchestrator, fleet.url, {"X-Admin-Key": fleet.admin_key})
        product = Service(orchestrator, fleet.url, {})
        play_orchestrator(admin, product)
        def engine_of(user: str) -> tuple[Service, str]:
            url, key = fleet.admit(user)
            return Service(documents / "engine.json", url, {"X-Engine-Key": key}), key

        engine, key = engine_of("ada")
        play_turns(engine)
        play_tasks(engine)
        play_memory(engine, engine_of("edsger")[0])
        play_files(engine)
        play_user_servers(engine, address)
        play_the_rest(engine, key)
        play_ends(admin)
    product.played |= admin.played
    faults = admin.faults + product.faults + engine.faults
    for name, service in (("orchestrator", product), ("engine", engine)):
        left = service.operations_with_examples() - service.played - NOT_PLAYED[name]
        faults += [f"{name}: the example of {operation} is not played" for operation in sorted(left)]
    print(f"examples: {len(product.played) + len(engine.played)} operations were played")
    if faults:
        sys.exit("\n".join(faults))


main()
