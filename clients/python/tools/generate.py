"""Writes the generated parts of the package; see `../generate`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

from schemas import Schema, response_document
from unasync import to_sync

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "roundhouse_client"

sys.path.insert(0, str(ROOT / "tests"))

_CODEGEN_OPTIONS = [
    "--input-file-type=openapi",
    "--output-model-type=pydantic_v2.BaseModel",
    "--target-python-version=3.10",
    "--enum-field-as-literal=all",
    "--extra-fields=allow",
    "--use-standard-collections",
    "--use-union-operator",
    "--use-schema-description",
    "--use-field-description",
    "--use-title-as-name",
    "--use-annotated",
    "--collapse-root-models",
    "--disable-timestamp",
    "--formatters=builtin",
]


def documents() -> dict[str, Schema]:
    """The OpenAPI documents by service, from files or from a running fleet."""
    folder = os.environ.get("ROUNDHOUSE_OPENAPI")
    services = ("orchestrator", "engine")
    if folder is not None:
        return {service: json.loads((Path(folder) / f"{service}.json").read_text()) for service in services}
    from fleet import Fleet

    with Fleet() as fleet:
        address, key = fleet.admit("generate")
        engine = urllib.request.Request(f"{address}/openapi.json", headers={"X-Engine-Key": key})
        return {"orchestrator": _fetch(f"{fleet.url}/openapi.json"), "engine": _fetch(engine)}


def _fetch(request: str | urllib.request.Request) -> Schema:
    with urllib.request.urlopen(request, timeout=30) as response:
        document: Schema = json.load(response)
        return document


def models(document: Schema, service: str) -> str:
    """The module with the models of a service's responses."""
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / f"{service}.json", Path(folder) / f"{service}.py"
        source.write_text(json.dumps(response_document(document)))
        codegen = [sys.executable, "-m", "datamodel_code_generator", *_CODEGEN_OPTIONS]
        subprocess.run([*codegen, f"--input={source}", f"--output={target}"], check=True)
        return target.read_text()


def formatted(source: str, path: Path) -> str:
    """The module as `ruff` formats it."""
    ruff = [sys.executable, "-m", "ruff"]
    name = f"--stdin-filename={path}"
    check = [*ruff, "check", "--quiet", "--fix-only", "--select=I,F401", name, "-"]
    sorted_source = subprocess.run(check, input=source, text=True, capture_output=True, check=True, cwd=ROOT)
    form = [*ruff, "format", "--quiet", name, "-"]
    done = subprocess.run(
        form, input=sorted_source.stdout, text=True, capture_output=True, check=True, cwd=ROOT
    )
    return done.stdout


def generated() -> dict[Path, str]:
    """All generated modules."""
    modules = {}
    for source in sorted((PACKAGE / "_async").glob("*.py")):
        if not source.name.startswith("_runtime"):
            modules[PACKAGE / "_sync" / source.name] = to_sync(source.read_text())
    if "--client-only" not in sys.argv:
        for service, document in documents().items():
            modules[PACKAGE / "_generated" / f"{service}.py"] = models(document, service)
    return {path: formatted(source, path) for path, source in modules.items()}


def main() -> int:
    """Writes the modules, or compares them with `--check`."""
    modules = generated()
    stale = [path for path, text in modules.items() if not path.exists() or path.read_text() != text]
    if "--check" in sys.argv:
        for path in stale:
            print(f"{path.relative_to(ROOT)} is not up to date: run clients/python/generate", file=sys.stderr)
        return 1 if stale else 0
    for path in stale:
        path.write_text(modules[path])
    return 0


if __name__ == "__main__":
    sys.exit(main())
