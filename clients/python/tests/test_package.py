"""What ties the package to the repository: version, licence, codes, events, and the examples of its pages."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

import roundhouse_client
from fleet import Fleet as RunningFleet
from roundhouse_client._core.event_parsing import KNOWN_TYPES
from roundhouse_client.errors import CODES

PACKAGE = Path(__file__).resolve().parents[1]
REPOSITORY = PACKAGE.parents[1]


def test_the_version_is_that_of_the_binary() -> None:
    cargo = (REPOSITORY / "Cargo.toml").read_text()
    version = re.search(r'\[workspace\.package\]\nversion = "(.+)"', cargo)
    project = re.search(r'^version = "(.+)"$', (PACKAGE / "pyproject.toml").read_text(), re.MULTILINE)
    assert version is not None
    assert project is not None
    assert roundhouse_client.__version__ == project[1] == version[1]


def test_the_licence_is_that_of_the_repository() -> None:
    assert (PACKAGE / "LICENSE").read_text() == (REPOSITORY / "LICENSE").read_text()


def test_what_is_imported_is_declared() -> None:
    """Each by itself, so that no dependency is there only because another one needs it."""
    imported: set[str] = set()
    for path in (PACKAGE / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imported |= {name.name.partition(".")[0] for name in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
                imported.add(node.module.partition(".")[0])
    listed = re.search(r"^dependencies = \[(.+)\]$", (PACKAGE / "pyproject.toml").read_text(), re.MULTILINE)
    assert listed is not None
    declared = {name.replace("-", "_") for name in re.findall(r'"([\w-]+)[><=]', listed[1])}
    assert imported - sys.stdlib_module_names == declared


def test_every_code_and_every_event_of_the_services_has_its_class() -> None:
    api = REPOSITORY / "crates" / "api" / "src"
    source = (api / "error.rs").read_text()
    listed = source[source.index("pub enum ErrorCode {") : source.index("impl ErrorCode")]
    names = re.findall(r"^    ([A-Z]\w+),$", listed, re.MULTILINE)
    assert set(CODES) == {re.sub(r"(?<!^)(?=[A-Z])", "_", name).upper() for name in names}
    kinds = re.findall(r'Self::\w+\(_\) => "(\w+)"', (api / "event.rs").read_text())
    assert set(kinds) == KNOWN_TYPES


def test_the_codes_of_the_documents_have_their_classes(running: RunningFleet) -> None:
    with urllib.request.urlopen(f"{running.url}/openapi.json", timeout=30) as response:
        document = json.load(response)
    assert set(document["components"]["schemas"]["ErrorCode"]["enum"]) <= set(CODES)


def blocks() -> list[str]:
    pages = [PACKAGE / "README.md", REPOSITORY / "docs" / "python.md"]
    return [
        block for page in pages for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    ]


@pytest.mark.parametrize("block", blocks())
def test_the_examples_of_the_pages_run(running: RunningFleet, block: str) -> None:
    program = f"PLATFORM_KEY = {running.key!r}\n" + block.replace("http://127.0.0.1:8000", running.url)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.parametrize("name", ["chat.py", "many_users.py", "approvals.py"])
def test_the_example_programs_run(running: RunningFleet, name: str) -> None:
    variables = {"ROUNDHOUSE_URL": running.url, "ROUNDHOUSE_PLATFORM_KEY": running.key}
    done = subprocess.run(
        [sys.executable, str(PACKAGE / "examples" / name)],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout
