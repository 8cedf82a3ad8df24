"""Decides about tool calls by rules: notes may be written, everything else is refused with a reason."""

import os

from roundhouse_client import Decision, Fleet, Reply, Request


def decide(request: Request) -> Reply:
    """Allows what changes files in `notes/`, for the whole task."""
    call = request.approval
    if call is None:
        return None  # a question, which a person answers elsewhere
    if call.tool == "write_file" and str(call.input.get("path")).startswith("notes/"):
        return Decision("allow_task", pattern="notes/*")
    return Decision("deny", message="Only files in notes/ may be written.")


def main() -> None:
    """Runs two turns, of which one is refused its call."""
    with Fleet(os.environ["ROUNDHOUSE_URL"], os.environ["ROUNDHOUSE_PLATFORM_KEY"]) as fleet:
        engine = fleet.admit("ada")
        for path in ("notes/today.txt", "elsewhere.txt"):
            print(engine.run("approvals", f"write {path}: hello", on_request=decide).text())
        print(engine.download("notes/today.txt").read().decode())


if __name__ == "__main__":
    main()
