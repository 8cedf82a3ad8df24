//! The rules of a request to generate content.
//!
//! Each rule is documented by the vendor, or known from refusals that users quote. The messages are as close to
//! the vendor's as known.

mod contents;
mod schema;
mod signatures;
mod tools;
mod turns;

use super::error::{invalid, unknown_model};
use super::node::Node;
use super::{GENERATE_METHOD, STREAM_METHOD, always_signs, model_and_method};
use crate::issued::IssuedAnswers;
use crate::protocol::{ApiError, IncomingRequest};

const PARAMETERS: &[&str] = &[
    "model",
    "contents",
    "tools",
    "toolConfig",
    "safetySettings",
    "systemInstruction",
    "generationConfig",
    "cachedContent",
    "store",
    "serviceTier",
];
const GENERATION_CONFIG: &[&str] = &[
    "stopSequences",
    "responseMimeType",
    "responseSchema",
    "responseJsonSchema",
    "responseModalities",
    "candidateCount",
    "maxOutputTokens",
    "temperature",
    "topP",
    "topK",
    "seed",
    "presencePenalty",
    "frequencyPenalty",
    "responseLogprobs",
    "logprobs",
    "enableEnhancedCivicAnswers",
    "speechConfig",
    "thinkingConfig",
    "imageConfig",
    "mediaResolution",
];

/// Checks a request.
pub(super) fn check(request: &IncomingRequest, issued_answers: &IssuedAnswers) -> Result<(), ApiError> {
    let (model, method) = model_and_method(&request.uri);
    if model.is_empty() || ![GENERATE_METHOD, STREAM_METHOD].contains(&method) {
        return Err(unknown_model(model));
    }
    let query = request.uri.query().unwrap_or_default();
    if method == STREAM_METHOD && !query.split('&').any(|pair| pair == "alt=sse") {
        return Err(invalid("this provider streams server-sent events only: `alt=sse` is missing"));
    }
    let root = Node::root(&request.body);
    if !request.body.is_object() {
        return Err(invalid("Invalid JSON payload received. Unexpected token."));
    }
    root.only(PARAMETERS)?;
    check_generation_config(&root, model)?;
    if let Some(instruction) = root.member("systemInstruction") {
        contents::check_content(&instruction)?;
    }
    tools::check(&root)?;
    let contents = match root.member("contents") {
        Some(contents) => contents.list()?,
        None => Vec::new(),
    };
    contents::check(&contents, model)?;
    turns::check(&contents)?;
    signatures::check(&contents, model, issued_answers)
}

fn check_generation_config(root: &Node<'_>, model: &str) -> Result<(), ApiError> {
    let Some(config) = root.member("generationConfig") else { return Ok(()) };
    config.only(GENERATION_CONFIG)?;
    if let Some(limit) = config.member("maxOutputTokens")
        && limit.integer()? < 1
    {
        return Err(limit.violation("max_output_tokens must be positive."));
    }
    if let Some(temperature) = config.member("temperature")
        && !(0.0..=2.0).contains(&temperature.number()?)
    {
        return Err(temperature.violation("temperature must be in the range [0.0, 2.0]."));
    }
    if let Some(count) = config.member("candidateCount")
        && count.integer()? != 1
    {
        return Err(invalid("Multiple candidates is not enabled for this model"));
    }
    check_response_form(root, &config, model)?;
    match config.member("thinkingConfig") {
        Some(thinking) => check_thinking(&thinking, model),
        None => Ok(()),
    }
}

/// Checks the form of the answer (<https://ai.google.dev/gemini-api/docs/structured-output>). Models before Gemini 3 do
/// not combine it with functions.
fn check_response_form(root: &Node<'_>, config: &Node<'_>, model: &str) -> Result<(), ApiError> {
    let media_type = config.member("responseMimeType").map(|kind| kind.string()).transpose()?;
    let schemas = [config.member("responseSchema"), config.member("responseJsonSchema")];
    if schemas.iter().all(Option::is_some) {
        return Err(invalid("response_schema and response_json_schema are mutually exclusive"));
    }
    if schemas.iter().any(Option::is_some) && !matches!(media_type, Some("application/json" | "text/x.enum"))
    {
        return Err(invalid(
            "Response schema is only supported with response mime type: 'application/json' or 'text/x.enum'",
        ));
    }
    if let [Some(schema), _] = &schemas {
        schema::check(schema)?;
    }
    if let [_, Some(schema)] = &schemas {
        schema.object()?;
    }
    match media_type {
        Some("application/json") if root.member("tools").is_some() && !always_signs(model) => {
            Err(invalid("Function calling with a response mime type: 'application/json' is unsupported"))
        }
        None | Some("text/plain" | "application/json" | "text/x.enum") => Ok(()),
        Some(other) => Err(invalid(format!("Unsupported response mime type: {other}"))),
    }
}

/// Checks the thinking settings. Newer models have levels, older ones only budgets
/// (<https://ai.google.dev/gemini-api/docs/thinking>).
fn check_thinking(thinking: &Node<'_>, model: &str) -> Result<(), ApiError> {
    thinking.only(&["includeThoughts", "thinkingBudget", "thinkingLevel"])?;
    if let Some(include) = thinking.member("includeThoughts") {
        include.boolean()?;
    }
    let budget = thinking.member("thinkingBudget").map(|budget| budget.integer()).transpose()?;
    let level = thinking.member("thinkingLevel");
    if let Some(level) = &level {
        let levels = ["THINKING_LEVEL_UNSPECIFIED", "MINIMAL", "LOW", "MEDIUM", "HIGH"];
        level.one_of("ThinkingConfig.ThinkingLevel", &levels)?;
        if !always_signs(model) {
            return Err(invalid("Thinking level is not supported for this model."));
        }
    }
    match budget {
        Some(_) if level.is_some() => {
            Err(invalid("You can only set only one of thinking budget and thinking level."))
        }
        Some(budget) if budget < -1 => Err(invalid(format!(
            "The thinking budget {budget} is invalid. Please choose a value of at least -1."
        ))),
        _ => Ok(()),
    }
}
