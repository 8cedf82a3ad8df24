//! The engine's environment, to which `mcp.json` and `tools/*.json` may refer.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use http_service::env::Env;

/// The engine's environment, to which `mcp.json` and `tools/*.json` may refer.
#[derive(Clone, Default)]
pub struct Environment(Arc<BTreeMap<String, String>>);

impl Environment {
    /// Takes a snapshot of `env`.
    pub fn from_env(env: &dyn Env) -> Self {
        let names = env.names().into_iter();
        Self(Arc::new(names.filter_map(|name| env.get(&name).map(|value| (name, value))).collect()))
    }
}

/// Prints nothing of it, because it holds keys.
impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("environment…")
    }
}

/// Expands references to the environment: `${NAME}`, and `${NAME:-default}` if NAME may be missing or empty.
pub(super) fn expand_variables(text: &str, Environment(environment): &Environment) -> Result<String, String> {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("${") {
        out.push_str(before);
        let (inner, behind) = after.split_once('}').ok_or("a `${` has no `}`")?;
        let (name, default) = match inner.split_once(":-") {
            Some((name, default)) => (name, Some(default)),
            None => (inner, None),
        };
        if !is_variable_name(name) {
            return Err(format!("`${{{name}}}` names no variable"));
        }
        match (environment.get(name), default) {
            (Some(value), None) => out.push_str(value),
            (Some(value), Some(_)) if !value.is_empty() => out.push_str(value),
            (_, Some(default)) => out.push_str(default),
            (None, None) => return Err(format!("the engine's environment has no variable `{name}`")),
        }
        rest = behind;
    }
    out.push_str(rest);
    Ok(out)
}

/// Whether this is the name of a variable.
pub(super) fn is_variable_name(name: &str) -> bool {
    name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        && name.bytes().next().is_some_and(|first| !first.is_ascii_digit())
}
