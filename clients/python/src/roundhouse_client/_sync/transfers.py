# Written by `generate` from `_async`; do not edit.
"""Uploads and downloads that go on after a lost connection."""

from __future__ import annotations

import os
from collections.abc import Generator
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
from .connection import Connection, OpenResponse


def upload(
    connection: Connection, path: str, content: Content, conditions: dict[str, str], chunk_bytes: int
) -> UploadedFile:
    """Uploads a file: at once if it is small, else in pieces of which none is sent twice in vain."""
    file, opened = open_content(content)
    try:
        return _Upload(connection, path, conditions).run(file, chunk_bytes)
    finally:
        if opened:
            file.close()


class _Upload:
    """An upload in pieces."""

    def __init__(self, connection: Connection, path: str, conditions: dict[str, str]) -> None:
        self._connection = connection
        self._path = path
        self._conditions = conditions
        self._id = ""

    def run(self, file: BinaryIO, chunk_bytes: int) -> UploadedFile:
        """Sends the whole file."""
        chunk = read(file, chunk_bytes)
        if len(chunk) < chunk_bytes:
            return self._connection.call(put_call(self._path, chunk, self._conditions))
        begun = self._connection.exchange(begin_call(self._path, self._conditions))
        self._id, offset = upload_id(begun.body), 0
        while True:
            following = read(file, chunk_bytes)
            complete = self._send(offset, chunk, complete=not following)
            if complete is not None:
                return complete
            offset, chunk = offset + len(chunk), following

    def _send(self, offset: int, chunk: bytes, *, complete: bool) -> UploadedFile | None:
        """Sends a piece, from where the engine has it; returns the file if that was the last one."""
        position, attempt = 0, 0
        while True:
            attempt += 1
            call = append_call(self._id, offset + position, chunk[position:], complete=complete)
            try:
                response = self._connection.exchange(call)
                return read_json(UploadedFile, response.body, "an upload") if complete else None
            except (NetworkError, UploadConflictError) as error:
                if attempt >= self._connection.retry.max_attempts:
                    raise
                failure: RoundhouseError = error
            sleep(self._connection.retry.back_off(attempt))
            try:
                arrived = self._arrived()
            except NotFoundError:
                return self._finished(offset + len(chunk), failure)
            if not offset <= arrived <= offset + len(chunk):
                raise ProtocolError(
                    f"the engine has {arrived} bytes of the upload, which cannot be"
                ) from failure
            if arrived - offset > position:
                position, attempt = arrived - offset, 0
            if position == len(chunk) and not complete:
                return None

    def _arrived(self) -> int:
        return upload_offset((self._connection.exchange(offset_call(self._id))).headers)

    def _finished(self, size: int, failure: RoundhouseError) -> UploadedFile:
        """The file of an upload that is gone: whether it was completed shows at the file."""
        try:
            file = file_of(self._path, (self._connection.exchange(info_call(self._path))).headers)
        except NotFoundError:
            file = None
        if file is None or file.size != size:
            raise failure
        return file


class Download:
    """A file that is read in pieces: `for chunk in download`, once.

    A connection that breaks is replaced by one for the rest of the same version. If the file was changed
    meanwhile, that raises `PreconditionFailedError`.
    """

    def __init__(self, connection: Connection, path: str, query: dict[str, QueryValue] | None = None) -> None:
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

    def start(self) -> Self:
        """Begins the download, if that was not done yet."""
        if self._opened is None and self._position == 0:
            self._open()
        return self

    def read(self) -> bytes:
        """Reads the whole file."""
        chunks: list[bytes] = []
        for chunk in self:
            chunks.append(chunk)
        return b"".join(chunks)

    def save(self, target: str | os.PathLike[str]) -> int:
        """Writes the file to `target` and returns its size. A target that exists is replaced at the end."""
        final = Path(target)
        partial = final.with_name(f"{final.name}.part")
        try:
            with partial.open("wb") as file:
                for chunk in self:
                    write(file, chunk)
            partial.replace(final)
        finally:
            partial.unlink(missing_ok=True)
        return self._position

    def close(self) -> None:
        """Closes the connection."""
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Generator[bytes, None]:
        return self._chunks()

    def _chunks(self) -> Generator[bytes, None]:
        failures = 0
        while True:
            opened = self._opened or self._open()
            try:
                for chunk in opened.chunks():
                    self._position += len(chunk)
                    failures = 0
                    yield chunk
                return
            except NetworkError:
                failures += 1
                if self.etag is None or failures >= self._connection.retry.max_attempts:
                    raise
            finally:
                self.close()
            if self._position == self.size:
                return
            sleep(self._connection.retry.back_off(failures))

    def _open(self) -> OpenResponse:
        headers = download_headers(self._position, self.etag)
        call = Call[None]("GET", self._path, query=self._query, headers=headers)
        opened = self._connection.open(call)
        self._opened = opened
        if self._position == 0:
            self._headers = opened.response.headers
        elif opened.response.status_code != 206:
            self.close()
            raise ProtocolError("the engine has sent the whole file instead of its rest")
        return opened
