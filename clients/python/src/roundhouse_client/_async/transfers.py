"""Uploads and downloads that go on after a lost connection."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import httpx
from typing_extensions import Self

from .._core.call import Call, QueryValue, read_json
from .._core.transfers import (
    Content,
    append_call,
    begin_call,
    download_headers,
    file_of,
    info_call,
    offset_call,
    open_content,
    put_call,
    upload_id,
    upload_offset,
)
from .._errors.base import NetworkError, NotFoundError, ProtocolError, RoundhouseError
from .._errors.codes import UploadConflictError
from ..models import UploadedFile
from ._runtime import read, sleep, write
from .connection import AsyncConnection, OpenResponse


async def upload(
    connection: AsyncConnection, path: str, content: Content, conditions: dict[str, str], chunk_bytes: int
) -> UploadedFile:
    """Uploads a file: at once if it is small, else in pieces of which none is sent twice in vain."""
    file, opened = open_content(content)
    try:
        return await _Upload(connection, path, conditions).run(file, chunk_bytes)
    finally:
        if opened:
            file.close()


class _Upload:
    """An upload in pieces."""

    def __init__(self, connection: AsyncConnection, path: str, conditions: dict[str, str]) -> None:
        self._connection = connection
        self._path = path
        self._conditions = conditions
        self._id = ""

    async def run(self, file: BinaryIO, chunk_bytes: int) -> UploadedFile:
        """Sends the whole file."""
        chunk = await read(file, chunk_bytes)
        if len(chunk) < chunk_bytes:
            return await self._connection.call(put_call(self._path, chunk, self._conditions))
        begun = await self._connection.exchange(begin_call(self._path, self._conditions))
        self._id, offset = upload_id(begun.body), 0
        while True:
            following = await read(file, chunk_bytes)
            complete = await self._send(offset, chunk, complete=not following)
            if complete is not None:
                return complete
            offset, chunk = offset + len(chunk), following

    async def _send(self, offset: int, chunk: bytes, *, complete: bool) -> UploadedFile | None:
        """Sends a piece, from where the engine has it; returns the file if that was the last one."""
        position, attempt = 0, 0
        while True:
            attempt += 1
            call = append_call(self._id, offset + position, chunk[position:], complete=complete)
            try:
                response = await self._connection.exchange(call)
                return read_json(UploadedFile, response.body, "an upload") if complete else None
            except (NetworkError, UploadConflictError) as error:
                if attempt >= self._connection.retry.max_attempts:
                    raise
                failure: RoundhouseError = error
            await sleep(self._connection.retry.back_off(attempt))
            try:
                arrived = await self._arrived()
            except NotFoundError:
                return await self._finished(offset + len(chunk), failure)
            if not offset <= arrived <= offset + len(chunk):
                raise ProtocolError(
                    f"the engine has {arrived} bytes of the upload, which cannot be"
                ) from failure
            if arrived - offset > position:
                position, attempt = arrived - offset, 0
            if position == len(chunk) and not complete:
                return None

    async def _arrived(self) -> int:
        return upload_offset((await self._connection.exchange(offset_call(self._id))).headers)

    async def _finished(self, size: int, failure: RoundhouseError) -> UploadedFile:
        """The file of an upload that is gone: whether it was completed shows at the file."""
        try:
            file = file_of(self._path, (await self._connection.exchange(info_call(self._path))).headers)
        except NotFoundError:
            file = None
        if file is None or file.size != size:
            raise failure
        return file


class AsyncDownload:
    """A file that is read in pieces: `async for chunk in download`, once.

    A connection that breaks is replaced by one for the rest of the same version. If the file was changed
    meanwhile, that raises `PreconditionFailedError`.
    """

    def __init__(
        self, connection: AsyncConnection, path: str, query: dict[str, QueryValue] | None = None
    ) -> None:
        self._connection = connection
        self._path = path
        self._query = query or {}
        self._opened: OpenResponse | None = None
        self._headers = httpx.Headers()
        self._position = 0

    @property
    def size(self) -> int | None:
        """The size in bytes, once the download has begun; `None` if it is not known."""
        length = self._headers.get("content-length")
        return int(length) if length is not None else None

    @property
    def etag(self) -> str | None:
        """The tag of the version, once the download has begun."""
        value: str | None = self._headers.get("etag")
        return value

    @property
    def media_type(self) -> str | None:
        """The type of the content, once the download has begun."""
        value: str | None = self._headers.get("content-type")
        return value

    async def start(self) -> Self:
        """Begins the download, if that was not done yet."""
        if self._opened is None and self._position == 0:
            await self._open()
        return self

    async def read(self) -> bytes:
        """Reads the whole file."""
        chunks: list[bytes] = []
        async for chunk in self:
            chunks.append(chunk)
        return b"".join(chunks)

    async def save(self, target: str | os.PathLike[str]) -> int:
        """Writes the file to `target` and returns its size. A target that exists is replaced at the end."""
        final = Path(target)
        partial = final.with_name(f"{final.name}.part")
        try:
            with partial.open("wb") as file:
                async for chunk in self:
                    await write(file, chunk)
            partial.replace(final)
        finally:
            partial.unlink(missing_ok=True)
        return self._position

    async def aclose(self) -> None:
        """Closes the connection."""
        opened, self._opened = self._opened, None
        if opened is not None:
            await opened.aclose()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __aiter__(self) -> AsyncGenerator[bytes, None]:
        return self._chunks()

    async def _chunks(self) -> AsyncGenerator[bytes, None]:
        failures = 0
        while True:
            opened = self._opened or await self._open()
            try:
                async for chunk in opened.chunks():
                    self._position += len(chunk)
                    failures = 0
                    yield chunk
                return
            except NetworkError:
                failures += 1
                if self.etag is None or failures >= self._connection.retry.max_attempts:
                    raise
            finally:
                await self.aclose()
            if self._position == self.size:
                return
            await sleep(self._connection.retry.back_off(failures))

    async def _open(self) -> OpenResponse:
        headers = download_headers(self._position, self.etag)
        call = Call[None]("GET", self._path, query=self._query, headers=headers)
        opened = await self._connection.open(call)
        self._opened = opened
        if self._position == 0:
            self._headers = opened.response.headers
        elif opened.response.status_code != 206:
            await self.aclose()
            raise ProtocolError("the engine has sent the whole file instead of its rest")
        return opened
