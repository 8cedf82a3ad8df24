"""Writes what an artifact is made of, as a CycloneDX 1.6 document.

    sbom.py --program PROGRAM --artifact FILE                   of a tarball or a Debian package with that program
    sbom.py --program PROGRAM --artifact ARCHIVE --image NAME   of an image in an archive, with its base's packages
    [--output FILE]                                             instead of FILE.cdx.json

Listed are the crates that are linked into the program for its target, with versions, licences and the checksums of
Cargo.lock; the C libraries that crates compile into it; the standard library; and the Debian packages of an image.
Crates that only take part in building it, such as procedural macros, are not: they are not in the artifact.

The same artifact gives the same document: SOURCE_DATE_EPOCH is its time, and its serial number is derived from what it
says. PROGRAM must have been built from these sources: if it names a crate that they do not link, nothing is written.
"""

import argparse
import hashlib
import json
import re
import subprocess
import sys
import tarfile
import tomllib
import uuid
from collections import defaultdict
from pathlib import Path
from urllib.parse import quote

sys.dont_write_bytecode = True
from images import Images, created  # noqa: E402

SOURCE = Path(__file__).resolve().parents[1]
REPOSITORY = "https://github.com/roundhouse-rs/roundhouse"
TARGETS = {b"\x3e\x00": "x86_64-unknown-linux-gnu", b"\xb7\x00": "aarch64-unknown-linux-gnu"}
# The libraries of others that crates compile into the program: name, licence and vendor, and where the version is.
# OWN_CODE are crates that compile a few lines of their own, no library.
VENDORED = {
    "libsqlite3-sys": ("sqlite", "blessing", "sqlite", "sqlite3/sqlite3.h", r'#define SQLITE_VERSION +"([\d.]+)"'),
    "aws-lc-sys": (
        "aws-lc",
        "ISC AND (Apache-2.0 OR ISC) AND Apache-2.0 AND MIT AND BSD-3-Clause",
        "amazon",
        "aws-lc/include/openssl/base.h",
        r'AWSLC_VERSION_NUMBER_STRING "([\d.]+)"',
    ),
    "libmimalloc-sys": (
        "mimalloc",
        "MIT",
        "microsoft",
        "c_src/mimalloc/{generation}/include/mimalloc.h",
        r"#define MI_MALLOC_VERSION (\d)(\d\d)(\d\d)",
    ),
}
OWN_CODE = {"psm", "stacker"}


def fail(text: str):
    sys.exit(f"sbom: {text}")


def cargo(*arguments: str) -> str:
    done = subprocess.run(["cargo", *arguments, "--locked"], cwd=SOURCE, stdout=subprocess.PIPE, text=True)
    return done.stdout if done.returncode == 0 else fail(f"`cargo {arguments[0]}` failed")


class Program:
    """The built program, and what it shows of how it was built."""

    def __init__(self, path: Path):
        self.bytes = path.read_bytes()
        if self.bytes[:4] != b"\x7fELF" or self.bytes[18:20] not in TARGETS:
            fail(f"{path} is no program for {' or '.join(TARGETS.values())}")
        self.target = TARGETS[self.bytes[18:20]]
        compiler = re.search(rb"rustc version (\d+\.\d+\.\d+)", self.bytes)
        self.compiler = compiler[1].decode() if compiler else fail(f"{path} does not say which compiler built it")

    def crates(self) -> set[tuple[str, str]]:
        """The crates whose sources are named in it, mostly by messages of panics: not all, but surely linked."""
        named = re.findall(rb"registry/src/[^/\0]+/([A-Za-z0-9_-]+?)-(\d+\.\d+\.\d+[A-Za-z0-9.+-]*)/", self.bytes)
        return {(name.decode(), version.decode()) for name, version in named}


def linked(target: str) -> dict[tuple[str, str], set[tuple[str, str]]]:
    """Each crate of the program as name and version, with the crates that it is linked with."""
    tree = cargo(
        "tree", "--package", "roundhouse", "--edges", "normal,no-proc-macro", "--target", target, "--prefix", "depth",
        "--format", " {p}",
    )  # fmt: skip
    graph, above = defaultdict(set), []
    for line in tree.splitlines():
        # What was shown already has its own line once, with all below it.
        depth, name, version = re.match(r"(\d+) (\S+) v(\S+)", line).groups()
        crate = (name, version)
        del above[int(depth) :]
        graph[crate]
        if above:
            graph[above[-1]].add(crate)
        above.append(crate)
    return graph


def licence(expression: str) -> list[dict]:
    """Old manifests separate alternatives by a slash, which no SPDX expression has."""
    return [{"expression": re.sub(r"\s*/\s*", " OR ", expression)}]


def reference(crate: tuple[str, str]) -> str:
    return f"crate:{crate[0]}@{crate[1]}"


def crate_component(package: dict, checksums: dict) -> dict:
    crate = (package["name"], package["version"])
    component = {
        "type": "library",
        "bom-ref": reference(crate),
        "name": crate[0],
        "version": crate[1],
        "licenses": licence(package["license"] or fail(f"{crate[0]} names no licence")),
    }
    if package["source"]:
        component["purl"] = f"pkg:cargo/{crate[0]}@{quote(crate[1], safe='')}"
        component["hashes"] = [{"alg": "SHA-256", "content": checksums[crate]}]
    # The workspace's own crates have no `purl`: on crates.io their names are others' crates.
    if crate[0] == "roundhouse":
        component["type"] = "application"
    if package["description"]:
        component["description"] = " ".join(package["description"].split())
    if package["repository"]:
        component["externalReferences"] = [{"type": "vcs", "url": package["repository"]}]
    return component


def vendored(package: dict, features: list[str]) -> dict | None:
    """The library of others that a crate compiles into the program."""
    folder = Path(package["manifest_path"]).parent
    name = package["name"]
    if name not in VENDORED:
        compiles = any(need["kind"] == "build" and need["name"] in ("cc", "cmake") for need in package["dependencies"])
        if compiles and name not in OWN_CODE and any(folder.rglob("*.[cS]")):
            fail(f"{name} compiles C, and VENDORED does not say of which library")
        return None
    library, terms, vendor, file, pattern = VENDORED[name]
    text = (folder / file.format(generation="v2" if "v2" in features else "v3")).read_text()
    version = ".".join(str(int(part)) if part.isdigit() else part for part in re.search(pattern, text).groups())
    return {
        "type": "library",
        "bom-ref": f"vendored:{library}@{version}",
        "name": library,
        "version": version,
        "licenses": licence(terms),
        "purl": f"pkg:generic/{library}@{version}",
        "cpe": f"cpe:2.3:a:{vendor}:{library}:{version}:*:*:*:*:*:*:*",
    }


def program_parts(program: Program) -> tuple[list[dict], dict[str, list[str]], str]:
    """The components of the program, which depends on which, and which is the program itself."""
    metadata = json.loads(cargo("metadata", "--format-version", "1", "--filter-platform", program.target))
    packages = {(package["name"], package["version"]): package for package in metadata["packages"]}
    features = {node["id"]: node["features"] for node in metadata["resolve"]["nodes"]}
    lock = tomllib.loads((SOURCE / "Cargo.lock").read_text())["package"]
    checksums = {(each["name"], each["version"]): each["checksum"] for each in lock if "checksum" in each}
    graph = linked(program.target)
    unknown = {crate for crate in program.crates() if crate not in graph}
    if unknown:
        fail(
            f"the program has {', '.join('-'.join(each) for each in sorted(unknown))}, which these sources do not link"
        )

    components, depends = [], {}
    for crate in graph:
        package = packages[crate]
        components.append(crate_component(package, checksums))
        depends[reference(crate)] = sorted(map(reference, graph[crate]))
        if library := vendored(package, features[package["id"]]):
            components.append(library)
            depends[reference(crate)].append(library["bom-ref"])
    standard = f"standard-library:rust@{program.compiler}"
    components.append(
        {
            "type": "library",
            "bom-ref": standard,
            "name": "rust-std",
            "version": program.compiler,
            "licenses": licence("MIT OR Apache-2.0"),
            "purl": f"pkg:generic/rust-std@{program.compiler}",
        }
    )
    (root,) = (reference(crate) for crate in graph if crate[0] == "roundhouse")
    depends[root].append(standard)
    return components, depends, root


def debian_packages(images: Images, image: dict) -> list[dict]:
    """The packages that are installed in an image: its upper layers replace what the lower ones say."""
    status, release = "", ""
    for path in image["Layers"]:
        with tarfile.open(fileobj=images.layer(path)) as layer:
            for member in layer:
                name = member.name.removeprefix("./")
                if name == "var/lib/dpkg/status":
                    status = layer.extractfile(member).read().decode()
                elif name == "usr/lib/os-release":
                    release = layer.extractfile(member).read().decode()
    distribution = dict(line.split("=", 1) for line in release.splitlines() if "=" in line)
    distro = f"{distribution.get('ID', 'debian')}-{distribution.get('VERSION_ID', '').strip(chr(34))}"
    return [
        debian_component(paragraph, distro) for paragraph in status.split("\n\n") if "Status: install ok" in paragraph
    ]


def debian_component(paragraph: str, distro: str) -> dict:
    field = dict(re.findall(r"^([A-Za-z-]+): (.*)$", paragraph, re.MULTILINE))
    name, version, architecture = field["Package"], field["Version"], field["Architecture"]
    purl = f"pkg:deb/debian/{quote(name, safe='')}@{quote(version, safe='~')}?arch={architecture}&distro={distro}"
    source = field.get("Source", name).split(" ")[0]
    return {
        "type": "library",
        "bom-ref": purl,
        "name": name,
        "version": version,
        "purl": purl,
        "supplier": {"name": field.get("Maintainer", "Debian")},
        "properties": [{"name": "roundhouse:debian:source", "value": source}],
    }


def artifact_component(path: Path, version: str) -> dict:
    return {
        "type": "file",
        "bom-ref": "artifact",
        "name": path.name,
        "version": version,
        "hashes": [{"alg": "SHA-256", "content": hashlib.file_digest(path.open("rb"), "sha256").hexdigest()}],
        "purl": f"pkg:generic/roundhouse@{version}?file_name={path.name}",
    }


def image_component(images: Images, name: str) -> tuple[dict, dict]:
    """An image of an archive, and how it is described."""
    manifests = json.load(images.archive.extractfile("index.json"))["manifests"]
    named = {image["RepoTags"][0]: (image, manifest) for image, manifest in zip(images.docker, manifests, strict=True)}
    image, manifest = named.get(name) or fail(f"the archive has {', '.join(named)}, and no {name}")
    path, _, version = name.rpartition(":")
    configuration = images.config(image)
    digest = manifest["digest"]
    architecture = configuration["architecture"]
    return image, {
        "type": "container",
        "bom-ref": "artifact",
        "name": path,
        "version": version,
        "hashes": [{"alg": "SHA-256", "content": digest.removeprefix("sha256:")}],
        "purl": f"pkg:oci/{path.rpartition('/')[2]}@{quote(digest, safe='')}?arch={architecture}&tag={version}",
        "properties": [
            {"name": "roundhouse:image:manifest", "value": digest},
            {"name": "roundhouse:image:id", "value": f"sha256:{Path(image['Config']).name}"},
            *({"name": "roundhouse:image:layer", "value": each} for each in configuration["rootfs"]["diff_ids"]),
        ],
    }


def document(options) -> dict:
    components, depends, root = program_parts(Program(options.program))
    version = root.rpartition("@")[2]
    depends["artifact"] = [root]
    if options.image:
        images = Images(options.artifact)
        image, artifact = image_component(images, options.image)
        packages = debian_packages(images, image)
        components += packages
        depends["artifact"] += [each["bom-ref"] for each in packages]
    else:
        artifact = artifact_component(options.artifact, version)
    components.sort(key=lambda component: component["bom-ref"])
    content = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "timestamp": created(),
            "component": artifact,
            "supplier": {"name": "the authors of Roundhouse", "url": [REPOSITORY]},
            "tools": {"components": [{"type": "application", "name": "deploy/sbom.py", "version": version}]},
        },
        "components": components,
        "dependencies": [{"ref": name, "dependsOn": sorted(depends[name])} for name in sorted(depends)],
    }
    said = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    return content | {"serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, f'{REPOSITORY}#{said}')}"}


def main() -> None:
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--program", type=Path, required=True)
    parser.add_argument("--artifact", type=Path, required=True)
    parser.add_argument("--image")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    output = options.output or options.artifact.with_name(options.artifact.name + ".cdx.json")
    output.write_text(json.dumps(document(options), indent=1, sort_keys=True, ensure_ascii=False) + "\n")
    print(output)


main()
