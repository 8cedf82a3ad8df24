//! Converts a server's elicitation to a question for a person, and the person's answer to the server's format.
//! Nothing here waits.

use resources::text::first_bytes;
use rmcp::model::{ElicitRequestParams, ElicitResult, ElicitationAction};
use serde_json::{Map, Value};
use tools::Question;

/// The maximum length of a field's name, in characters, and of a question with its options, in bytes.
const MAX_NAME_CHARS: usize = 128;
const MAX_QUESTION_BYTES: usize = 32 * 1024;
/// The maximum number of fields in a form. A larger form is declined.
const MAX_FIELDS: usize = 32;
/// The maximum number of a field's choices, so that a person can be shown all of them.
const MAX_CHOICES: usize = 64;
/// The maximum length of each of a server's texts as shown to a person, in bytes.
const MAX_TEXT_BYTES: usize = 4 * 1024;
/// The answers that provide no data.
const DECLINE: &str = "decline";
const DONE: &str = "done";
const RECIPIENT_NOTE: &str = "Your answer goes to that server; `decline` sends it nothing.";

/// A question for a person.
#[derive(Debug, PartialEq)]
pub(super) enum Prompt {
    /// A form to fill in.
    Form {
        /// The purpose.
        message: String,
        /// The fields, in order of their names.
        fields: Vec<Field>,
    },
    /// An action at a URL.
    Url {
        /// The purpose.
        message: String,
        /// The URL.
        url: String,
    },
}

/// A field of a form.
#[derive(Debug, PartialEq)]
pub(super) struct Field {
    name: String,
    description: String,
    required: bool,
    kind: FieldKind,
}

/// The type of a field's value.
#[derive(Debug, PartialEq)]
enum FieldKind {
    Text { min: u64, max: u64 },
    Number { is_integer: bool, min: Option<f64>, max: Option<f64> },
    Boolean,
    SingleChoice(Vec<Choice>),
    MultipleChoice(Vec<Choice>),
}

/// One of several values.
#[derive(Debug, PartialEq)]
struct Choice {
    value: String,
    title: String,
}

/// A parsed answer.
#[derive(Debug, PartialEq)]
pub(super) enum ParsedAnswer {
    /// A valid answer for the server.
    Valid(ElicitResult),
    /// An invalid answer, with the reason.
    Invalid(String),
}

pub(super) fn decline_result() -> ElicitResult {
    ElicitResult::new(ElicitationAction::Decline)
}

impl Prompt {
    /// Parses an elicitation; `None` if it cannot be put to a person.
    pub(super) fn from_params(params: &ElicitRequestParams) -> Option<Self> {
        let prompt = Self::parse_params(params)?;
        let Question { text, options } = prompt.question("", None);
        let bytes = text.len() + options.iter().flatten().map(String::len).sum::<usize>();
        (bytes <= MAX_QUESTION_BYTES).then_some(prompt)
    }

    fn parse_params(params: &ElicitRequestParams) -> Option<Self> {
        match params {
            ElicitRequestParams::FormElicitationParams { message, requested_schema, .. } => {
                let schema = serde_json::to_value(requested_schema).ok()?;
                let required = schema.get("required").and_then(Value::as_array);
                let required = required.map(Vec::as_slice).unwrap_or_default();
                let properties = schema.get("properties").and_then(Value::as_object)?;
                let field = |(name, schema): (&String, &Value)| {
                    Field::parse(name, schema, required.iter().any(|required| required == name))
                };
                let fields: Vec<Field> = properties.iter().map(field).collect::<Option<_>>()?;
                (fields.len() <= MAX_FIELDS).then(|| Self::Form { message: truncate_text(message), fields })
            }
            ElicitRequestParams::UrlElicitationParams { message, url, .. } => {
                let parsed = reqwest::Url::parse(url).ok()?;
                let fits = matches!(parsed.scheme(), "http" | "https") && url.len() <= MAX_TEXT_BYTES;
                fits.then(|| Self::Url { message: truncate_text(message), url: parsed.to_string() })
            }
            _ => None,
        }
    }

    /// Returns the question as asked by `server`; `rejection` is why the previous answer was invalid.
    pub(super) fn question(&self, server: &str, rejection: Option<&str>) -> Question {
        let (request, options) = match self {
            Self::Url { message, url } => {
                let request = format!(
                    "you to open this address: {message}\n\n{url}\n\nOpen it only if you trust that server. Answer \
                     `{DONE}` when you have done what it asks for there, `{DECLINE}` if you will not."
                );
                (request, Some(vec![DONE.to_owned(), DECLINE.to_owned()]))
            }
            Self::Form { message, fields } => match fields.as_slice() {
                [] => {
                    (format!("for your consent: {message}"), Some(vec!["yes".to_owned(), DECLINE.to_owned()]))
                }
                [field] => {
                    (format!("this: {message}\n\n{} {RECIPIENT_NOTE}", field.summary()), field.options())
                }
                fields => {
                    let lines: Vec<String> =
                        fields.iter().map(|field| format!("- {}", field.summary())).collect();
                    let lines = lines.join("\n");
                    let how = "Answer with a line `name: value` for each, or with a JSON object.";
                    (format!("this: {message}\n\n{lines}\n\n{how} {RECIPIENT_NOTE}"), None)
                }
            },
        };
        let prefix =
            rejection.map(|reason| format!("That answer is not valid: {reason}.\n\n")).unwrap_or_default();
        Question { text: format!("{prefix}The tool server `{server}` asks {request}"), options }
    }

    /// Parses an answer.
    pub(super) fn parse_answer(&self, answer: &str) -> ParsedAnswer {
        let answer = answer.trim();
        let lowercase = answer.to_lowercase();
        let accepted = ElicitResult::new(ElicitationAction::Accept);
        match self {
            _ if lowercase == DECLINE => ParsedAnswer::Valid(decline_result()),
            Self::Form { fields, .. }
                if fields.iter().any(|field| fields.len() == 1 && field.accepts_text(answer)) =>
            {
                Self::parse_form(fields, answer)
            }
            _ if lowercase == "no" => ParsedAnswer::Valid(decline_result()),
            _ if lowercase == "cancel" => ParsedAnswer::Valid(ElicitResult::new(ElicitationAction::Cancel)),
            Self::Url { .. } if [DONE, "yes", "ok"].contains(&lowercase.as_str()) => {
                ParsedAnswer::Valid(accepted)
            }
            Self::Url { .. } => ParsedAnswer::Invalid(format!("the answer must be `{DONE}` or `{DECLINE}`")),
            Self::Form { fields, .. } if fields.is_empty() => match lowercase.as_str() {
                "yes" | "ok" | "accept" | DONE => {
                    ParsedAnswer::Valid(accepted.with_content(Value::Object(Map::new())))
                }
                _ => ParsedAnswer::Invalid(format!("the answer must be `yes` or `{DECLINE}`")),
            },
            Self::Form { fields, .. } => Self::parse_form(fields, answer),
        }
    }

    fn parse_form(fields: &[Field], answer: &str) -> ParsedAnswer {
        match form_content(fields, answer) {
            Ok(content) => ParsedAnswer::Valid(
                ElicitResult::new(ElicitationAction::Accept).with_content(Value::Object(content)),
            ),
            Err(reason) => ParsedAnswer::Invalid(reason),
        }
    }
}

/// Parses the value of each field from an answer.
fn form_content(fields: &[Field], answer: &str) -> Result<Map<String, Value>, String> {
    let given = match (serde_json::from_str::<Value>(answer), fields) {
        (Ok(Value::Object(given)), _) => given,
        (_, [field]) => {
            let value = field.parse_text(answer)?;
            return Ok(Map::from_iter([(field.name.clone(), value)]));
        }
        _ => parse_lines(fields, answer)?,
    };
    if let Some(unknown) = given.keys().find(|name| fields.iter().all(|field| field.name != **name)) {
        return Err(format!("there is no field `{unknown}`"));
    }
    let mut content = Map::new();
    for field in fields {
        match given.get(&field.name) {
            Some(value) => {
                content.insert(field.name.clone(), field.validate(value)?);
            }
            None if field.required => return Err(format!("`{}` is missing", field.name)),
            None => {}
        }
    }
    Ok(content)
}

/// Parses lines of the form `name: value`.
fn parse_lines(fields: &[Field], answer: &str) -> Result<Map<String, Value>, String> {
    let mut given = Map::new();
    for line in answer.lines().filter(|line| !line.trim().is_empty()) {
        let (name, value) = line.split_once(':').ok_or("each line must be `name: value`")?;
        let (name, value) = (name.trim(), value.trim());
        let field = fields.iter().find(|field| field.name == name);
        let field = field.ok_or_else(|| format!("there is no field `{name}`"))?;
        if given.insert(name.to_owned(), field.parse_text(value)?).is_some() {
            return Err(format!("`{name}` is given twice"));
        }
    }
    Ok(given)
}

impl Field {
    fn parse(name: &str, schema: &Value, required: bool) -> Option<Self> {
        if name.chars().count() > MAX_NAME_CHARS || name.chars().any(char::is_control) {
            return None;
        }
        let text = |field: &str| schema.get(field).and_then(Value::as_str).unwrap_or_default();
        let description = match (text("title"), text("description")) {
            ("", description) | (description, "") => truncate_text(description),
            (title, description) => truncate_text(&format!("{title}: {description}")),
        };
        let (min, max) = (schema.get("minimum"), schema.get("maximum"));
        let (min, max) = (min.and_then(Value::as_f64), max.and_then(Value::as_f64));
        let length = |field: &str| schema.get(field).and_then(Value::as_u64);
        let kind = match text("type") {
            "string" => match parse_choices(schema) {
                Some(choices) => FieldKind::SingleChoice(choices),
                None => FieldKind::Text {
                    min: length("minLength").unwrap_or(0),
                    max: length("maxLength").unwrap_or(u64::MAX),
                },
            },
            "number" => FieldKind::Number { is_integer: false, min, max },
            "integer" => FieldKind::Number { is_integer: true, min, max },
            "boolean" => FieldKind::Boolean,
            "array" => FieldKind::MultipleChoice(parse_choices(schema.get("items")?)?),
            _ => return None,
        };
        let fits = match &kind {
            FieldKind::SingleChoice(choices) | FieldKind::MultipleChoice(choices) => {
                (1..=MAX_CHOICES).contains(&choices.len())
            }
            _ => true,
        };
        fits.then(|| Self { name: name.to_owned(), description, required, kind })
    }

    /// Returns the description of the field for a person.
    fn summary(&self) -> String {
        let kind = match &self.kind {
            FieldKind::Text { .. } => "text".to_owned(),
            FieldKind::Number { is_integer: true, .. } => "a whole number".to_owned(),
            FieldKind::Number { is_integer: false, .. } => "a number".to_owned(),
            FieldKind::Boolean => "yes or no".to_owned(),
            FieldKind::SingleChoice(choices) => format!("one of {}", join_titles(choices)),
            FieldKind::MultipleChoice(choices) => {
                format!("some of {}, separated by commas", join_titles(choices))
            }
        };
        let optional = if self.required { "" } else { ", optional" };
        let description =
            if self.description.is_empty() { String::new() } else { format!(": {}", self.description) };
        format!("`{}` ({kind}{optional}){description}.", self.name)
    }

    fn options(&self) -> Option<Vec<String>> {
        let options = match &self.kind {
            FieldKind::Boolean => vec!["yes".to_owned(), "no".to_owned()],
            FieldKind::SingleChoice(choices) => choices.iter().map(|choice| choice.title.clone()).collect(),
            _ => return None,
        };
        Some(options.into_iter().chain([DECLINE.to_owned()]).collect())
    }

    /// Whether this exact answer is one of the field's values, although it could also have another meaning.
    fn accepts_text(&self, answer: &str) -> bool {
        self.parse_text(answer).is_ok()
    }

    /// Parses a value that a person has written.
    fn parse_text(&self, text: &str) -> Result<Value, String> {
        let name = &self.name;
        match &self.kind {
            FieldKind::Text { .. } => self.validate(&Value::from(text)),
            FieldKind::Number { .. } => {
                let value = serde_json::from_str(text).unwrap_or(Value::Null);
                self.validate(&value)
            }
            FieldKind::Boolean => match text.to_lowercase().as_str() {
                "yes" | "true" | "y" => Ok(true.into()),
                "no" | "false" | "n" => Ok(false.into()),
                _ => Err(format!("`{name}` must be `yes` or `no`")),
            },
            FieldKind::SingleChoice(choices) => select_choice(name, choices, text),
            FieldKind::MultipleChoice(choices) => {
                if let Ok(value @ Value::Array(_)) = serde_json::from_str(text) {
                    return self.validate(&value);
                }
                let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
                let values: Result<Vec<Value>, String> =
                    parts.map(|part| select_choice(name, choices, part)).collect();
                values.map(Value::Array)
            }
        }
    }

    /// Returns the value if it is valid for the field.
    fn validate(&self, value: &Value) -> Result<Value, String> {
        let name = &self.name;
        match (&self.kind, value) {
            (FieldKind::Text { min, max }, Value::String(text)) => {
                let length = text.chars().count() as u64;
                if length < *min || length > *max {
                    let upper_bound =
                        if *max == u64::MAX { String::new() } else { format!(", {max} at most") };
                    return Err(format!("`{name}` must have at least {min} characters{upper_bound}"));
                }
                Ok(value.clone())
            }
            (FieldKind::Number { is_integer, min, max }, Value::Number(number)) => {
                let number = number.as_f64().unwrap_or(f64::NAN);
                if *is_integer && number.fract() != 0.0 {
                    return Err(format!("`{name}` must be a whole number"));
                }
                if min.is_some_and(|min| number < min) || max.is_some_and(|max| number > max) {
                    let bound = |bound: &Option<f64>| bound.map_or_else(|| "…".to_owned(), |b| b.to_string());
                    return Err(format!("`{name}` must be from {} to {}", bound(min), bound(max)));
                }
                Ok(value.clone())
            }
            (FieldKind::Boolean, Value::Bool(_)) => Ok(value.clone()),
            (FieldKind::Boolean | FieldKind::SingleChoice(_), Value::String(text)) => self.parse_text(text),
            (FieldKind::MultipleChoice(choices), Value::Array(values)) => {
                let choice_value =
                    |value: &Value| select_choice(name, choices, value.as_str().unwrap_or_default());
                values.iter().map(choice_value).collect::<Result<Vec<_>, _>>().map(Value::Array)
            }
            (FieldKind::Text { .. }, _) => Err(format!("`{name}` must be text")),
            (FieldKind::Number { .. }, _) => Err(format!("`{name}` must be a number")),
            (FieldKind::Boolean, _) => Err(format!("`{name}` must be `yes` or `no`")),
            (FieldKind::SingleChoice(choices) | FieldKind::MultipleChoice(choices), _) => {
                Err(format!("`{name}` must be one of {}", join_titles(choices)))
            }
        }
    }
}

/// Parses a field's choices, in any of the forms used by the protocol's revisions.
fn parse_choices(schema: &Value) -> Option<Vec<Choice>> {
    if let Some(values) = schema.get("enum").and_then(Value::as_array) {
        let titles = schema.get("enumNames").and_then(Value::as_array);
        let choice = |(at, value): (usize, &Value)| {
            let value = value.as_str()?.to_owned();
            let title = titles.and_then(|titles| titles.get(at)).and_then(Value::as_str);
            Some(Choice { title: truncate_text(title.unwrap_or(&value)), value })
        };
        return values.iter().enumerate().map(choice).collect();
    }
    let titled = schema.get("oneOf").or_else(|| schema.get("anyOf")).and_then(Value::as_array)?;
    let choice = |choice: &Value| {
        let value = choice.get("const").and_then(Value::as_str)?.to_owned();
        let title = choice.get("title").and_then(Value::as_str);
        Some(Choice { title: truncate_text(title.unwrap_or(&value)), value })
    };
    titled.iter().map(choice).collect()
}

/// Returns the value of the choice with this name: by its value, else by its title.
fn select_choice(field: &str, choices: &[Choice], text: &str) -> Result<Value, String> {
    let same = |name: &String| name.eq_ignore_ascii_case(text);
    let exact = choices.iter().find(|choice| choice.value == text || choice.title == text);
    let found = exact.or_else(|| choices.iter().find(|choice| same(&choice.value) || same(&choice.title)));
    let found = found.map(|choice| Value::from(choice.value.as_str()));
    found.ok_or_else(|| format!("`{field}` must be one of {}", join_titles(choices)))
}

fn join_titles(choices: &[Choice]) -> String {
    let titles: Vec<String> = choices.iter().map(|choice| format!("`{}`", choice.title)).collect();
    titles.join(", ")
}

fn truncate_text(text: &str) -> String {
    first_bytes(text.trim(), MAX_TEXT_BYTES).to_owned()
}

#[cfg(test)]
#[path = "../../tests/unit/clients/elicitation.rs"]
mod tests;
