//! The rules of single contents: roles and the form of each part (<https://ai.google.dev/api/caching#Content>).

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::super::error::{invalid, invalid_field};
use super::super::node::Node;
use crate::protocol::ApiError;

/// The supported kinds of data, of which a part has exactly one. Those of the vendor's server tools are not among
/// them, because this provider does not run such tools.
const DATA: &[&str] = &["text", "inlineData", "fileData", "functionCall", "functionResponse"];
const PART: &[&str] = &["thought", "thoughtSignature", "partMetadata", "videoMetadata", "mediaResolution"];

/// The media types of audio (<https://ai.google.dev/gemini-api/docs/audio#supported-formats>).
const AUDIO: &[&str] = &["audio/wav", "audio/mp3", "audio/aiff", "audio/aac", "audio/ogg", "audio/flac"];

pub(super) fn check(contents: &[Node<'_>], model: &str) -> Result<(), ApiError> {
    if contents.is_empty() {
        return Err(invalid("* GenerateContentRequest.contents: contents is not specified\n"));
    }
    for content in contents {
        let role = content.member("role").map(|role| role.string()).transpose()?;
        if role.is_some_and(|role| !["user", "model", "function"].contains(&role)) {
            return Err(invalid("Please use a valid role: user, model."));
        }
        check_content(content)?;
        check_audio(content, model)?;
    }
    Ok(())
}

/// Checks the types of audio, and that the model takes it.
fn check_audio(content: &Node<'_>, model: &str) -> Result<(), ApiError> {
    let parts = content.member("parts").map_or_else(|| Ok(Vec::new()), |parts| parts.list())?;
    for part in parts {
        let Some(mime_type) = part.member("inlineData").and_then(|blob| blob.member("mimeType")) else {
            continue;
        };
        let mime_type = mime_type.string()?;
        if !mime_type.starts_with("audio/") {
            continue;
        }
        if !AUDIO.contains(&mime_type) {
            return Err(invalid(format!("Unsupported MIME type: {mime_type}")));
        }
        if model.starts_with("gemma") {
            return Err(invalid(format!("Audio input modality is not enabled for models/{model}")));
        }
    }
    Ok(())
}

/// Checks one content. The system instruction has the same form, but its role is ignored.
pub(super) fn check_content(content: &Node<'_>) -> Result<(), ApiError> {
    content.only(&["role", "parts"])?;
    let role = content.member("role").map(|role| role.string()).transpose()?;
    let parts = match content.member("parts") {
        Some(parts) => parts.list()?,
        None => Vec::new(),
    };
    if parts.is_empty() {
        return Err(invalid(format!(
            "* GenerateContentRequest.{}.parts: contents.parts must not be empty.\n",
            content.path
        )));
    }
    parts.iter().try_for_each(|part| check_part(part, role == Some("model")))
}

fn check_part(part: &Node<'_>, is_model: bool) -> Result<(), ApiError> {
    part.only(&[DATA, PART].concat())?;
    let data: Vec<Node<'_>> = DATA.iter().filter_map(|name| part.member(name)).collect();
    let body = match data.as_slice() {
        [body] => body,
        [] => {
            return Err(invalid(format!(
                "* GenerateContentRequest.{}.data: required oneof field 'data' must have one initialized field\n",
                part.path
            )));
        }
        [_, second, ..] => {
            let name = second.path.rsplit('.').next().unwrap_or_default();
            let message = format!(
                "Invalid value at '{}' (oneof), oneof field 'data' is already set. Cannot set '{name}'",
                part.path
            );
            return Err(invalid_field(&part.path, message));
        }
    };
    if let Some(thought) = part.member("thought") {
        thought.boolean()?;
    }
    if let Some(signature) = part.member("thoughtSignature") {
        signature.string()?;
    }
    match body.path.rsplit('.').next().unwrap_or_default() {
        "text" => body.string().map(|_| ()),
        "inline_data" => check_blob(body),
        "file_data" => body.only(&["mimeType", "fileUri", "displayName"]).map(|_| ()),
        "function_call" => check_call(body, is_model),
        _ => check_response(body, is_model),
    }
}

fn check_blob(blob: &Node<'_>) -> Result<(), ApiError> {
    blob.only(&["mimeType", "data", "displayName"])?;
    let Some(mime_type) = blob.member("mimeType") else {
        return Err(blob.violation("the mime_type is not specified"));
    };
    mime_type.string()?;
    let Some(data) = blob.member("data") else { return Err(blob.violation("the data is not specified")) };
    // The vendor accepts both alphabets of Base64.
    let standard = data.string()?.replace('-', "+").replace('_', "/");
    match STANDARD.decode(standard) {
        Ok(bytes) if !bytes.is_empty() => Ok(()),
        _ => Err(invalid_field(
            &data.path,
            format!("Invalid value at '{}' (TYPE_BYTES), Base64 decoding failed", data.path),
        )),
    }
}

fn check_call(call: &Node<'_>, is_model: bool) -> Result<(), ApiError> {
    call.only(&["id", "name", "args"])?;
    check_name(call)?;
    if let Some(args) = call.member("args") {
        args.object()?;
    }
    if is_model {
        return Ok(());
    }
    Err(invalid("Please ensure that function call turns have the role model."))
}

fn check_response(response: &Node<'_>, is_model: bool) -> Result<(), ApiError> {
    response.only(&["id", "name", "response", "parts", "willContinue", "scheduling"])?;
    check_name(response)?;
    if let Some(body) = response.member("response") {
        body.object()?;
    }
    if is_model {
        return Err(invalid("Please ensure that function response turns have the role user."));
    }
    Ok(())
}

fn check_name(function: &Node<'_>) -> Result<(), ApiError> {
    match function.member("name") {
        Some(name) if !name.string()?.is_empty() => Ok(()),
        _ => {
            Err(invalid(format!("* GenerateContentRequest.{}.name: Name cannot be empty.\n", function.path)))
        }
    }
}
