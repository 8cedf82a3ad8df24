"""What else transfers do, beside the stories of `stories.md`."""

from __future__ import annotations

import io
from pathlib import Path

import anyio
import pytest

from content import data
from fleet import Fleet as RunningFleet
from roundhouse_client import AsyncFleet, Engine, errors


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 4097, 8192, 100_000])
def test_uploads_of_all_sizes_in_pieces(engine: Engine, task: str, size: int) -> None:
    content = data(size + 32)[:size]
    uploaded = engine.upload(f"{task}/a.bin", io.BytesIO(content), chunk_bytes=4096)
    assert uploaded.size == size
    assert engine.download(f"{task}/a.bin").read() == content


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
