//! Why a request about files is refused or fails.

use std::io;

use rustix::io::Errno;

/// A refusal or failure, in words for the caller.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The path cannot name a file of the workspace.
    #[error("the path {0}")]
    InvalidPath(&'static str),
    /// There is nothing at the path.
    #[error("there is no such file or folder")]
    NotFound,
    /// There is no such upload.
    #[error("there is no such upload: it was completed, cancelled or is older than 24 hours")]
    UploadNotFound,
    /// What is at the path does not permit the change.
    #[error("{0}")]
    Conflict(&'static str),
    /// The system does not permit the access.
    #[error("{0}")]
    NotAccessible(&'static str),
    /// `If-Match` or `If-None-Match` does not hold.
    #[error("the file has changed, or exists already: the condition of the request does not hold")]
    PreconditionFailed,
    /// The upload has received another number of bytes than the caller assumes.
    #[error("the upload has received {offset} bytes: go on from there")]
    OffsetMismatch {
        /// The number of bytes that were received.
        offset: u64,
    },
    /// The upload contradicts its declared length.
    #[error("{0}")]
    InvalidUpload(String),
    /// Another request went on with the same upload.
    #[error("another request has taken over this upload")]
    Superseded,
    /// It exceeds a limit.
    #[error("{0}")]
    TooLarge(String),
    /// There is no room for it.
    #[error("{0}")]
    StorageFull(String),
    /// Too many transfers are under way.
    #[error("too many files are being transferred")]
    Busy,
    /// A program changed the file while it was being read.
    #[error("the file was changed while it was being read")]
    Changed,
    /// The engine is stopping.
    #[error("the engine is stopping")]
    Stopping,
    /// Anything else.
    #[error("the files cannot be accessed: {0}")]
    Io(#[source] io::Error),
}

impl From<Errno> for FileError {
    fn from(error: Errno) -> Self {
        match error {
            Errno::NOENT => Self::NotFound,
            Errno::XDEV | Errno::LOOP => Self::NotAccessible("the path leads out of the workspace"),
            Errno::NOTDIR => Self::Conflict("a part of the path is not a folder"),
            Errno::ISDIR => Self::Conflict("it is a folder"),
            Errno::NOTEMPTY | Errno::EXIST => Self::Conflict("the folder is not empty"),
            Errno::ACCESS | Errno::PERM | Errno::ROFS => {
                Self::NotAccessible("the permissions of the file or of its folder do not allow that")
            }
            // A socket, or a device that is not there.
            Errno::NXIO | Errno::NODEV => Self::NotAccessible("it is neither a file nor a folder"),
            Errno::NAMETOOLONG => Self::InvalidPath("is too long"),
            Errno::INVAL | Errno::ILSEQ => Self::InvalidPath("has a name that the file system refuses"),
            Errno::NOSPC | Errno::DQUOT => Self::StorageFull("the disk is full".into()),
            Errno::FBIG => Self::TooLarge("the file is larger than the file system allows".into()),
            error => Self::Io(error.into()),
        }
    }
}

impl From<io::Error> for FileError {
    fn from(error: io::Error) -> Self {
        match error.raw_os_error() {
            Some(code) => Errno::from_raw_os_error(code).into(),
            None => Self::Io(error),
        }
    }
}
