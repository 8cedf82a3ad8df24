"""Checks bills of materials against what is not asked when they are written: `check_sbom.py PROGRAM DOCUMENT...`.

- the program: each crate whose sources it names is listed, and so is the SQLite that it says it has;
- the crates' own manifests: what a listed crate cannot do without is listed, too;
- Cargo.lock: each crate of a registry has the checksum that is locked;
- deny.toml: each licence is one that is permitted;
- itself: whatever depends on something, or is depended on, is listed, and can be reached from the artifact.

Where the published schema's validator is installed (.ci/cyclonedx), the document also passes that.
"""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1]
# SQLite is in the public domain, which is no licence of a crate.
BEYOND_CRATES = {"blessing"}


class Program:
    """What the program shows of its parts."""

    def __init__(self, path: Path):
        program = path.read_bytes()
        named = re.findall(rb"registry/src/[^/\0]+/([A-Za-z0-9_-]+?)-(\d+\.\d+\.\d+[A-Za-z0-9.+-]*)/", program)
        self.crates = {(name.decode(), version.decode()) for name, version in named}
        self.bytes = program


def problems_of_program(program: Program, crates: dict, document: dict) -> list[str]:
    shown = program.crates
    problems = [f"{'-'.join(crate)} is in the program and not listed" for crate in sorted(shown - set(crates))]
    if len(shown) < 100:
        problems.append(f"the program names {len(shown)} crates, too few to compare with")
    libraries = {
        each["name"]: each["version"] for each in document["components"] if each["bom-ref"].startswith("vendored:")
    }
    if set(libraries) != {"sqlite", "aws-lc", "mimalloc"}:
        problems.append(f"the libraries in it are {sorted(libraries)}")
    elif libraries["sqlite"].encode() not in program.bytes:
        problems.append(f"the program's SQLite is not {libraries['sqlite']}")
    return problems


def cargo_metadata() -> dict:
    command = ["cargo", "metadata", "--locked", "--format-version", "1"]
    return json.loads(subprocess.run(command, cwd=SOURCE, stdout=subprocess.PIPE, check=True).stdout)


def problems_of_manifests(crates: dict, metadata: dict) -> list[str]:
    packages = {package["id"]: package for package in metadata["packages"]}
    problems = []
    for node in metadata["resolve"]["nodes"]:
        package = packages[node["id"]]
        if (package["name"], package["version"]) not in crates:
            continue
        needed = {
            each["name"]
            for each in package["dependencies"]
            if each["kind"] is None and not each["optional"] and each["target"] is None
        }
        for need in node["deps"]:
            other = packages[need["pkg"]]
            macros = any("proc-macro" in target["kind"] for target in other["targets"])
            if other["name"] in needed and not macros and (other["name"], other["version"]) not in crates:
                problems.append(f"{package['name']} needs {other['name']}, which is not listed")
    return problems


def problems_of_checksums(crates: dict) -> list[str]:
    lock = tomllib.loads((SOURCE / "Cargo.lock").read_text())["package"]
    locked = {(each["name"], each["version"]): each.get("checksum") for each in lock}
    said = {crate: component.get("hashes", [{"content": None}])[0]["content"] for crate, component in crates.items()}
    return [
        f"the checksum of {'-'.join(crate)} is not the locked one" for crate in said if said[crate] != locked.get(crate)
    ]


def permitted(expression: str, allowed: set[str]) -> bool:
    """Whether an SPDX expression can be met with the licences that are allowed."""
    tokens = re.findall(r"[()]|[A-Za-z0-9.+-]+", expression)

    def alternatives() -> bool:
        met = terms()
        while tokens and tokens[0] == "OR":
            tokens.pop(0)
            met = terms() or met
        return met

    def terms() -> bool:
        met = one()
        while tokens and tokens[0] == "AND":
            tokens.pop(0)
            met = one() and met
        return met

    def one() -> bool:
        token = tokens.pop(0)
        if token == "(":
            met = alternatives()
            tokens.pop(0)
            return met
        if tokens and tokens[0] == "WITH":
            token = f"{token} {tokens.pop(0)} {tokens.pop(0)}"
        return token in allowed

    return alternatives() and not tokens


def problems_of_licences(document: dict) -> list[str]:
    rules = tomllib.loads((SOURCE / "deny.toml").read_text())["licenses"]
    exceptions = {each["crate"]: set(each["allow"]) for each in rules["exceptions"]}
    problems = []
    for component in document["components"]:
        # Debian says what its packages' licences are in a file of each, which the image has.
        if component["bom-ref"].startswith("pkg:deb/"):
            continue
        allowed = set(rules["allow"]) | exceptions.get(component["name"], set())
        if component["bom-ref"].startswith("vendored:"):
            allowed |= BEYOND_CRATES
        for each in component.get("licenses") or [{"expression": "none"}]:
            if not permitted(each["expression"], allowed):
                problems.append(f"{component['name']} is under {each['expression']}, which deny.toml does not permit")
    return problems


def problems_of_references(document: dict) -> list[str]:
    references = [each["bom-ref"] for each in [document["metadata"]["component"], *document["components"]]]
    depends = {each["ref"]: each["dependsOn"] for each in document["dependencies"]}
    problems = [f"{each} is listed twice" for each in set(references) if references.count(each) > 1]
    reached, next_ones = set(), [document["metadata"]["component"]["bom-ref"]]
    while next_ones:
        one = next_ones.pop()
        if one not in reached:
            reached.add(one)
            next_ones += depends.get(one, [])
    problems += [f"something depends on {each}, which is not listed" for each in sorted(reached - set(references))]
    problems += [f"nothing depends on {each}" for each in sorted(set(references) - reached)]
    return problems


def problems_of_schema(text: str) -> list[str]:
    try:
        from cyclonedx.schema import SchemaVersion
        from cyclonedx.validation.json import JsonStrictValidator
    except ImportError:
        return []
    error = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    return [f"not as the schema wants it: {str(error)[:300]}"] if error else []


def problems_of(text: str, program: Program, metadata: dict) -> list[str]:
    if problems := problems_of_schema(text):
        return problems
    document = json.loads(text)
    crates = {
        (each["name"], each["version"]): each for each in document["components"] if each["bom-ref"].startswith("crate:")
    }
    return [
        *problems_of_program(program, crates, document),
        *problems_of_manifests(crates, metadata),
        *problems_of_checksums(crates),
        *problems_of_licences(document),
        *problems_of_references(document),
    ]


def main() -> None:
    program, metadata, all_is_well = Program(Path(sys.argv[1])), cargo_metadata(), True
    for path in map(Path, sys.argv[2:]):
        for problem in problems_of(path.read_text(), program, metadata):
            print(f"{path.name}: {problem}", file=sys.stderr)
            all_is_well = False
    sys.exit(0 if all_is_well else 1)


main()
