//! The rules of audio: its form, and the models that take it (<https://platform.openai.com/docs/guides/audio>).

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::super::node::Node;
use crate::protocol::ApiError;

/// Checks which models get audio. Those that take it take nothing else: "This model requires that either input content
/// or output modality contain audio."
pub(super) fn check(root: &Node<'_>, model: &str, messages: &[Node<'_>]) -> Result<(), ApiError> {
    let takes_audio = model.contains("audio");
    let sent = messages.iter().find_map(first_audio);
    match sent {
        Some(part) if !takes_audio => {
            Err(ApiError::invalid("Content blocks are expected to be either text or image_url type.")
                .with_param(part.path))
        }
        None if takes_audio && !speaks(root) => Err(ApiError::invalid(
            "This model requires that either input content or output modality contain audio.",
        )
        .with_param("model")
        .with_code("invalid_value")),
        Some(_) | None => Ok(()),
    }
}

fn first_audio<'a>(message: &Node<'a>) -> Option<Node<'a>> {
    let parts = message.member("content").filter(|content| content.value.is_array())?.list().ok()?;
    parts.into_iter().find(|part| part.value["type"] == "input_audio")
}

/// Whether the answer is to be spoken.
fn speaks(root: &Node<'_>) -> bool {
    let modalities = root.member("modalities");
    modalities
        .and_then(|modalities| modalities.value.as_array())
        .is_some_and(|modalities| modalities.iter().any(|modality| modality.as_str() == Some("audio")))
}

/// Checks the form of a part, and that its bytes begin as its format does.
pub(super) fn check_input_audio(audio: &Node<'_>) -> Result<(), ApiError> {
    audio.only(&["data", "format"])?;
    let format = audio.required("format")?.one_of(&["wav", "mp3"])?;
    let data = audio.required("data")?;
    let is_wav = |bytes: &[u8]| bytes.starts_with(b"RIFF") && bytes.get(8..12) == Some(b"WAVE");
    let is_mp3 = |bytes: &[u8]| bytes.starts_with(b"ID3") || bytes.starts_with(b"\xff");
    let is_decodable = |bytes: &[u8]| if format == "wav" { is_wav(bytes) } else { is_mp3(bytes) };
    match STANDARD.decode(data.string()?) {
        Ok(bytes) if is_decodable(&bytes) => Ok(()),
        Ok(_) | Err(_) => {
            Err(ApiError::invalid("The audio file could not be decoded or its format is not supported.")
                .with_param(&data.path)
                .with_code("invalid_value"))
        }
    }
}
