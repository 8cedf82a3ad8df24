"""Sends a message to the engines of many users at once."""

import asyncio
import os
import sys

from roundhouse_client import AsyncFleet, NotAdmittedError, TurnFailedError


async def greet(fleet: AsyncFleet, user: str) -> str:
    """Returns the answer of a user's engine, or why there is none."""
    try:
        engine = await fleet.admit(user)
        return await engine.run("greeting", f"Hello, I am {user}").text()
    except (NotAdmittedError, TurnFailedError) as error:
        return f"no answer: {error}"


async def main() -> None:
    """Greets as many users as the first argument says."""
    users = [f"user-{number}" for number in range(int(sys.argv[1]) if len(sys.argv) > 1 else 3)]
    async with AsyncFleet(os.environ["ROUNDHOUSE_URL"], os.environ["ROUNDHOUSE_PLATFORM_KEY"]) as fleet:
        answers = await asyncio.gather(*(greet(fleet, user) for user in users))
    for user, answer in zip(users, answers, strict=True):
        print(f"{user}: {answer}")


if __name__ == "__main__":
    asyncio.run(main())
