//! The protocol between an engine and its helper, and between the helper and the process that becomes the program:
//! JSON after its length (four bytes, big-endian), over a socket pair. The first message of each pair carries the
//! program's three pipes.

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

/// The maximum length of a message, in bytes. The kernel accepts argument lists of up to 2 MiB, which JSON's lists
/// of numbers expand by a factor of up to four.
const MAX_MESSAGE_BYTES: usize = 16 << 20;

/// The number of bytes before a message that hold its length.
pub(crate) const LENGTH_PREFIX_BYTES: usize = 4;

/// The first message to a process that was started as a helper: the role that it takes.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum HelperRequest {
    /// Be the helper: start the program, watch it and end it.
    Hold(ProgramSpec),
    /// Become the program: confine the process and execute it.
    Become(ProgramSpec),
}

/// The program to run and its restrictions.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ProgramSpec {
    /// The program and its arguments.
    pub argv: Vec<OsString>,
    /// The absolute path of the working directory.
    pub folder: PathBuf,
    /// The complete environment.
    pub env: Vec<(OsString, OsString)>,
    /// Whether the program may open network connections.
    pub network: bool,
    /// The limits of the program and its descendants.
    pub limits: Limits,
    /// The folder that the program may write to.
    pub workspace: PathBuf,
    /// The files that the program may reach.
    pub files: FileAccess,
    /// Further folders that the program may read and execute.
    pub readable: Vec<PathBuf>,
    /// The files in `readable` that the program may not read.
    pub hidden: Vec<HiddenFiles>,
    /// Whether Landlock, seccomp and the other means of confinement are applied.
    pub confined: bool,
    /// Whether a cgroup limits the number of processes already.
    pub counted: bool,
}

/// The files that a program may reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum FileAccess {
    /// The workspace, the readable folders and the system's.
    Workspace,
    /// What it needs to be executed, for reading.
    ExecutableOnly,
}

/// A message from the helper, or from the process that becomes the program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum HelperResponse {
    /// The process has confined itself, and executes the program next.
    Confined(AppliedIsolation),
    /// The program runs.
    Running(AppliedIsolation),
    /// The program cannot be run, for this reason.
    NoProgram(String),
    /// The sandbox failed, for this reason.
    Failed(String),
    /// The program has ended with all its descendants.
    Ended(ExitStatus),
}

/// The isolation that depends on the machine, as it was applied to a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AppliedIsolation {
    /// What limits the number of its processes.
    pub counting: ProcessCounter,
    /// Whether everything but the workspace is mounted read-only, so that the program cannot change modes and
    /// times of other files either.
    pub mounts: bool,
}

/// What counts the processes of a program, and so enforces [`Limits::processes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ProcessCounter {
    /// A pids cgroup.
    Cgroup,
    /// The kernel, by `RLIMIT_NPROC` in the program's own user namespace.
    UserNamespace,
    /// The helper, which counts them every few milliseconds.
    Helper,
}

/// Encodes a message with its length.
///
/// # Errors
/// The message is longer than [`MAX_MESSAGE_BYTES`].
pub(crate) fn encode<M: Serialize>(message: &M) -> io::Result<Vec<u8>> {
    let body = serde_json::to_vec(message)?;
    if body.len() > MAX_MESSAGE_BYTES {
        return Err(io::Error::new(io::ErrorKind::ArgumentListTooLong, "the command is too long"));
    }
    let length = u32::try_from(body.len()).map_err(io::Error::other)?;
    Ok([length.to_be_bytes().as_slice(), &body].concat())
}

/// Decodes the first message in `buffer`, and returns it with its number of bytes. `None` if it is incomplete.
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

/// Sends a message together with the pipes. Blocks until the other side has read most of it.
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

/// Sends the length of a message, with the pipes attached to it.
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

/// Receives a message. `None` if the other side has closed the socket.
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
    let pipes = pipes.try_into().map_err(|_| io::Error::other("the message does not carry three pipes"))?;
    Ok((receive_body(socket, length)?, pipes))
}

/// Receives the rest of a message after its length.
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
#[path = "../tests/unit/protocol.rs"]
mod tests;
