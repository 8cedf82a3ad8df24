//! `planning.json`: which messages are planned before they are handled.

use std::path::Path;

use serde::Deserialize;

use super::{is_absent, read_text, redacted_json_error};

/// The maximum size of the file, in bytes.
const MAX_FILE_BYTES: u64 = 4 * 1024;

/// Which messages are planned, if there is an agent to choose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PlanningMode {
    /// Every new message.
    #[default]
    Always,
    /// The messages that are long or consist of several parts.
    Auto,
    /// None.
    Never,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PlanningFile {
    plan: PlanningMode,
}

/// Loads `file`. If it cannot be read, the previous mode applies.
pub(super) fn load(file: &Path, before: PlanningMode, warnings: &mut Vec<String>) -> PlanningMode {
    if is_absent(file) {
        return PlanningMode::default();
    }
    read_text(file, MAX_FILE_BYTES).and_then(|text| parse(&text)).unwrap_or_else(|reason| {
        warnings.push(format!("planning.json: {reason}; the previous setting stays in use"));
        before
    })
}

fn parse(text: &str) -> Result<PlanningMode, String> {
    let written: PlanningFile = serde_json::from_str(text).map_err(|error| {
        let reason = redacted_json_error(&error);
        format!("{reason}: it must be such as {{\"plan\": \"auto\"}}, with `always`, `auto` or `never`")
    })?;
    Ok(written.plan)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn without_the_file_every_message_is_planned() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("planning.json");
        let mut warnings = Vec::new();
        assert_eq!(load(&file, PlanningMode::Never, &mut warnings), PlanningMode::Always);
        for (name, mode) in
            [("always", PlanningMode::Always), ("auto", PlanningMode::Auto), ("never", PlanningMode::Never)]
        {
            fs::write(&file, format!("{{\"plan\": \"{name}\"}}")).unwrap();
            assert_eq!(load(&file, PlanningMode::Always, &mut warnings), mode);
        }
        assert_eq!(warnings, [""; 0]);
    }

    #[test]
    fn a_faulty_file_changes_nothing_and_is_reported() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("planning.json");
        let large = format!("{}{{\"plan\": \"never\"}}", " ".repeat(5_000));
        let faults =
            ["", "{}", "[]", r#"{"plan": "Auto"}"#, r#"{"plan": true}"#, r#"{"plan": "auto", "x": 1}"#];
        for text in faults.into_iter().chain([large.as_str()]) {
            fs::write(&file, text).unwrap();
            let mut warnings = Vec::new();
            assert_eq!(load(&file, PlanningMode::Auto, &mut warnings), PlanningMode::Auto, "{text}");
            assert!(warnings.len() == 1 && warnings[0].starts_with("planning.json: "), "{warnings:?}");
        }
    }
}
