//! Upload and download of a file as bare handlers: the body is written to a file beside its place, synced and
//! renamed; a file is read in chunks. There are no checks, no quota and no conditions.

use std::io;
use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_LENGTH;
use axum::response::IntoResponse;
use axum::routing::get;
use futures::{StreamExt as _, stream};
use tokio::fs::File;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// The path of the file, as at an engine.
pub(crate) const PATH: &str = "/workspace/file";
/// The size of a chunk that is read, in bytes.
const CHUNK_BYTES: usize = 256 * 1024;

/// Returns a router for one file in `folder`.
pub(super) fn router(folder: &FilePath) -> Router {
    Router::new()
        .route(PATH, get(download).put(upload))
        .layer(DefaultBodyLimit::disable())
        .with_state(Arc::new(folder.join("file")))
}

async fn upload(State(path): State<Arc<PathBuf>>, body: Body) -> Result<StatusCode, StatusCode> {
    let unfinished = path.with_extension("tmp");
    let received = async {
        let mut file = File::create(&unfinished).await?;
        file.set_max_buf_size(CHUNK_BYTES);
        let mut pieces = body.into_data_stream();
        while let Some(piece) = pieces.next().await {
            file.write_all(&piece.map_err(io::Error::other)?).await?;
        }
        file.flush().await?;
        file.sync_all().await?;
        tokio::fs::rename(&unfinished, &*path).await
    };
    received.await.map(|()| StatusCode::CREATED).map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)
}

async fn download(State(path): State<Arc<PathBuf>>) -> Result<impl IntoResponse, StatusCode> {
    let mut file = File::open(&*path).await.map_err(|_| StatusCode::NOT_FOUND)?;
    let length = file.metadata().await.map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)?.len();
    file.set_max_buf_size(CHUNK_BYTES);
    let chunks = stream::try_unfold(file, async |mut file| {
        let mut chunk = vec![0; CHUNK_BYTES];
        let read = file.read(&mut chunk).await?;
        chunk.truncate(read);
        Ok::<_, io::Error>((read > 0).then(|| (Bytes::from(chunk), file)))
    });
    Ok(([(CONTENT_LENGTH, length)], Body::from_stream(chunks)))
}
