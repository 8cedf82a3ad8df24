"""Uses the packages of a folder as products do: in empty environments, with their declared dependencies."""

from __future__ import annotations

import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from fleet import Fleet

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"
PROJECT = (ROOT / "pyproject.toml").read_text()

SHOWN = """
import sys, roundhouse_client as client
from importlib.metadata import metadata
from importlib.resources import files
assert client.__file__.startswith(sys.prefix), client.__file__
assert files(client).joinpath("py.typed").is_file()
about = metadata("roundhouse-client")
assert about["Version"] == client.__version__, about["Version"]
assert about["License-Expression"] == "Apache-2.0"
"""


def run(*command: str | Path, **variables: str) -> str:
    """What a program prints, which must succeed. Its folder is empty: Python and mypy import from there."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    with tempfile.TemporaryDirectory() as empty:
        done = subprocess.run(
            [str(part) for part in command],
            env={**inherited, **variables},
            cwd=empty,
            text=True,
            capture_output=True,
            timeout=300,
        )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


def install(interpreter: str, folder: Path, package: str, *constraints: str) -> Path:
    """An environment of this interpreter, in which nothing but the package is asked for."""
    run(interpreter, "-m", "venv", folder)
    python = folder / "bin" / "python"
    (folder / "constraints.txt").write_text("\n".join(constraints))
    pip: list[str | Path] = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    run(*pip, "--constraint", folder / "constraints.txt", package)
    run(python, "-m", "pip", "check")
    return python


def oldest_python() -> tuple[str, str | None]:
    """The oldest version that the package is for, and its interpreter, if this machine has one."""
    claimed = re.search(r'^requires-python = ">=(.+)"$', PROJECT, re.MULTILINE)
    assert claimed is not None
    version = claimed[1]
    pyenv = os.environ.get("PYENV_ROOT", f"{Path.home()}/.pyenv")
    named = [os.environ.get("PYTHON_OLDEST", ""), shutil.which(f"python{version}") or ""]
    question = "import ensurepip, sys, venv; print('%d.%d' % sys.version_info[:2])"
    for candidate in [*named, *glob.glob(f"{pyenv}/versions/{version}.*/bin/python")]:
        if candidate and _output(candidate, "-c", question) == version:
            return version, candidate
    return version, None


def _output(*command: str) -> str:
    return subprocess.run(command, text=True, capture_output=True, timeout=60).stdout.strip()


def oldest_dependencies() -> list[str]:
    """The dependencies in the oldest versions that the package is for."""
    (listed,) = re.findall(r"^dependencies = \[(.+)\]$", PROJECT, re.MULTILINE)
    bounds: list[tuple[str, str]] = re.findall(r'"([\w-]+)>=([\d.]+)', listed)
    assert len(bounds) == listed.count('"') / 2, "each has a lower bound"
    return [f"{name}=={version}" for name, version in bounds]


def main() -> None:
    """Runs programs with the wheel, and with the source package where everything is the oldest."""
    packages = Path(sys.argv[1])
    (wheel,), (source,) = packages.glob("*.whl"), packages.glob("*.tar.gz")
    oldest, interpreter = oldest_python()
    with Fleet() as fleet, tempfile.TemporaryDirectory() as folder:
        access = {"ROUNDHOUSE_URL": fleet.url, "ROUNDHOUSE_PLATFORM_KEY": fleet.key}

        def use(python: Path) -> None:
            run(python, "-c", SHOWN)
            assert "You said: Hello" in run(python, EXAMPLES / "chat.py", "Hello", **access)
            assert "user-2: You said: " in run(python, EXAMPLES / "many_users.py", **access)

        python = install(sys.executable, Path(folder) / "newest", str(wheel))
        use(python)
        mypy = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--config-file", os.devnull]
        cache = Path(folder) / "mypy"
        run(*mypy, "--cache-dir", cache, "--python-executable", python, *sorted(EXAMPLES.glob("*.py")))
        if interpreter is None:
            print(f"skipped: the package on Python {oldest}; PYTHON_OLDEST names one", file=sys.stderr)
        else:
            use(install(interpreter, Path(folder) / "oldest", str(source), *oldest_dependencies()))


if __name__ == "__main__":
    main()
