//! What an engine, its helper and the program-to-be say to each other: JSON behind its length, over a pair of
//! sockets. The first message of each pair carries the program's three pipes.

use std::ffi::OsString;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::{ExitStatus, HiddenFiles, Limits};

/// How long a message may be, in bytes: the kernel takes no longer argument list than 2 MiB, which JSON's
/// lists of numbers lengthen to four times that.
const MAX_MESSAGE_BYTES: usize = 16 << 20;

/// The bytes of a message's length.
pub(crate) const LENGTH_PREFIX_BYTES: usize = 4;

/// What a helper is told to be.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum HelperRequest {
    /// The helper: it starts the program, watches it and ends it.
    Hold(ProgramSpec),
    /// The program: it confines itself and becomes it.
    Become(ProgramSpec),
}

/// What is run, and within what.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ProgramSpec {
    /// The program and its arguments.
    pub argv: Vec<OsString>,
    /// The folder it begins in.
    pub folder: PathBuf,
    /// Its whole environment.
    pub env: Vec<(OsString, OsString)>,
    /// Whether it may open network connections.
    pub network: bool,
    /// What it may take.
    pub limits: Limits,
    /// The folder it may write to.
    pub workspace: PathBuf,
    /// The folders it may read.
    pub readable: Vec<PathBuf>,
    /// The files in those that it may not read.
    pub hidden: Vec<HiddenFiles>,
    /// Whether it is confined.
    pub confined: bool,
    /// Whether a cgroup counts its processes already.
    pub counted: bool,
    /// Whether a saboteur lets go of what it leaves behind.
    #[cfg(feature = "sabotage")]
    pub let_go: bool,
}

/// What the helper, or the program-to-be, answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum HelperResponse {
    /// It is confined, thus far.
    Confined(AppliedIsolation),
    /// The program runs.
    Running(AppliedIsolation),
    /// The program cannot be run, for this reason.
    NoProgram(String),
    /// The sandbox failed, for this reason.
    Failed(String),
    /// It has ended, with all its descendants.
    Ended(ExitStatus),
}

/// How far a program's surroundings could be narrowed beside what always holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AppliedIsolation {
    /// Who counts its processes.
    pub counting: ProcessCounter,
    /// Whether every file system but its workspace is read-only to it, so that modes and times outside cannot
    /// be changed either.
    pub mounts: bool,
}

/// Who counts the processes of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ProcessCounter {
    /// A cgroup.
    Cgroup,
    /// The kernel, for the user of its own user namespace.
    UserNamespace,
    /// The helper, which looks every few milliseconds.
    Helper,
}

/// The message as it goes over the wire.
pub(crate) fn encode<M: Serialize>(message: &M) -> io::Result<Vec<u8>> {
    let body = serde_json::to_vec(message)?;
    if body.len() > MAX_MESSAGE_BYTES {
        return Err(io::Error::new(io::ErrorKind::ArgumentListTooLong, "the command is too long"));
    }
    let length = u32::try_from(body.len()).map_err(io::Error::other)?;
    Ok([length.to_be_bytes().as_slice(), &body].concat())
}

/// The first message in `buffer` and how many bytes it took, once it is there as a whole.
pub(crate) fn decode<M: DeserializeOwned>(buffer: &[u8]) -> io::Result<Option<(M, usize)>> {
    let Some((length, rest)) = buffer.split_first_chunk::<LENGTH_PREFIX_BYTES>() else { return Ok(None) };
    let length = usize::try_from(u32::from_be_bytes(*length)).map_err(io::Error::other)?;
    if length > MAX_MESSAGE_BYTES {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a message is too long"));
    }
    let Some(body) = rest.get(..length) else { return Ok(None) };
    Ok(Some((serde_json::from_slice(body)?, LENGTH_PREFIX_BYTES + length)))
}

/// Sends a message.
pub(crate) fn send<M: Serialize>(socket: &mut UnixStream, message: &M) -> io::Result<()> {
    socket.write_all(&encode(message)?)
}

/// Sends a message of which the first bytes carry the pipes. It blocks until the other side has read most of
/// it.
pub(crate) fn send_with_pipes<M: Serialize>(
    socket: &mut UnixStream,
    message: &M,
    pipes: [BorrowedFd<'_>; 3],
) -> io::Result<()> {
    let bytes = encode(message)?;
    let (first, rest) = bytes.split_at(LENGTH_PREFIX_BYTES.min(bytes.len()));
    send_pipes(socket.as_fd(), first, pipes)?;
    socket.write_all(rest)
}

/// Sends the bytes of a message's length, and the pipes with them.
pub(crate) fn send_pipes(
    socket: BorrowedFd<'_>,
    length: &[u8],
    pipes: [BorrowedFd<'_>; 3],
) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(&pipes)) {
        return Err(io::Error::other("the pipes do not fit into a message"));
    }
    let sent = rustix::net::sendmsg(socket, &[IoSlice::new(length)], &mut control, SendFlags::NOSIGNAL)?;
    if sent == length.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

/// Receives a message, none where the other side has gone.
pub(crate) fn receive<M: DeserializeOwned>(socket: &mut UnixStream) -> io::Result<Option<M>> {
    let mut length = [0; LENGTH_PREFIX_BYTES];
    match socket.read_exact(&mut length) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        outcome => outcome?,
    }
    receive_body(socket, length).map(Some)
}

/// Receives a message that carries the pipes.
pub(crate) fn receive_with_pipes<M: DeserializeOwned>(
    socket: &mut UnixStream,
) -> io::Result<(M, [OwnedFd; 3])> {
    let mut length = [0; LENGTH_PREFIX_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::WAITALL;
    let received = rustix::net::recvmsg(&*socket, &mut [IoSliceMut::new(&mut length)], &mut control, flags)?;
    if received.bytes != LENGTH_PREFIX_BYTES {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let pipes: Vec<OwnedFd> = control
        .drain()
        .filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(pipes) => Some(pipes),
            _ => None,
        })
        .flatten()
        .collect();
    let pipes = pipes.try_into().map_err(|_| io::Error::other("there must be three pipes"))?;
    Ok((receive_body(socket, length)?, pipes))
}

/// The rest of a message.
fn receive_body<M: DeserializeOwned>(
    socket: &mut UnixStream,
    length: [u8; LENGTH_PREFIX_BYTES],
) -> io::Result<M> {
    let length = usize::try_from(u32::from_be_bytes(length)).map_err(io::Error::other)?;
    if length > MAX_MESSAGE_BYTES {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a message is too long"));
    }
    let mut body = vec![0; length];
    socket.read_exact(&mut body)?;
    Ok(serde_json::from_slice(&body)?)
}

#[cfg(test)]
#[path = "protocol_tests.rs"]
mod tests;
