//! `soul.md`: the agent's character. It is a template, with variables for what its author cannot know in advance.
//!
//! The variables never change within a task, because the system prompt must not: providers cache a prompt by its
//! prefix.

use std::io;
use std::path::Path;

use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer};
use sha2::{Digest as _, Sha256};

use super::{Catalog, front_matter, read_text};

/// The maximum size of the file, in bytes. All of it is sent to the model in each request.
const MAX_FILE_BYTES: u64 = 64 * 1024;
/// The maximum number of variables in it, because each can expand to a large part of the catalog.
const MAX_VARIABLES: usize = 32;
/// The maximum length of the version, in characters.
const MAX_VERSION_CHARS: usize = 128;
/// The maximum length of the name, in characters.
const MAX_NAME_CHARS: usize = 128;
/// The maximum length of the description, in characters.
const MAX_DESCRIPTION_CHARS: usize = 1_024;
/// The number of bytes of the content's hash that make up the default version.
const VERSION_HASH_BYTES: usize = 6;

/// The soul used if the catalog has no usable one.
const BUILT_IN_SOUL: &str = "You are a person's own assistant. You are helpful, honest and brief. You use your \
                        tools where they help, and say plainly what you did and what you could not do.";

/// The soul: a parsed template and its version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Soul {
    version: String,
    identity: Identity,
    template: Vec<Piece>,
}

/// What other agents are told about this one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// Its name, if it has one.
    pub name: Option<String>,
    /// What it is there for, if that is said.
    pub description: Option<String>,
}

/// A piece of a template.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Text(String),
    Variable(Variable),
}

/// A variable of a template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Variable {
    /// The agents of the catalog, one line each, with what they are good at.
    Agents,
    /// The skills of the catalog, one line each, with what they are for.
    Skills,
    /// The soul's version.
    Version,
    /// The folder of the agent's files, as its programs see it.
    Workspace,
}

impl Variable {
    const ALL: [(&str, Self); 4] = [
        ("agents", Self::Agents),
        ("skills", Self::Skills),
        ("version", Self::Version),
        ("workspace", Self::Workspace),
    ];
}

/// The optional front matter.
#[derive(Default, Deserialize)]
struct FrontMatter {
    version: Option<String>,
    #[serde(default, deserialize_with = "text_or_nothing")]
    name: Option<String>,
    #[serde(default, deserialize_with = "text_or_nothing")]
    description: Option<String>,
}

/// Reads a text; anything else, which earlier versions ignored, is no text.
fn text_or_nothing<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Field {
        Text(String),
        Other(IgnoredAny),
    }
    Ok(match Field::deserialize(deserializer)? {
        Field::Text(text) => Some(text),
        Field::Other(IgnoredAny) => None,
    })
}

impl Default for Soul {
    fn default() -> Self {
        Self {
            version: content_version(BUILT_IN_SOUL),
            identity: Identity::default(),
            template: vec![Piece::Text(BUILT_IN_SOUL.to_owned())],
        }
    }
}

impl Soul {
    /// Loads the soul of the catalog in `folder`; the built-in one if there is no `soul.md`.
    ///
    /// # Errors
    /// Why that file cannot be used, for a person.
    pub fn load(folder: &Path) -> Result<Self, String> {
        let file = folder.join("soul.md");
        match std::fs::symlink_metadata(&file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::default()),
            _ => Self::parse(&read_text(&file, MAX_FILE_BYTES)?),
        }
    }

    fn parse(text: &str) -> Result<Self, String> {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let begins_with_fields = text.lines().next().is_some_and(|line| line.trim_end() == "---");
        let (FrontMatter { version, name, description }, body) = if begins_with_fields {
            front_matter::split(text)?
        } else {
            (FrontMatter::default(), text.trim())
        };
        if body.is_empty() {
            return Err("it is empty: say who the agent is and how it works".into());
        }
        let version = version.map_or_else(|| content_version(text), |version| version.trim().to_owned());
        let length = version.chars().count();
        if length == 0 || length > MAX_VERSION_CHARS || version.contains(char::is_control) {
            return Err(format!("its `version` must be 1 to {MAX_VERSION_CHARS} characters on one line"));
        }
        let identity = Identity {
            name: name.and_then(|name| one_line(&name, MAX_NAME_CHARS)),
            description: description.and_then(|description| one_line(&description, MAX_DESCRIPTION_CHARS)),
        };
        Ok(Self { version, identity, template: parse_template(body)? })
    }

    /// Returns what other agents are told about this one.
    pub const fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Returns the version: `version` of the front matter, else the beginning of the content's SHA-256.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Renders the text for a model, given the catalog and the folder of the agent's files.
    pub fn render(&self, catalog: &Catalog, workspace: &Path) -> String {
        let pieces = self.template.iter().map(|piece| match piece {
            Piece::Text(text) => text.clone(),
            Piece::Variable(Variable::Version) => self.version.clone(),
            Piece::Variable(Variable::Workspace) => {
                let absolute = std::path::absolute(workspace);
                absolute.as_deref().unwrap_or(workspace).display().to_string()
            }
            Piece::Variable(Variable::Agents) => bullet_list(
                catalog.agents.iter().map(|agent| (agent.name.as_str(), agent.description.as_str())),
            ),
            Piece::Variable(Variable::Skills) => bullet_list(
                catalog.skills.iter().map(|skill| (skill.name.as_str(), skill.description.as_str())),
            ),
        });
        pieces.collect()
    }
}

/// Puts a text on one line and shortens it; `None` if nothing is left. Earlier versions ignored the field, so a catalog
/// with any text in it stays valid.
fn one_line(text: &str, max_chars: usize) -> Option<String> {
    let words = text.split(|c: char| c.is_whitespace() || c.is_control()).filter(|word| !word.is_empty());
    let line: String = words.collect::<Vec<_>>().join(" ").chars().take(max_chars).collect();
    (!line.is_empty()).then_some(line)
}

fn content_version(text: &str) -> String {
    let mut version = hex::encode(Sha256::digest(text));
    version.truncate(2 * VERSION_HASH_BYTES);
    version
}

fn bullet_list<'a>(entries: impl Iterator<Item = (&'a str, &'a str)>) -> String {
    let lines: Vec<_> = entries.map(|(name, description)| format!("- {name}: {description}")).collect();
    if lines.is_empty() { "(none)".into() } else { lines.join("\n") }
}

/// Parses a text in which `{{name}}` is a variable and `\{{` stands for two braces.
fn parse_template(text: &str) -> Result<Vec<Piece>, String> {
    let mut pieces = Vec::new();
    let mut plain = String::new();
    let mut variables = 0;
    for (number, line) in (1..).zip(text.split_inclusive('\n')) {
        let mut rest = line;
        while let Some((before, behind)) = rest.split_once("{{") {
            if let Some(before) = before.strip_suffix('\\') {
                plain.push_str(before);
                plain.push_str("{{");
                rest = behind;
                continue;
            }
            let Some((name, behind)) = behind.split_once("}}") else {
                return Err(format!(
                    "line {number} of its text has a `{{{{` without `}}}}`; for the braces themselves write `\\{{{{`"
                ));
            };
            plain.push_str(before);
            pieces.push(Piece::Text(std::mem::take(&mut plain)));
            pieces.push(Piece::Variable(parse_variable(name.trim(), number)?));
            variables += 1;
            rest = behind;
        }
        plain.push_str(rest);
    }
    if variables > MAX_VARIABLES {
        return Err(format!("it has {variables} variables; at most {MAX_VARIABLES} are allowed"));
    }
    pieces.push(Piece::Text(plain));
    Ok(pieces)
}

fn parse_variable(name: &str, line: usize) -> Result<Variable, String> {
    let known = Variable::ALL.iter().find(|(known, _)| *known == name);
    known.map(|(_, variable)| *variable).ok_or_else(|| {
        let name: String = name.escape_debug().take(40).collect();
        let names = Variable::ALL.map(|(known, _)| format!("`{{{{{known}}}}}`")).join(", ");
        format!(
            "line {line} of its text names the unknown variable `{name}`; the known ones are {names}; for the \
             braces themselves write `\\{{{{`"
        )
    })
}

#[cfg(test)]
#[path = "../tests/unit/soul.rs"]
mod tests;
