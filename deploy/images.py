"""Writes container images to an archive that is the same, byte for byte, whenever and wherever it is made.

    images.py base --tag NAME:TAG --layer TAR --architecture ARCH --output ARCHIVE
    images.py build --base ARCHIVE --program FILE --catalog FOLDER --version VERSION --architecture ARCH
                    [--registry NAME/] --output ARCHIVE
    images.py show ARCHIVE        prints each image's name, id (its configuration's digest) and manifest's digest
    images.py architecture ARCHIVE

`docker build` makes another image at each run: it stamps images and the files in them with the time. What the
Dockerfile says is said here again, and test-reproducible compares the two. An archive is an OCI layout that is also
what `docker save` writes, so Docker and skopeo read it. Layers are not compressed: their digests depend on no
compressor. SOURCE_DATE_EPOCH is the time of all of it.
"""

import argparse
import datetime
import gzip
import hashlib
import io
import json
import os
import sys
import tarfile
import tempfile
from pathlib import Path

CONFIG = "application/vnd.oci.image.config.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"
PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
PIECE = 1 << 20


def epoch() -> int:
    return int(os.environ["SOURCE_DATE_EPOCH"])


def created() -> str:
    return datetime.datetime.fromtimestamp(epoch(), datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def canonical(value) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def entry(name: str, mode: int, kind=tarfile.REGTYPE, size: int = 0) -> tarfile.TarInfo:
    """A member of an archive, of root and of the one time."""
    info = tarfile.TarInfo(name)
    info.mode, info.type, info.size, info.mtime = mode, kind, size, epoch()
    return info


class Archive:
    """An archive that is being made: its blobs are files of a folder until `write`."""

    def __init__(self, folder: Path):
        self.folder, self.docker, self.manifests = folder, [], []

    def blob(self, source, media_type: str) -> dict:
        """Adds what a file has to say, and returns its descriptor."""
        digest, size = hashlib.sha256(), 0
        with tempfile.NamedTemporaryFile(dir=self.folder, delete=False) as copy:
            while piece := source.read(PIECE):
                digest.update(piece)
                size += len(piece)
                copy.write(piece)
        os.replace(copy.name, self.folder / digest.hexdigest())
        return {"mediaType": media_type, "digest": f"sha256:{digest.hexdigest()}", "size": size}

    def image(self, name: str, config: dict, layers: list[dict]) -> None:
        """Adds an image of layers that are blobs already."""
        config_blob = self.blob(io.BytesIO(canonical(config)), CONFIG)
        manifest = {"schemaVersion": 2, "mediaType": MANIFEST, "config": config_blob, "layers": layers}
        described = self.blob(io.BytesIO(canonical(manifest)), MANIFEST)
        described["platform"] = {key: config[key] for key in ("architecture", "os", "variant") if key in config}
        described["annotations"] = {
            "io.containerd.image.name": name,
            "org.opencontainers.image.ref.name": name,
        }
        self.manifests.append(described)
        paths = [path_of(each) for each in [config_blob, *layers]]
        self.docker.append({"Config": paths[0], "RepoTags": [name], "Layers": paths[1:]})

    def write(self, output: Path) -> None:
        index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": self.manifests}
        texts = {
            "index.json": canonical(index),
            "manifest.json": canonical(self.docker),
            "oci-layout": canonical({"imageLayoutVersion": "1.0.0"}),
        }
        incomplete = output.with_name(output.name + ".new")
        with tarfile.open(incomplete, "w", format=tarfile.GNU_FORMAT) as archive:
            for name in ("blobs", "blobs/sha256"):
                archive.addfile(entry(name, 0o755, tarfile.DIRTYPE))
            for path in sorted(self.folder.iterdir()):
                with path.open("rb") as blob:
                    archive.addfile(entry(f"blobs/sha256/{path.name}", 0o644, size=path.stat().st_size), blob)
            for name, text in texts.items():
                archive.addfile(entry(name, 0o644, size=len(text)), io.BytesIO(text))
        os.replace(incomplete, output)


class Images:
    """An archive that is read, as this program or `docker save` wrote it."""

    def __init__(self, path: Path):
        self.archive = tarfile.open(path)
        self.docker = json.load(self.archive.extractfile("manifest.json"))

    def config(self, image: dict) -> dict:
        return json.load(self.archive.extractfile(image["Config"]))

    def layer(self, path: str):
        """A layer as a tar, whatever it is compressed with."""
        layer = self.archive.extractfile(path)
        magic = layer.read(2)
        layer.seek(0)
        return gzip.GzipFile(fileobj=layer) if magic == b"\x1f\x8b" else layer

    def only(self) -> tuple[dict, dict]:
        """The image of an archive that has one, and its configuration."""
        if len(self.docker) != 1:
            sys.exit(f"images: the base's archive has {len(self.docker)} images, not one")
        return self.docker[0], self.config(self.docker[0])


def path_of(descriptor: dict) -> str:
    return "blobs/" + descriptor["digest"].replace(":", "/")


def platform(architecture: str) -> dict:
    return {"architecture": architecture, "os": "linux", **({"variant": "v8"} if architecture == "arm64" else {})}


def layer_of(add) -> io.BytesIO:
    """A layer with what `add` puts into it."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w", format=tarfile.GNU_FORMAT) as tar:
        add(tar)
    layer.seek(0)
    return layer


def program_layer(program: Path) -> io.BytesIO:
    def add(tar):
        with program.open("rb") as file:
            tar.addfile(entry("usr/local/bin/roundhouse", 0o755, size=program.stat().st_size), file)

    return layer_of(add)


def engine_layer(catalog: Path) -> io.BytesIO:
    """The folder that data is mounted on, and the catalog."""

    def add(tar):
        tar.addfile(entry("data", 0o755, tarfile.DIRTYPE))
        tar.addfile(entry("catalog", 0o755, tarfile.DIRTYPE))
        for path in sorted(catalog.rglob("*")):
            name = f"catalog/{path.relative_to(catalog)}"
            if path.is_dir():
                tar.addfile(entry(name, 0o755, tarfile.DIRTYPE))
                continue
            executable = path.stat().st_mode & 0o100
            with path.open("rb") as file:
                tar.addfile(entry(name, 0o755 if executable else 0o644, size=path.stat().st_size), file)

    return layer_of(add)


def base(options, archive: Archive) -> None:
    with options.layer.open("rb") as tar:
        layer = archive.blob(tar, LAYER)
    config = {
        **platform(options.architecture),
        "created": created(),
        "config": {"Cmd": ["/bin/sh"]},
        "rootfs": {"type": "layers", "diff_ids": [layer["digest"]]},
        "history": [{"created": created(), "created_by": "base-image"}],
    }
    archive.image(options.tag, config, [layer])


def build(options, archive: Archive) -> None:
    """Both images: they share the base and the program."""
    images = Images(options.base)
    image, below = images.only()
    if below["architecture"] != options.architecture:
        sys.exit(f"images: the program is for {options.architecture}, its base for {below['architecture']}")
    shared = [archive.blob(images.layer(path), LAYER) for path in image["Layers"]]
    if [layer["digest"] for layer in shared] != below["rootfs"]["diff_ids"]:
        sys.exit("images: the layers of the base are not those that its configuration names")
    shared.append(archive.blob(program_layer(options.program), LAYER))
    catalog = archive.blob(engine_layer(options.catalog), LAYER)
    environment = (below.get("config") or {}).get("Env") or []
    if not any(each.startswith("PATH=") for each in environment):
        environment = [PATH, *environment]
    common = {
        "Entrypoint": ["/usr/local/bin/roundhouse"],
        "ExposedPorts": {"8000/tcp": {}},
        "Labels": {
            "org.opencontainers.image.base.digest": "sha256:" + Path(image["Config"]).name.removesuffix(".json"),
            "org.opencontainers.image.licenses": "Apache-2.0",
            "org.opencontainers.image.source": "https://github.com/roundhouse-rs/roundhouse",
            "org.opencontainers.image.version": options.version,
        },
    }
    engine = {
        "Cmd": ["engine"],
        "Env": [*environment, "HOME=/data", "LANG=C.UTF-8"],
        "User": "10001:10001",
        "WorkingDir": "/data",
    }
    orchestrator = {"Cmd": ["orchestrator"], "Env": [*environment, "LANG=C.UTF-8"]}
    for name, own, layers in (
        ("svc-engine", engine, [*shared, catalog]),
        ("roundhouse", orchestrator, shared),
    ):
        config = {
            **platform(options.architecture),
            "created": created(),
            "config": common | own,
            "rootfs": {"type": "layers", "diff_ids": [layer["digest"] for layer in layers]},
            "history": [{"created": created(), "created_by": "build-images"} for _ in layers],
        }
        archive.image(f"{options.registry}{name}:{options.version}", config, layers)


def show(path: Path) -> None:
    images = Images(path)
    index = json.load(images.archive.extractfile("index.json"))
    for image, manifest in zip(images.docker, index["manifests"], strict=True):
        print(image["RepoTags"][0], f"sha256:{Path(image['Config']).name}", manifest["digest"])


def main() -> None:
    parser = argparse.ArgumentParser(usage=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("show", "architecture"):
        commands.add_parser(name).add_argument("archive", type=Path)
    wanted = {
        "base": {"tag": str, "layer": Path, "architecture": str, "output": Path},
        "build": {"base": Path, "program": Path, "catalog": Path, "version": str, "architecture": str, "output": Path},
    }
    for name, options in wanted.items():
        command = commands.add_parser(name)
        for option, kind in options.items():
            command.add_argument(f"--{option}", type=kind, required=True)
    commands.choices["build"].add_argument("--registry", default="")
    options = parser.parse_args()
    if options.command == "show":
        show(options.archive)
    elif options.command == "architecture":
        print(Images(options.archive).only()[1]["architecture"])
    else:
        with tempfile.TemporaryDirectory(dir=options.output.parent) as folder:
            archive = Archive(Path(folder))
            (base if options.command == "base" else build)(options, archive)
            archive.write(options.output)


if __name__ == "__main__":
    main()
