//! A JSON response as the text that it is, for commands that pass it on.

use std::time::Duration;

use anyhow::Context as _;
use reqwest::Response;
use serde::de::DeserializeOwned;

/// The longest response that is read into memory.
const MAX_BYTES: usize = 64 * 1024 * 1024;

/// The longest time until a response is complete.
const READ_TIMEOUT: Duration = Duration::from_secs(110);

/// The JSON of a response.
#[derive(Debug)]
pub(crate) struct Document(String);

impl Document {
    /// Reads a response that is to be JSON.
    pub(crate) async fn read(response: Response) -> anyhow::Result<Self> {
        tokio::time::timeout(READ_TIMEOUT, read_text(response))
            .await
            .context("the response was not complete in time")?
            .map(Self)
    }

    /// The document as it was received.
    pub(crate) fn text(&self) -> &str {
        &self.0
    }

    /// Parses the document.
    pub(crate) fn parse<T: DeserializeOwned>(&self) -> anyhow::Result<T> {
        serde_json::from_str(&self.0).context("the response could not be parsed")
    }
}

impl From<String> for Document {
    fn from(text: String) -> Self {
        Self(text)
    }
}

async fn read_text(mut response: Response) -> anyhow::Result<String> {
    let mut bytes = Vec::new();
    while let Some(chunk) = response.chunk().await.context("the response was interrupted")? {
        anyhow::ensure!(
            bytes.len() + chunk.len() <= MAX_BYTES,
            "the response is longer than {MAX_BYTES} bytes"
        );
        bytes.extend_from_slice(&chunk);
    }
    String::from_utf8(bytes).context("the response is not text")
}
