"""The requests of uploads and downloads."""

from __future__ import annotations

import io
import json
import os
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import BinaryIO, TypeAlias

import httpx

from .._errors.base import ProtocolError
from ..models import UploadedFile
from .call import Call, file_path, segment

CHUNK_BYTES = 4 * 1024 * 1024
"""The size of the pieces of an upload. What is smaller is sent in one request."""

Content: TypeAlias = bytes | bytearray | memoryview | os.PathLike[str] | BinaryIO
"""What can be uploaded: bytes, the path of a local file, or an open file, which is read from where it is."""


def open_content(content: Content) -> tuple[BinaryIO, bool]:
    """The content as a file, and whether it is to be closed."""
    if isinstance(content, bytes | bytearray | memoryview):
        return io.BytesIO(content), True
    if isinstance(content, os.PathLike):
        return Path(content).open("rb"), True
    if isinstance(content, str):
        raise TypeError("a text is ambiguous: pass its bytes, or the `Path` of a local file")
    return content, False


def put_call(path: str, content: bytes, conditions: dict[str, str]) -> Call[UploadedFile]:
    """The request that uploads a file at once. With conditions a repetition could be refused."""
    headers = {"Content-Type": "application/octet-stream", **conditions}
    path = f"/workspace/{file_path(path)}"
    return Call("PUT", path, UploadedFile, raw=content, headers=headers, idempotent=not conditions)


def begin_call(path: str, conditions: dict[str, str]) -> Call[None]:
    """The request that begins a resumable upload. One that is begun twice is deleted by the engine."""
    headers = {"Content-Type": "application/octet-stream", "Upload-Complete": "?0", **conditions}
    return Call("PUT", f"/workspace/{file_path(path)}", raw=b"", headers=headers, idempotent=True)


def upload_id(body: bytes) -> str:
    """The id of the upload that was begun."""
    try:
        return str(json.loads(body)["upload_id"])
    except (ValueError, KeyError, TypeError) as error:
        raise ProtocolError("the response to the beginning of an upload names no upload") from error


def append_call(upload: str, offset: int, content: bytes, *, complete: bool) -> Call[None]:
    """The request that continues an upload."""
    headers = {
        "Content-Type": "application/partial-upload",
        "Upload-Offset": str(offset),
        "Upload-Complete": "?1" if complete else "?0",
    }
    return Call("PATCH", f"/workspace-uploads/{segment(upload)}", raw=content, headers=headers)


def offset_call(upload: str) -> Call[None]:
    """The request that asks how much of an upload has arrived."""
    return Call("HEAD", f"/workspace-uploads/{segment(upload)}")


def upload_offset(headers: httpx.Headers) -> int:
    """How much of an upload has arrived."""
    try:
        return int(headers["upload-offset"])
    except (KeyError, ValueError) as error:
        raise ProtocolError("the response about an upload has no `Upload-Offset`") from error


def info_call(path: str) -> Call[None]:
    """The request that asks for the size and the tag of a file."""
    return Call("HEAD", f"/workspace/{file_path(path)}", headers={"Accept-Encoding": "identity"})


def file_of(path: str, headers: httpx.Headers) -> UploadedFile | None:
    """The file that a response describes; `None` if it is none."""
    if "etag" not in headers or "content-length" not in headers or "last-modified" not in headers:
        return None
    return UploadedFile(
        path=file_path(path),
        size=int(headers["content-length"]),
        modified=parsedate_to_datetime(headers["last-modified"]),
        etag=headers["etag"],
    )


def download_headers(position: int, etag: str | None) -> dict[str, str]:
    """The headers of a request for a file from a position on, of the version that was begun."""
    headers = {"Accept-Encoding": "identity"}
    if position:
        headers["Range"] = f"bytes={position}-"
    if etag is not None:
        headers["If-Match"] = etag
    return headers
