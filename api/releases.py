"""Keeps the documents of the releases as they were: `releases.py check | release`.

`releases.txt` has a line for each release: its version, and the hashes of both documents. It only grows, so the documents
in `released` cannot change without a new version.
"""

import hashlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
RELEASED, LEDGER = FOLDER / "released", FOLDER / "releases.txt"
SERVICES = ("engine", "orchestrator")


def version_of(documents: Path) -> str:
    (version,) = {json.loads((documents / f"{service}.json").read_text())["info"]["version"] for service in SERVICES}
    return version


def line_of(documents: Path) -> str:
    """The line of the release that has these documents."""
    hashes = (hashlib.sha256((documents / f"{service}.json").read_bytes()).hexdigest() for service in SERVICES)
    return " ".join([version_of(documents), *hashes])


def faults(ledger: list[str], documents: Path, earlier: list[list[str]]) -> list[str]:
    """What is wrong with a ledger, given its earlier versions."""
    found = []
    versions = [line.split()[0] for line in ledger]
    if len(set(versions)) < len(versions):
        found.append("a version is listed twice")
    if not ledger or ledger[-1] != line_of(documents):
        found.append("`released` has changed since its release: only a new version has new documents")
    if any(ledger[: len(before)] != before for before in earlier):
        found.append("a line of an earlier release has changed: its documents are what its clients were made of")
    return found


def test_rule() -> None:
    """Shows that each kind of change without a new version is found."""
    with tempfile.TemporaryDirectory() as folder:
        documents = Path(folder)

        def write(version: str, title: str) -> None:
            for service in SERVICES:
                info = {"version": version, "title": title}
                (documents / f"{service}.json").write_text(json.dumps({"info": info}))

        write("1.0.0", "old")
        old = [line_of(documents)]
        write("1.0.0", "new")
        changed = [line_of(documents)]
        assert not faults(changed, documents, [])
        assert faults(old, documents, [old]) and faults(changed, documents, [old])
        assert faults(old + changed, documents, [old])
        write("1.1.0", "new")
        assert faults(old, documents, [old])
        assert not faults(old + [line_of(documents)], documents, [[], old])


def earlier_ledgers() -> list[list[str]]:
    """The ledger at each commit that changed it, as far as the history is there."""
    git = lambda *arguments: subprocess.run(
        ["git", "-C", str(FOLDER), *arguments], capture_output=True, text=True
    ).stdout
    commits = git("log", "--format=%H", "--", LEDGER.name).split()
    return [git("show", f"{commit}:./{LEDGER.name}").splitlines() for commit in commits]


def release() -> None:
    """Makes the current documents those of a new release."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, FOLDER / "documents.py", folder], check=True)
        documents = Path(folder)
        ledger = LEDGER.read_text().splitlines()
        if version_of(documents) in (line.split()[0] for line in ledger):
            sys.exit(f"{version_of(documents)} is released: raise `version` in Cargo.toml first")
        for service in SERVICES:
            (RELEASED / f"{service}.json").write_bytes((documents / f"{service}.json").read_bytes())
    LEDGER.write_text("".join(f"{line}\n" for line in [*ledger, line_of(RELEASED)]))


def main() -> None:
    if sys.argv[1:] == ["release"]:
        release()
        return
    test_rule()
    if found := faults(LEDGER.read_text().splitlines(), RELEASED, earlier_ledgers()):
        sys.exit("\n".join(found))


main()
