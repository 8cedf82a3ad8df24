//! `permissions.json`: which tools may be used, and which of them may use the network.

use std::fmt;
use std::path::{Component, Path, PathBuf};

use resources::text::first_chars;
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::Value;

use super::user_servers::UserServerPolicy;
use super::{is_absent, read_text};

/// The maximum size of the file, in bytes.
const MAX_FILE_BYTES: u64 = 256 * 1024;
/// The maximum number of rules of each kind. Each is matched against each tool.
const MAX_RULES: usize = 1_000;
/// The maximum number of folders that programs may be run from.
const MAX_EXECUTABLE_FOLDERS: usize = 32;
/// The maximum length of a glob, in bytes. Tool names are far shorter.
const MAX_GLOB_BYTES: usize = 256;

/// Whether a tool may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permission {
    /// Without approval.
    Allow,
    /// With a person's approval.
    Ask,
    /// Never.
    Deny,
}

impl Permission {
    /// Returns the permission with this name in the catalog.
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        match name {
            "allow" => Some(Self::Allow),
            "ask" => Some(Self::Ask),
            "deny" => Some(Self::Deny),
            _ => None,
        }
    }
}

/// The operator's decisions about tools, which take precedence over the tools' own defaults.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Permissions {
    /// The permission of tools without a matching rule; the tool's own default if `None`.
    pub default: Option<Permission>,
    /// The rules, in the order of the file: the last one whose glob matches the tool's name applies.
    pub rules: Vec<(String, Permission)>,
    /// Globs of the names of tools that may use the network.
    pub network_globs: Vec<String>,
    /// Folders whose programs may be run, and whose files may all be read.
    pub executable_folders: Vec<PathBuf>,
    /// Which tool servers the user may add; none if `None`.
    pub user_servers: Option<UserServerPolicy>,
    /// Whether the file could not be read. What it denies is then unknown, so nothing is allowed without approval.
    pub unreadable: bool,
}

impl Permissions {
    /// Returns the permissions to use while the decisions are unknown: everything needs approval.
    pub fn unknown() -> Self {
        Self { default: Some(Permission::Ask), unreadable: true, ..Self::default() }
    }

    /// Returns the decision about the tool; `None` if its own default applies.
    pub fn decision(&self, tool: &str) -> Option<Permission> {
        let rule = self.rules.iter().rev().find(|(glob, _)| glob_matches(glob, tool));
        rule.map(|(_, permission)| *permission).or(self.default)
    }

    /// Returns the decision about a tool of a server that the user has added. The operator does not know it,
    /// so that it is allowed only where a rule is about the tools of servers (`__`), not about all tools: a rule
    /// that allows others does not count.
    pub fn decision_for_user_server(&self, tool: &str) -> Option<Permission> {
        let is_about_servers =
            |glob: &str, permission| permission != Permission::Allow || glob.contains("__");
        let mut rules = self.rules.iter().rev();
        let rule =
            rules.find(|(glob, permission)| is_about_servers(glob, *permission) && glob_matches(glob, tool));
        let default = || self.default.filter(|default| *default != Permission::Allow);
        rule.map(|(_, permission)| *permission).or_else(default)
    }

    /// Whether the tool may use the network, if the network is forbidden by default.
    pub fn allows_network(&self, tool: &str) -> bool {
        self.network_globs.iter().any(|glob| glob_matches(glob, tool))
    }
}

/// Whether `name` matches a glob in which `*` stands for any characters.
pub fn glob_matches(glob: &str, name: &str) -> bool {
    let Some((head, rest)) = glob.split_once('*') else { return glob == name };
    let Some(mut name) = name.strip_prefix(head) else { return false };
    let (middle, tail) = rest.rsplit_once('*').unwrap_or(("", rest));
    // Matching each part at its first occurrence leaves the most text for the parts after it.
    for part in middle.split('*') {
        let Some(found) = name.find(part).and_then(|at| name.get(at + part.len()..)) else { return false };
        name = found;
    }
    name.ends_with(tail)
}

/// Loads `file`. If it cannot be read, the previous decisions apply.
pub(super) fn load(file: &Path, before: &Permissions, warnings: &mut Vec<String>) -> Permissions {
    if is_absent(file) {
        return Permissions::default();
    }
    read_text(file, MAX_FILE_BYTES).and_then(|text| parse(&text, warnings)).unwrap_or_else(|reason| {
        let outcome = if before.unreadable {
            "every tool call needs approval until this is fixed"
        } else {
            "its last good version stays in use"
        };
        warnings.push(format!("permissions.json: {reason}; {outcome}"));
        before.clone()
    })
}

#[derive(Deserialize)]
struct PermissionsFile {
    default: Option<Value>,
    #[serde(default)]
    tools: OrderedMembers,
    #[serde(default)]
    network: Vec<Value>,
    #[serde(default)]
    executable: Vec<Value>,
    user_mcp_servers: Option<Value>,
    #[serde(flatten)]
    unknown: OrderedMembers,
}

/// The members of a JSON object, in their order.
#[derive(Default)]
struct OrderedMembers(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for OrderedMembers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MembersVisitor;

        impl<'de> Visitor<'de> for MembersVisitor {
            type Value = OrderedMembers;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<OrderedMembers, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(OrderedMembers(members))
            }
        }

        deserializer.deserialize_map(MembersVisitor)
    }
}

/// Whether a path names the same folder wherever it is read, and is not the root.
fn is_absolute_folder(folder: &Path) -> bool {
    let mut parts = folder.components();
    let is_name = |part| matches!(part, Component::Normal(_));
    parts.next() == Some(Component::RootDir) && parts.clone().next().is_some() && parts.all(is_name)
}

fn parse(text: &str, warnings: &mut Vec<String>) -> Result<Permissions, String> {
    let written: PermissionsFile = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let rules = written.tools.0.len().max(written.network.len());
    if rules > MAX_RULES {
        return Err(format!("it has {rules} rules of one kind; at most {MAX_RULES} are allowed"));
    }
    let mut warn = |warning: String| warnings.push(format!("permissions.json: {warning}"));
    for (field, _) in &written.unknown.0 {
        warn(format!(
            "there is no field `{field}`: there are `default`, `tools`, `network`, `executable` and `user_mcp_servers`"
        ));
    }
    let mut permission = |location: &str, value: &Value| {
        value.as_str().and_then(Permission::from_name).unwrap_or_else(|| {
            warn(format!("{location} must be \"allow\", \"ask\" or \"deny\"; it counts as \"deny\""));
            Permission::Deny
        })
    };
    let default = written.default.as_ref().map(|value| permission("`default`", value));
    let rules = written.tools.0.iter();
    let rules: Vec<_> =
        rules.map(|(glob, value)| (glob.clone(), permission(&format!("`tools`, `{glob}`"), value))).collect();
    if let Some((glob, _)) = rules.iter().find(|(glob, _)| glob.len() > MAX_GLOB_BYTES) {
        let start = first_chars(glob, 40);
        return Err(format!("its glob `{start}…` is over {MAX_GLOB_BYTES} bytes"));
    }
    let mut network = Vec::new();
    for value in &written.network {
        match value.as_str().filter(|glob| glob.len() <= MAX_GLOB_BYTES) {
            Some(glob) => network.push(glob.to_owned()),
            None => warn("an entry of `network` is not the name of a tool; it is left out".into()),
        }
    }
    let mut executable = Vec::new();
    for value in &written.executable {
        match value.as_str().map(PathBuf::from).filter(|folder| is_absolute_folder(folder)) {
            Some(folder) => executable.push(folder),
            None => warn("an entry of `executable` is not the whole path of a folder; it is left out".into()),
        }
    }
    executable.truncate(MAX_EXECUTABLE_FOLDERS);
    let user_servers = written.user_mcp_servers.as_ref().and_then(|value| {
        let policy = UserServerPolicy::parse(value);
        policy.map_err(|reason| warn(format!("`user_mcp_servers`: {reason}; no server can be added"))).ok()
    });
    Ok(Permissions {
        default,
        rules,
        network_globs: network,
        executable_folders: executable,
        user_servers,
        unreadable: false,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parsed(text: &str) -> (Permissions, Vec<String>) {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("permissions.json");
        std::fs::write(&file, text).unwrap();
        let mut warnings = Vec::new();
        (load(&file, &Permissions::unknown(), &mut warnings), warnings)
    }

    #[test]
    fn the_last_rule_that_is_for_a_tool_holds() {
        let (permissions, warnings) = parsed(
            r#"{"default": "ask", "network": ["shell", "get_*"],
                "tools": {"z*": "deny", "*_file": "allow", "write_*": "deny", "a": "allow", "zero": "allow"}}"#,
        );
        assert_eq!(warnings, [""; 0]);
        for (tool, decision) in [
            ("read_file", Permission::Allow),
            ("write_file", Permission::Deny),
            ("zoo", Permission::Deny),
            ("zero", Permission::Allow),
            ("other", Permission::Ask),
        ] {
            assert_eq!(permissions.decision(tool), Some(decision), "{tool}");
        }
        let allowed = ["shell", "get_it", "shells", "get"].map(|tool| permissions.allows_network(tool));
        assert_eq!(allowed, [true, true, false, false]);
    }

    #[test]
    fn a_tool_of_a_users_server_is_allowed_only_by_a_rule_about_servers_tools() {
        let decision = |text: &str| parsed(text).0.decision_for_user_server("notes__look");
        assert_eq!(decision(r#"{"default": "allow"}"#), None);
        assert_eq!(decision(r#"{"tools": {"*": "allow"}}"#), None);
        assert_eq!(decision(r#"{"default": "deny"}"#), Some(Permission::Deny));
        assert_eq!(decision(r#"{"tools": {"*": "deny"}}"#), Some(Permission::Deny));
        assert_eq!(decision(r#"{"tools": {"*": "ask"}}"#), Some(Permission::Ask));
        assert_eq!(decision(r#"{"tools": {"*": "deny", "notes__*": "allow"}}"#), Some(Permission::Allow));
        let denied = r#"{"tools": {"notes__*": "deny", "*look": "allow"}}"#;
        assert_eq!(decision(denied), Some(Permission::Deny));
        assert_eq!(decision(r#"{"default": "deny", "tools": {"*": "allow"}}"#), Some(Permission::Deny));
        assert_eq!(decision(r#"{"default": "ask", "tools": {"*": "allow"}}"#), Some(Permission::Ask));
        assert_eq!(
            decision(r#"{"default": "allow", "tools": {"notes__look": "deny"}}"#),
            Some(Permission::Deny)
        );
    }

    #[test]
    fn without_a_file_nothing_is_decided() {
        let folder = tempfile::tempdir().unwrap();
        let mut warnings = Vec::new();
        let permissions =
            load(&folder.path().join("permissions.json"), &Permissions::unknown(), &mut warnings);
        assert_eq!((permissions.decision("shell"), permissions.allows_network("shell")), (None, false));
        assert_eq!(warnings, [""; 0]);
    }

    #[test]
    fn what_is_not_understood_never_opens_anything() {
        let long = format!(r#"{{"tools": {{"{}": "allow"}}}}"#, "x".repeat(257));
        let many = format!(r#"{{"network": {:?}}}"#, vec!["x"; 1_001]);
        let large = format!("{}{{}}", " ".repeat(300_000));
        for text in ["", "{", "[]", "null", r#"{"tools": []}"#, r#"{"network": "*"}"#, &long, &many, &large] {
            let (permissions, warnings) = parsed(text);
            assert_eq!(permissions.decision("read_file"), Some(Permission::Ask), "{text}");
            assert_eq!((permissions.allows_network("read_file"), warnings.len()), (false, 1), "{text}");
        }
        let (permissions, warnings) = parsed(
            r#"{"default": "alow", "tools": {"*": "allow", "shell": true, "web_*": "Allow"},
                "network": [1, "*".repeat, "a"], "x": 1}"#,
        );
        assert_eq!((permissions.decision("shell"), warnings.len()), (Some(Permission::Ask), 1));
        let (permissions, warnings) = parsed(
            r#"{"default": "alow", "tools": {"a*": "allow", "shell": true, "web_*": "Allow"},
                "network": [1, "a"], "x": 1}"#,
        );
        for (tool, decision) in
            [("shell", Permission::Deny), ("web_fetch", Permission::Deny), ("b", Permission::Deny)]
        {
            assert_eq!(permissions.decision(tool), Some(decision), "{tool}");
        }
        assert_eq!(permissions.decision("ab"), Some(Permission::Allow));
        assert_eq!(permissions.network_globs, ["a"]);
        assert_eq!(warnings.len(), 5, "{warnings:?}");
    }

    #[test]
    fn a_link_to_nothing_is_a_fault() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("permissions.json");
        std::os::unix::fs::symlink("nowhere", &file).unwrap();
        let mut warnings = Vec::new();
        assert_eq!(
            load(&file, &Permissions::unknown(), &mut warnings).decision("shell"),
            Some(Permission::Ask)
        );
        assert_eq!(warnings.len(), 1);
    }

    proptest! {
        #[test]
        fn a_glob_is_what_its_regular_expression_is(glob in "[ab*]{0,8}", name in "[ab]{0,10}") {
            let expression = format!("^{}$", glob.replace('*', ".*"));
            let expected = regex_lite::Regex::new(&expression).unwrap().is_match(&name);
            prop_assert_eq!(glob_matches(&glob, &name), expected);
        }

        #[test]
        fn any_file_is_taken_or_asks(text in r#"[\[\]{}":,a-z*0 ]{0,60}"#) {
            let (permissions, warnings) = parsed(&text);
            if serde_json::from_str::<Value>(&text).is_err() {
                prop_assert_eq!(permissions.default, Some(Permission::Ask));
                prop_assert_eq!(warnings.len(), 1);
            }
        }
    }
}
