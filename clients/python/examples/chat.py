"""Sends a message to a user's engine and prints the answer as it comes; asks before a tool acts."""

import os
import sys

from roundhouse_client import Fleet, Reply, Request
from roundhouse_client.events import ErrorEvent, TextDeltaEvent, ToolCallEvent, TurnRetryingEvent


def ask(request: Request) -> Reply:
    """Asks the person at the terminal."""
    print(f"\n{request.question} {list(request.options) or ''}")
    return input("> ")


def main() -> None:
    """Runs one turn."""
    message = " ".join(sys.argv[1:]) or "Hello!"
    with Fleet(os.environ["ROUNDHOUSE_URL"], os.environ["ROUNDHOUSE_PLATFORM_KEY"]) as fleet:
        engine = fleet.admit("ada")
        turn = engine.run("chat", message, on_request=ask)
        for event in turn:
            match event:
                case TextDeltaEvent(text=text):
                    print(text, end="", flush=True)
                case TurnRetryingEvent():
                    # What was printed of the step is void: print again what counts.
                    print(f"\n{turn.text_so_far}", end="", flush=True)
                case ToolCallEvent(tool=tool):
                    print(f"\n[{tool}]")
                case ErrorEvent(message=reason):
                    sys.exit(f"\nThe turn failed: {reason}")
                case _:
                    pass
        print()


if __name__ == "__main__":
    main()
