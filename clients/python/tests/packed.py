"""Runs an example with the package that was installed into an empty environment."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from fleet import Fleet

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"

SHOWN = """
import sys, roundhouse_client as client
from importlib.metadata import metadata, requires
from importlib.resources import files
assert client.__file__.startswith(sys.prefix), client.__file__
assert files(client).joinpath("py.typed").is_file()
about = metadata("roundhouse-client")
assert about["Version"] == client.__version__, about["Version"]
assert about["License-Expression"] == "Apache-2.0"
print(" ".join(requires("roundhouse-client") or ()))
"""


def main() -> None:
    """Runs an example in the environment of the first argument, with the dependencies of the second."""
    interpreter, dependencies = sys.argv[1:]
    with Fleet() as fleet, tempfile.TemporaryDirectory() as folder:
        variables = {
            "PATH": os.environ["PATH"],
            "ROUNDHOUSE_URL": fleet.url,
            "ROUNDHOUSE_PLATFORM_KEY": fleet.key,
        }
        site = Path(interpreter).parent.parent.glob("lib/python*/site-packages")
        (next(site) / "dependencies.pth").write_text(dependencies)

        def run(*arguments: str) -> str:
            done = subprocess.run(
                [interpreter, *arguments],
                env=variables,
                cwd=folder,
                text=True,
                capture_output=True,
                timeout=60,
            )
            assert done.returncode == 0, done.stderr
            return done.stdout

        assert "pydantic" in run("-c", SHOWN)
        assert "You said: Hello" in run(str(EXAMPLES / "chat.py"), "Hello")


if __name__ == "__main__":
    main()
