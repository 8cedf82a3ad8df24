//! What a server asks of a person, and what a person's answer says in the server's terms. Nothing here waits.

use rmcp::model::{ElicitRequestParams, ElicitResult, ElicitationAction};
use serde_json::{Map, Value};

use crate::assets::definition::beginning;
use crate::tools::Question;

/// The longest name of a field, in characters, and the longest question with its options, in bytes.
const MAX_NAME: usize = 128;
const MAX_QUESTION: usize = 32 * 1024;
/// The most fields of a form. A larger one is declined.
const MAX_FIELDS: usize = 32;
/// The most choices of a field that are offered, and of which a person is shown all.
const MAX_CHOICES: usize = 64;
/// How much of each of a server's texts a person is shown, in bytes.
const MAX_SHOWN: usize = 4 * 1024;
/// The answers by which nothing is given.
const DECLINE: &str = "decline";
const DONE: &str = "done";
const GOES: &str = "Your answer goes to that server; `decline` gives it nothing.";

/// Something that a person is asked.
#[derive(Debug, PartialEq)]
pub(super) enum Prompt {
    /// To fill in a form.
    Form {
        /// What for.
        message: String,
        /// Its fields, by their names in order.
        fields: Vec<Field>,
    },
    /// To do something at an address.
    Address {
        /// What for.
        message: String,
        /// The address.
        url: String,
    },
}

/// A field of a form.
#[derive(Debug, PartialEq)]
pub(super) struct Field {
    name: String,
    about: String,
    required: bool,
    kind: Kind,
}

/// What a field takes.
#[derive(Debug, PartialEq)]
enum Kind {
    Text { min: u64, max: u64 },
    Number { whole: bool, min: Option<f64>, max: Option<f64> },
    Boolean,
    One(Vec<Choice>),
    Many(Vec<Choice>),
}

/// One of several values.
#[derive(Debug, PartialEq)]
struct Choice {
    value: String,
    title: String,
}

/// What an answer says.
#[derive(Debug, PartialEq)]
pub(super) enum Answer {
    /// This goes to the server.
    Given(ElicitResult),
    /// It cannot be taken, for this reason.
    Unclear(String),
}

pub(super) fn declined() -> ElicitResult {
    ElicitResult::new(ElicitationAction::Decline)
}

impl Prompt {
    /// What is asked; none where no person can be asked that.
    pub(super) fn of(params: &ElicitRequestParams) -> Option<Self> {
        let prompt = Self::read_from(params)?;
        let Question { text, options } = prompt.question("", None);
        let bytes = text.len() + options.iter().flatten().map(String::len).sum::<usize>();
        (bytes <= MAX_QUESTION).then_some(prompt)
    }

    fn read_from(params: &ElicitRequestParams) -> Option<Self> {
        match params {
            ElicitRequestParams::FormElicitationParams { message, requested_schema, .. } => {
                let schema = serde_json::to_value(requested_schema).ok()?;
                let required = schema.get("required").and_then(Value::as_array);
                let required = required.map(Vec::as_slice).unwrap_or_default();
                let properties = schema.get("properties").and_then(Value::as_object)?;
                let field = |(name, schema): (&String, &Value)| {
                    Field::of(name, schema, required.iter().any(|required| required == name))
                };
                let fields: Vec<Field> = properties.iter().map(field).collect::<Option<_>>()?;
                (fields.len() <= MAX_FIELDS).then(|| Self::Form { message: shown(message), fields })
            }
            ElicitRequestParams::UrlElicitationParams { message, url, .. } => {
                let parsed = reqwest::Url::parse(url).ok()?;
                let fits = matches!(parsed.scheme(), "http" | "https") && url.len() <= MAX_SHOWN;
                fits.then(|| Self::Address { message: shown(message), url: parsed.to_string() })
            }
            _ => None,
        }
    }

    /// The question, by `server`; `unclear` is why an answer to it could not be taken.
    pub(super) fn question(&self, server: &str, unclear: Option<&str>) -> Question {
        let (asks, options) = match self {
            Self::Address { message, url } => {
                let asks = format!(
                    "you to open this address: {message}\n\n{url}\n\nOpen it only if you trust that server. Answer \
                     `{DONE}` when you have done what it asks for there, `{DECLINE}` if you will not."
                );
                (asks, Some(vec![DONE.to_owned(), DECLINE.to_owned()]))
            }
            Self::Form { message, fields } => match fields.as_slice() {
                [] => {
                    (format!("for your consent: {message}"), Some(vec!["yes".to_owned(), DECLINE.to_owned()]))
                }
                [field] => (format!("this: {message}\n\n{} {GOES}", field.line()), field.options()),
                fields => {
                    let lines: Vec<String> =
                        fields.iter().map(|field| format!("- {}", field.line())).collect();
                    let lines = lines.join("\n");
                    let how = "Answer with a line `name: value` for each, or with a JSON object.";
                    (format!("this: {message}\n\n{lines}\n\n{how} {GOES}"), None)
                }
            },
        };
        let before = unclear.map(|reason| format!("That cannot be taken: {reason}.\n\n")).unwrap_or_default();
        Question { text: format!("{before}The tool server `{server}` asks {asks}"), options }
    }

    /// Reads an answer.
    pub(super) fn read(&self, answer: &str) -> Answer {
        let answer = answer.trim();
        let said = answer.to_lowercase();
        let accepted = ElicitResult::new(ElicitationAction::Accept);
        match self {
            _ if said == DECLINE => Answer::Given(declined()),
            Self::Form { fields, .. }
                if fields.iter().any(|field| fields.len() == 1 && field.means(answer)) =>
            {
                Self::read_form(fields, answer)
            }
            _ if said == "no" => Answer::Given(declined()),
            _ if said == "cancel" => Answer::Given(ElicitResult::new(ElicitationAction::Cancel)),
            Self::Address { .. } if [DONE, "yes", "ok"].contains(&said.as_str()) => Answer::Given(accepted),
            Self::Address { .. } => Answer::Unclear(format!("the answer must be `{DONE}` or `{DECLINE}`")),
            Self::Form { fields, .. } if fields.is_empty() => match said.as_str() {
                "yes" | "ok" | "accept" | DONE => {
                    Answer::Given(accepted.with_content(Value::Object(Map::new())))
                }
                _ => Answer::Unclear(format!("the answer must be `yes` or `{DECLINE}`")),
            },
            Self::Form { fields, .. } => Self::read_form(fields, answer),
        }
    }

    fn read_form(fields: &[Field], answer: &str) -> Answer {
        match content(fields, answer) {
            Ok(content) => Answer::Given(
                ElicitResult::new(ElicitationAction::Accept).with_content(Value::Object(content)),
            ),
            Err(reason) => Answer::Unclear(reason),
        }
    }
}

/// What an answer says of each field.
fn content(fields: &[Field], answer: &str) -> Result<Map<String, Value>, String> {
    let given = match (serde_json::from_str::<Value>(answer), fields) {
        (Ok(Value::Object(given)), _) => given,
        (_, [field]) => {
            let value = field.spelled(answer)?;
            return Ok(Map::from_iter([(field.name.clone(), value)]));
        }
        _ => lines(fields, answer)?,
    };
    if let Some(unknown) = given.keys().find(|name| fields.iter().all(|field| field.name != **name)) {
        return Err(format!("there is no field `{unknown}`"));
    }
    let mut content = Map::new();
    for field in fields {
        match given.get(&field.name) {
            Some(value) => {
                content.insert(field.name.clone(), field.checked(value)?);
            }
            None if field.required => return Err(format!("`{}` is missing", field.name)),
            None => {}
        }
    }
    Ok(content)
}

/// Reads lines of `name: value`.
fn lines(fields: &[Field], answer: &str) -> Result<Map<String, Value>, String> {
    let mut given = Map::new();
    for line in answer.lines().filter(|line| !line.trim().is_empty()) {
        let (name, value) = line.split_once(':').ok_or("each line must be `name: value`")?;
        let (name, value) = (name.trim(), value.trim());
        let field = fields.iter().find(|field| field.name == name);
        let field = field.ok_or_else(|| format!("there is no field `{name}`"))?;
        if given.insert(name.to_owned(), field.spelled(value)?).is_some() {
            return Err(format!("`{name}` is there twice"));
        }
    }
    Ok(given)
}

impl Field {
    fn of(name: &str, schema: &Value, required: bool) -> Option<Self> {
        if name.chars().count() > MAX_NAME || name.chars().any(char::is_control) {
            return None;
        }
        let text = |field: &str| schema.get(field).and_then(Value::as_str).unwrap_or_default();
        let about = match (text("title"), text("description")) {
            ("", about) | (about, "") => shown(about),
            (title, description) => shown(&format!("{title}: {description}")),
        };
        let (min, max) = (schema.get("minimum"), schema.get("maximum"));
        let (min, max) = (min.and_then(Value::as_f64), max.and_then(Value::as_f64));
        let length = |field: &str| schema.get(field).and_then(Value::as_u64);
        let kind = match text("type") {
            "string" => match choices(schema) {
                Some(choices) => Kind::One(choices),
                None => Kind::Text {
                    min: length("minLength").unwrap_or(0),
                    max: length("maxLength").unwrap_or(u64::MAX),
                },
            },
            "number" => Kind::Number { whole: false, min, max },
            "integer" => Kind::Number { whole: true, min, max },
            "boolean" => Kind::Boolean,
            "array" => Kind::Many(choices(schema.get("items")?)?),
            _ => return None,
        };
        let fits = match &kind {
            Kind::One(choices) | Kind::Many(choices) => (1..=MAX_CHOICES).contains(&choices.len()),
            _ => true,
        };
        fits.then(|| Self { name: name.to_owned(), about, required, kind })
    }

    /// What a person is told of it.
    fn line(&self) -> String {
        let kind = match &self.kind {
            Kind::Text { .. } => "a text".to_owned(),
            Kind::Number { whole: true, .. } => "a whole number".to_owned(),
            Kind::Number { whole: false, .. } => "a number".to_owned(),
            Kind::Boolean => "yes or no".to_owned(),
            Kind::One(choices) => format!("one of {}", listed(choices)),
            Kind::Many(choices) => format!("some of {}, with commas between them", listed(choices)),
        };
        let optional = if self.required { "" } else { ", may be left out" };
        let about = if self.about.is_empty() { String::new() } else { format!(": {}", self.about) };
        format!("`{}` ({kind}{optional}){about}.", self.name)
    }

    fn options(&self) -> Option<Vec<String>> {
        let options = match &self.kind {
            Kind::Boolean => vec!["yes".to_owned(), "no".to_owned()],
            Kind::One(choices) => choices.iter().map(|choice| choice.title.clone()).collect(),
            _ => return None,
        };
        Some(options.into_iter().chain([DECLINE.to_owned()]).collect())
    }

    /// Whether this very answer is one of its values, although it may also mean something else.
    fn means(&self, answer: &str) -> bool {
        self.spelled(answer).is_ok()
    }

    /// The value that a person has spelled so.
    fn spelled(&self, text: &str) -> Result<Value, String> {
        let name = &self.name;
        match &self.kind {
            Kind::Text { .. } => self.checked(&Value::from(text)),
            Kind::Number { .. } => {
                let value = serde_json::from_str(text).unwrap_or(Value::Null);
                self.checked(&value)
            }
            Kind::Boolean => match text.to_lowercase().as_str() {
                "yes" | "true" | "y" => Ok(true.into()),
                "no" | "false" | "n" => Ok(false.into()),
                _ => Err(format!("`{name}` must be `yes` or `no`")),
            },
            Kind::One(choices) => chosen(name, choices, text),
            Kind::Many(choices) => {
                if let Ok(value @ Value::Array(_)) = serde_json::from_str(text) {
                    return self.checked(&value);
                }
                let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
                let values: Result<Vec<Value>, String> =
                    parts.map(|part| chosen(name, choices, part)).collect();
                values.map(Value::Array)
            }
        }
    }

    /// The value, if the field takes it.
    fn checked(&self, value: &Value) -> Result<Value, String> {
        let name = &self.name;
        match (&self.kind, value) {
            (Kind::Text { min, max }, Value::String(text)) => {
                let length = text.chars().count() as u64;
                if length < *min || length > *max {
                    let most = if *max == u64::MAX { String::new() } else { format!(", {max} at most") };
                    return Err(format!("`{name}` must have at least {min} characters{most}"));
                }
                Ok(value.clone())
            }
            (Kind::Number { whole, min, max }, Value::Number(number)) => {
                let number = number.as_f64().unwrap_or(f64::NAN);
                if *whole && number.fract() != 0.0 {
                    return Err(format!("`{name}` must be a whole number"));
                }
                if min.is_some_and(|min| number < min) || max.is_some_and(|max| number > max) {
                    let bound = |bound: &Option<f64>| bound.map_or_else(|| "…".to_owned(), |b| b.to_string());
                    return Err(format!("`{name}` must be from {} to {}", bound(min), bound(max)));
                }
                Ok(value.clone())
            }
            (Kind::Boolean, Value::Bool(_)) => Ok(value.clone()),
            (Kind::Boolean | Kind::One(_), Value::String(text)) => self.spelled(text),
            (Kind::Many(choices), Value::Array(values)) => {
                let of = |value: &Value| chosen(name, choices, value.as_str().unwrap_or_default());
                values.iter().map(of).collect::<Result<Vec<_>, _>>().map(Value::Array)
            }
            (Kind::Text { .. }, _) => Err(format!("`{name}` must be a text")),
            (Kind::Number { .. }, _) => Err(format!("`{name}` must be a number")),
            (Kind::Boolean, _) => Err(format!("`{name}` must be `yes` or `no`")),
            (Kind::One(choices) | Kind::Many(choices), _) => {
                Err(format!("`{name}` must be of {}", listed(choices)))
            }
        }
    }
}

/// The values to choose from, in any of the forms that the protocol's revisions have.
fn choices(schema: &Value) -> Option<Vec<Choice>> {
    if let Some(values) = schema.get("enum").and_then(Value::as_array) {
        let titles = schema.get("enumNames").and_then(Value::as_array);
        let choice = |(at, value): (usize, &Value)| {
            let value = value.as_str()?.to_owned();
            let title = titles.and_then(|titles| titles.get(at)).and_then(Value::as_str);
            Some(Choice { title: shown(title.unwrap_or(&value)), value })
        };
        return values.iter().enumerate().map(choice).collect();
    }
    let titled = schema.get("oneOf").or_else(|| schema.get("anyOf")).and_then(Value::as_array)?;
    let choice = |choice: &Value| {
        let value = choice.get("const").and_then(Value::as_str)?.to_owned();
        let title = choice.get("title").and_then(Value::as_str);
        Some(Choice { title: shown(title.unwrap_or(&value)), value })
    };
    titled.iter().map(choice).collect()
}

/// The value that goes by this name: by itself, else by its title.
fn chosen(field: &str, choices: &[Choice], text: &str) -> Result<Value, String> {
    let same = |name: &String| name.eq_ignore_ascii_case(text);
    let exact = choices.iter().find(|choice| choice.value == text || choice.title == text);
    let found = exact.or_else(|| choices.iter().find(|choice| same(&choice.value) || same(&choice.title)));
    let found = found.map(|choice| Value::from(choice.value.as_str()));
    found.ok_or_else(|| format!("`{field}` must be of {}", listed(choices)))
}

fn listed(choices: &[Choice]) -> String {
    let titles: Vec<String> = choices.iter().map(|choice| format!("`{}`", choice.title)).collect();
    titles.join(", ")
}

fn shown(text: &str) -> String {
    beginning(text.trim(), MAX_SHOWN).to_owned()
}

#[cfg(test)]
#[path = "elicitation_tests.rs"]
mod tests;
