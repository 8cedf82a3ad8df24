//! Tests of reloading: a faulty entry keeps its last good version, a removed entry is gone.

use std::collections::BTreeMap;
use std::fs;

use pretty_assertions::assert_eq;
use proptest::prelude::*;
use tempfile::TempDir;

use super::*;
use crate::Permission;

/// A catalog's folder, and the catalog last loaded from it.
struct CatalogFixture {
    folder: TempDir,
    catalog: Catalog,
}

impl CatalogFixture {
    /// Creates a catalog with a valid entry of each kind.
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let fixture = Self { folder, catalog: Catalog::default() };
        fixture.write("soul.md", "You are Ada.");
        fixture.write("agents/finder.md", &agent("first"));
        fixture.write("skills/count/SKILL.md", &skill("first"));
        fixture.write("skills/count/scripts/run.sh", "echo");
        fixture.write("tools/weather.json", &tool("first"));
        fixture.write("permissions.json", r#"{"tools": {"shell": "deny"}}"#);
        let read = Catalog::load(fixture.folder.path(), Environment::default());
        assert_eq!(read.warnings, [""; 0]);
        Self { catalog: read, ..fixture }
    }

    fn write(&self, name: &str, text: &str) {
        let file = self.folder.path().join(name);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }

    fn reload(&mut self) -> &[String] {
        self.catalog = self.catalog.reload(self.folder.path());
        &self.catalog.warnings
    }

    /// Returns the descriptions of the entries by kind, and the decision about `shell`.
    fn summary(&self) -> (Vec<&str>, Option<Permission>) {
        let agents = self.catalog.agents.iter().map(|agent| agent.description.as_str());
        let skills = self.catalog.skills.iter().map(|skill| skill.description.as_str());
        let tools = self.catalog.tools.iter().map(|tool| tool.description.as_str());
        (agents.chain(skills).chain(tools).collect(), self.catalog.permissions.decision("shell"))
    }
}

fn agent(description: &str) -> String {
    format!("---\ndescription: agent {description}\n---\nYou find things.")
}

fn skill(description: &str) -> String {
    format!("---\nname: count\ndescription: skill {description}\n---\nCount.")
}

fn tool(description: &str) -> String {
    format!(r#"{{"description": "tool {description}", "command": ["true"]}}"#)
}

const FIRST: [&str; 3] = ["agent first", "skill first", "tool first"];

#[test]
fn what_is_faulty_keeps_its_last_good_version_until_it_is_mended() {
    let mut fixture = CatalogFixture::new();
    for (name, text) in [
        ("agents/finder.md", "You have no front matter."),
        ("skills/count/SKILL.md", "---\nname: count\n---\nNo description."),
        ("tools/weather.json", "{"),
        ("permissions.json", "{"),
    ] {
        fixture.write(name, text);
    }
    for _ in 0..2 {
        let warnings = fixture.reload().to_vec();
        for name in ["agents/finder.md: ", "skills/count: ", "tools/weather.json: ", "permissions.json: "] {
            let named: Vec<_> = warnings.iter().filter(|warning| warning.starts_with(name)).collect();
            assert!(matches!(named.as_slice(), [one] if one.contains("last good version")), "{warnings:?}");
        }
        assert_eq!(fixture.summary(), (FIRST.to_vec(), Some(Permission::Deny)));
    }
    fixture.write("agents/finder.md", &agent("second"));
    fixture.write("skills/count/SKILL.md", &skill("second"));
    fixture.write("tools/weather.json", &tool("second"));
    fixture.write("permissions.json", "{}");
    assert_eq!(fixture.reload(), [""; 0]);
    assert_eq!(fixture.summary(), (vec!["agent second", "skill second", "tool second"], None));
}

#[test]
fn what_was_faulty_from_the_beginning_is_left_out_until_it_is_mended() {
    let mut fixture = CatalogFixture::new();
    fixture.write("agents/other.md", "faulty");
    assert_eq!(fixture.reload().len(), 1);
    assert!(fixture.catalog.warnings[0].ends_with("; it is left out"), "{:?}", fixture.catalog.warnings);
    assert_eq!(fixture.summary().0, FIRST);
    fixture.write("agents/other.md", &agent("other"));
    assert_eq!(fixture.reload(), [""; 0]);
    assert_eq!(fixture.summary().0, ["agent first", "agent other", "skill first", "tool first"]);
}

#[test]
fn what_is_gone_is_gone() {
    let mut fixture = CatalogFixture::new();
    let folder = fixture.folder.path().to_owned();
    fs::remove_file(folder.join("agents/finder.md")).unwrap();
    fs::remove_dir_all(folder.join("tools")).unwrap();
    fs::remove_file(folder.join("permissions.json")).unwrap();
    // The remains of a removed skill, for example files that version control does not know, are not a skill.
    fs::remove_file(folder.join("skills/count/SKILL.md")).unwrap();
    let warnings = fixture.reload();
    assert!(
        matches!(warnings, [one] if one.starts_with("skills/count: ") && one.contains("left out")),
        "{warnings:?}"
    );
    assert_eq!(fixture.summary(), (vec![], None));
}

#[test]
fn a_catalog_that_cannot_be_read_stays_as_it_was() {
    let mut fixture = CatalogFixture::new();
    let folder = fixture.folder.path().to_owned();
    let moved = folder.with_extension("aside");
    fs::rename(&folder, &moved).unwrap();
    let warnings = fixture.reload();
    assert!(matches!(warnings, [one] if one.contains("stays in use")), "{warnings:?}");
    assert_eq!(fixture.summary(), (FIRST.to_vec(), Some(Permission::Deny)));
    fs::rename(&moved, &folder).unwrap();
    // The same holds for a part of it.
    fs::remove_dir_all(folder.join("agents")).unwrap();
    fs::write(folder.join("agents"), "no folder").unwrap();
    let warnings = fixture.reload();
    assert!(matches!(warnings, [one] if one.starts_with("agents: ")), "{warnings:?}");
    assert_eq!(fixture.summary().0, FIRST);
}

#[test]
fn the_soul_is_read_apart_and_a_faulty_one_gives_way_to_the_built_in_one_at_first() {
    let mut fixture = CatalogFixture::new();
    fixture.write("soul.md", "{{nothing}}");
    assert_eq!(fixture.reload(), [""; 0]);
    assert_eq!(fixture.catalog.soul.render(&fixture.catalog, Path::new("/w")), "You are Ada.");
    let fresh = Catalog::load(fixture.folder.path(), Environment::default());
    assert_eq!(fresh.soul, Soul::default());
    assert!(
        matches!(fresh.warnings.as_slice(), [one] if one.starts_with("soul.md: ") && one.contains("built-in"))
    );
}

#[test]
fn faults_of_the_permissions_open_nothing_at_first_and_change_nothing_later() {
    let mut fixture = CatalogFixture::new();
    fixture.write("permissions.json", "{");
    assert!(Catalog::load(fixture.folder.path(), Environment::default()).permissions.unreadable);
    fixture.reload();
    assert!(!fixture.catalog.permissions.unreadable);
    let nowhere = Catalog::load(&fixture.folder.path().join("nowhere"), Environment::default());
    assert_eq!((nowhere.permissions.unreadable, nowhere.warnings.len()), (false, 1));
}

proptest! {
    /// For any sequence of changes: an entry is in use if and only if its file exists and was valid at some load
    /// since it appeared, and then it has the content of the last valid load.
    #[test]
    fn an_entry_is_what_it_was_when_it_was_good_last(
        changes in prop::collection::vec((0..3_usize, 0..3_u8, any::<bool>()), 1..20),
    ) {
        let mut fixture = CatalogFixture::new();
        let names = ["a", "b", "c"];
        let mut expected: BTreeMap<&str, String> = [("finder", "agent first".to_owned())].into();
        let mut on_disk: BTreeMap<&str, Option<String>> = BTreeMap::new();
        for (number, (which, change, read)) in changes.into_iter().enumerate() {
            let (name, file) = (names[which], format!("agents/{}.md", names[which]));
            match change {
                0 => {
                    fixture.write(&file, &agent(&number.to_string()));
                    on_disk.insert(name, Some(format!("agent {number}")));
                }
                1 => {
                    fixture.write(&file, "faulty");
                    on_disk.insert(name, None);
                }
                _ => {
                    let _ = fs::remove_file(fixture.folder.path().join(&file));
                    on_disk.remove(name);
                }
            }
            if read {
                fixture.reload();
                for name in names {
                    match on_disk.get(name) {
                        Some(Some(text)) => _ = expected.insert(name, text.clone()),
                        Some(None) => {}
                        None => _ = expected.remove(name),
                    }
                }
                let agents = fixture.catalog.agents.iter();
                let found: BTreeMap<&str, String> =
                    agents.map(|agent| (agent.name.as_str(), agent.description.clone())).collect();
                prop_assert_eq!(&found, &expected);
                let invalid_field = on_disk.values().filter(|text| text.is_none()).count();
                prop_assert_eq!(fixture.catalog.warnings.len(), invalid_field);
            }
        }
    }
}
