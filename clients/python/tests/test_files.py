"""Stories of uploads and downloads."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path

import anyio
import pytest

from fleet import Cutter
from fleet import Fleet as RunningFleet
from roundhouse_client import AsyncFleet, Engine, RetryPolicy, errors

PATIENT = RetryPolicy(base=0.01, cap=0.05, max_attempts=20)


def data(size: int) -> bytes:
    return b"".join(hashlib.sha256(str(number).encode()).digest() for number in range(size // 32))


def through(cutter: Cutter, engine: Engine) -> Engine:
    return Engine(cutter.url, engine._connection.endpoint.headers["X-Engine-Key"], retry=PATIENT)


def test_what_was_uploaded_is_downloaded(engine: Engine, task: str, tmp_path: Path) -> None:
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
    with pytest.raises(errors.NotFoundError):
        engine.file_info(f"{task}/größe 1")


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 4097, 8192, 100_000])
def test_uploads_of_all_sizes_in_pieces(engine: Engine, task: str, size: int) -> None:
    content = data(size + 32)[:size]
    uploaded = engine.upload(f"{task}/a.bin", io.BytesIO(content), chunk_bytes=4096)
    assert uploaded.size == size
    assert engine.download(f"{task}/a.bin").read() == content


def test_an_upload_that_is_cut_off_goes_on_where_it_was(engine: Engine, task: str) -> None:
    content = data(2 << 20)
    answers = [0]

    def cut(seen: bytes) -> int | None:
        # Every second answer of a connection is lost, so its request has an unknown outcome.
        answers[0] += 1
        return 0 if b"HTTP/1.1 204" in seen and answers[0] % 2 else None

    with Cutter(engine.url, cut) as cutter, through(cutter, engine) as cut_engine:
        uploaded = cut_engine.upload(f"{task}/a.bin", content, chunk_bytes=1 << 18)
        assert cutter.cuts > 0
    assert uploaded.size == len(content)
    assert engine.download(f"{task}/a.bin").read() == content


def test_an_upload_whose_last_answer_is_lost_is_found_at_the_file(engine: Engine, task: str) -> None:
    content = data(1 << 16)
    lost = [0]

    def cut(seen: bytes) -> int | None:
        if b'"etag"' in seen and not lost[0]:
            lost[0] = 1
            return 0
        return None

    with Cutter(engine.url, cut) as cutter, through(cutter, engine) as cut_engine:
        uploaded = cut_engine.upload(f"{task}/a.bin", content, chunk_bytes=1 << 14)
    assert lost == [1]
    assert uploaded == engine.file_info(f"{task}/a.bin")


def test_a_download_that_is_cut_off_goes_on_where_it_was(engine: Engine, task: str) -> None:
    content = data(4 << 20)
    engine.upload(f"{task}/a.bin", content)
    left = [4]

    def cut(seen: bytes) -> int | None:
        if left[0] and len(seen) > 1 << 20:
            left[0] -= 1
            return 1 << 20
        return None

    with Cutter(engine.url, cut) as cutter, through(cutter, engine) as cut_engine:
        assert cut_engine.download(f"{task}/a.bin").read() == content
        assert cutter.cuts >= 3


def test_a_download_of_a_file_that_changes_meanwhile_is_refused(engine: Engine, task: str) -> None:
    engine.upload(f"{task}/a.bin", data(4 << 20))

    def cut(seen: bytes) -> int | None:
        return 1 << 20 if len(seen) > 1 << 20 else None

    with Cutter(engine.url, cut) as cutter, through(cutter, engine) as cut_engine:
        chunks = iter(cut_engine.download(f"{task}/a.bin"))
        next(chunks)
        engine.upload(f"{task}/a.bin", data(2 << 20))
        with pytest.raises(errors.PreconditionFailedError):
            list(chunks)


def test_conditions_of_uploads(engine: Engine, task: str) -> None:
    first = engine.upload(f"{task}/a.txt", b"first", if_none_match="*")
    with pytest.raises(errors.PreconditionFailedError):
        engine.upload(f"{task}/a.txt", b"second", if_none_match="*")
    second = engine.upload(f"{task}/a.txt", b"second", if_match=first.etag)
    with pytest.raises(errors.PreconditionFailedError):
        engine.upload(f"{task}/a.txt", b"third", if_match=first.etag)
    assert engine.file_info(f"{task}/a.txt") is not None
    assert second.etag != first.etag
    with pytest.raises(errors.BadRequestError):
        engine.upload(f"{task}/../../a.txt", b"out")
    with pytest.raises(TypeError, match="ambiguous"):
        engine.upload(f"{task}/a.txt", "text")  # type: ignore[arg-type]


def test_transfers_of_the_asynchronous_client(running: RunningFleet, task: str, tmp_path: Path) -> None:
    async def session() -> None:
        async with AsyncFleet(running.url, running.key) as fleet:
            engine = await fleet.admit("ada")
            content = data(1 << 20)
            await engine.upload(f"{task}/a.bin", content, chunk_bytes=1 << 18)
            await engine.download(f"{task}/a.bin").save(tmp_path / "a.bin")
            assert (tmp_path / "a.bin").read_bytes() == content
            async with engine.download_archive(task) as archive:
                assert (await archive.read()).startswith(b"PK")

    anyio.run(session)
