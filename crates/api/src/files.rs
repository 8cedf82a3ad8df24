//! The files of a user: those of the workspace, and those that are attached to messages.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::content::MediaKind;
use crate::serde_helpers::BoundedInt;
use crate::{MessageId, Timestamp};

/// Query of `GET /workspace` and `GET /workspace/{path}`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct GetFile {
    /// Whether a browser saves the file rather than showing it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub download: Option<bool>,
    /// The form in which a folder is returned; a listing by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<FolderFormat>,
    /// The maximum number of entries in a listing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<BoundedInt<1, 1_000>>,
    /// The `next` of the page before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
}

/// The form in which a folder is returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FolderFormat {
    /// A page of its entries.
    Json,
    /// A ZIP archive of all that is in it.
    Zip,
}

/// Query of `DELETE /workspace/{path}`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct DeleteFile {
    /// Whether a folder is deleted although it is not empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recursive: Option<bool>,
}

/// What an entry of a folder is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FileKind {
    /// A regular file.
    File,
    /// A folder.
    Folder,
    /// A symbolic link.
    Link,
    /// A pipe, a socket or a device, which cannot be downloaded.
    Other,
}

/// A page of a folder's entries, ordered by name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FolderListing {
    /// The entries.
    pub entries: Vec<FileEntry>,
    /// The value of `after` for the next page; null on the last page.
    pub next: Option<String>,
}

/// An entry of a folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FileEntry {
    /// The name; percent-encoded if it is not UTF-8.
    pub name: String,
    /// The path relative to the workspace, percent-encoded for a URL.
    pub path: String,
    /// What it is.
    pub kind: FileKind,
    /// The size of a file in bytes; null for anything else.
    pub size: Option<u64>,
    /// When its content was last changed.
    pub modified: Timestamp,
    /// The entity tag of a file, as in `ETag`; null for anything else.
    pub etag: Option<String>,
}

/// A file that was uploaded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UploadedFile {
    /// The path relative to the workspace, percent-encoded for a URL.
    pub path: String,
    /// The size in bytes.
    pub size: u64,
    /// When the content was changed.
    pub modified: Timestamp,
    /// The entity tag, as in `ETag`.
    pub etag: String,
}

/// A resumable upload that was created.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CreatedUpload {
    /// The upload is continued at `/workspace-uploads/{upload_id}`, which is also in `Location`.
    pub upload_id: String,
    /// The number of bytes received.
    pub offset: u64,
}

/// The files that are attached to the messages of a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TaskMedia {
    /// The files, in the order of the messages.
    pub media: Vec<AttachedFile>,
}

/// A file that is attached to a message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AttachedFile {
    /// The message.
    pub message_id: MessageId,
    /// The SHA-256 of the content, in lower-case hexadecimal digits.
    pub hash: String,
    /// Whether it is an image, a document or audio.
    pub kind: MediaKind,
    /// The media type, such as `image/png`.
    pub media_type: String,
    /// The name that it was sent with; null if it had none.
    pub name: Option<String>,
    /// The size in bytes.
    pub size: u64,
}

/// The schema of the responses of `PUT /workspace/{path}` that create something.
#[derive(ToSchema)]
#[serde(untagged)]
pub enum UploadOutcome {
    /// The file.
    File(UploadedFile),
    /// The resumable upload.
    Upload(CreatedUpload),
}
