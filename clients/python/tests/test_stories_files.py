"""The stories of `stories.md` about files."""

from __future__ import annotations

from pathlib import Path

import pytest

from clients import Client
from content import data
from cutting import Cutter, through
from roundhouse_client import Engine, errors


def test_upload_and_download(engine: Engine, task: str, tmp_path: Path) -> None:
    local = tmp_path / "local.bin"
    local.write_bytes(data(1 << 20))
    uploaded = engine.upload(f"{task}/größe 1/世界 #?%.bin", local)
    assert uploaded.size == 1 << 20
    entries = list(engine.files(f"{task}/größe 1"))
    assert [entry.name for entry in entries] == ["世界 #?%.bin"]
    with engine.download(f"{task}/größe 1/世界 #?%.bin") as download:
        assert (download.size, download.etag) == (uploaded.size, uploaded.etag)
        assert download.save(tmp_path / "back.bin") == uploaded.size
    assert (tmp_path / "back.bin").read_bytes() == local.read_bytes()
    assert list(tmp_path.glob("*.part")) == []
    engine.delete_file(task, recursive=True)
    with pytest.raises(errors.FileNotFoundError) as caught:
        engine.download(f"{task}/größe 1/世界 #?%.bin").read()
    assert caught.value.status == 404


def test_upload_resumed(client: Client, engine: Engine, task: str) -> None:
    content = data(2 << 20)
    answers = [0]
    last_answers: list[bytes] = []

    def cut(seen: bytes) -> int | None:
        # Every second answer is lost, and the first one to the last piece: its outcome is not known.
        if b'"etag"' in seen and not last_answers:
            last_answers.append(seen)
            return 0
        answers[0] += 1
        return 0 if b"HTTP/1.1 204" in seen and answers[0] % 2 else None

    with Cutter(engine.url, cut) as cutter, through(cutter, engine, client) as cut_engine:
        uploaded = cut_engine.upload(f"{task}/a.bin", content, chunk_bytes=1 << 18)
        assert cutter.cuts > 1
    assert len(last_answers) == 1
    assert uploaded == engine.file_info(f"{task}/a.bin")
    assert engine.download(f"{task}/a.bin").read() == content


def test_download_resumed(client: Client, engine: Engine, task: str) -> None:
    content = data(4 << 20)
    engine.upload(f"{task}/a.bin", content)
    left = [4]

    def cut(seen: bytes) -> int | None:
        if left[0] and len(seen) > 1 << 20:
            left[0] -= 1
            return 1 << 20
        return None

    with Cutter(engine.url, cut) as cutter, through(cutter, engine, client) as cut_engine:
        assert cut_engine.download(f"{task}/a.bin").read() == content
        assert cutter.cuts >= 3


def test_changed_file_is_not_mixed(client: Client, engine: Engine, task: str) -> None:
    engine.upload(f"{task}/a.bin", data(4 << 20))

    def cut(seen: bytes) -> int | None:
        return 1 << 20 if len(seen) > 1 << 20 else None

    with Cutter(engine.url, cut) as cutter, through(cutter, engine, client) as cut_engine:
        chunks = iter(cut_engine.download(f"{task}/a.bin"))
        next(chunks)
        engine.upload(f"{task}/a.bin", data(2 << 20))
        with pytest.raises(errors.PreconditionFailedError):
            list(chunks)
