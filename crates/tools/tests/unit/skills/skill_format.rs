//! Skills as folders: the catalog reads what was written.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::{SkillName, Timestamp};
use catalog::{Catalog, Environment, SkillSpec};
use proptest::prelude::*;
use testkit::{replace_with_fifo, with_deadline_blocking};

use super::*;

fn custom(name: &str, definition: SkillDefinition) -> CustomSkill {
    let at = Timestamp::from_unix_ms(1_700_000_000_000);
    CustomSkill { name: SkillName::new(name).unwrap(), definition, created_at: at, updated_at: at }
}

/// Loads the unpacked archive of a skill as a catalog does.
fn read_back(skill: &Skill) -> (tempfile::TempDir, Arc<SkillSpec>) {
    let folder = tempfile::tempdir().unwrap();
    let archive = archive(skill).unwrap();
    tar::Archive::new(archive.as_slice()).unpack(folder.path().join("skills")).unwrap();
    let catalog = Catalog::load(folder.path(), Environment::default());
    assert_eq!(catalog.warnings, [""; 0]);
    let [skill] = catalog.skills.as_slice() else { panic!("one skill, not {:?}", catalog.skills) };
    let skill = Arc::clone(skill);
    (folder, skill)
}

#[test]
fn a_skill_of_scripts_alone_is_a_skill_elsewhere_too() {
    let scripts = BTreeMap::from([("a.sh".to_owned(), "echo a".to_owned())]);
    let skill = custom("only-scripts", SkillDefinition { scripts, ..SkillDefinition::default() });
    let (_folder, read) = read_back(&Skill::Custom(Box::new(skill)));
    assert_eq!((read.name.as_str(), read.description.as_str()), ("only-scripts", "The skill only-scripts."));
    assert!(read.body.contains("- scripts/a.sh"), "{}", read.body);
    assert_eq!(read.files, ["scripts/a.sh"]);
}

#[test]
fn a_skill_of_the_catalog_keeps_all_its_files() {
    let folder = tempfile::tempdir().unwrap();
    let put = |path: &str, content: &[u8]| {
        let path = folder.path().join("skills/forms").join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    };
    let document = b"---\nname: forms\ndescription: Fills in.\nlicense: MIT\n---\nDo.";
    put("SKILL.md", document);
    put("references/a.md", b"Why.");
    put("assets/logo.png", b"\x89PNG\xff");
    let skill = Arc::clone(&Catalog::load(folder.path(), Environment::default()).skills[0]);
    let (copy, read) = read_back(&Skill::Platform(Arc::clone(&skill)));
    assert_eq!(SkillSpec { folder: skill.folder.clone(), ..(*read).clone() }, *skill);
    for (path, content) in [("SKILL.md", document.as_slice()), ("assets/logo.png", b"\x89PNG\xff")] {
        assert_eq!(std::fs::read(copy.path().join("skills/forms").join(path)).unwrap(), content);
    }
    put("assets/large", &vec![0; MAX_ARCHIVE_BYTES]);
    let skill = Arc::clone(&Catalog::load(folder.path(), Environment::default()).skills[0]);
    assert!(matches!(archive(&Skill::Platform(skill)), Err(ExportError::TooLarge)));
}

#[test]
fn what_is_no_file_any_more_is_not_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let scripts = folder.path().join("skills/forms/scripts");
    std::fs::create_dir_all(&scripts).unwrap();
    std::fs::write(folder.path().join("skills/forms/SKILL.md"), "---\nname: forms\ndescription: x\n---\nDo.")
        .unwrap();
    for name in ["a.sh", "b.sh"] {
        std::fs::write(scripts.join(name), "echo").unwrap();
    }
    let spec = Arc::clone(&Catalog::load(folder.path(), Environment::default()).skills[0]);
    replace_with_fifo(&scripts.join("a.sh"));
    let skill = Skill::Platform(spec);
    let exported = skill.clone();
    let exported =
        with_deadline_blocking(move || exported.into_contract(Timestamp::from_unix_ms(0))).unwrap();
    assert_eq!(exported.scripts, BTreeMap::from([("b.sh".to_owned(), "echo".to_owned())]));
    assert!(matches!(with_deadline_blocking(move || archive(&skill)), Err(ExportError::Io(_))));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    #[test]
    fn any_skill_is_read_back_as_it_is(
        name in "[a-z0-9]{1,8}(-[a-z0-9]{1,8}){0,3}",
        description in "\\PC{1,80}",
        category in proptest::option::of("\\PC{1,40}"),
        capabilities in proptest::collection::vec("[^,\\pC\\s]{1,20}", 0..4),
        prompt in "[\\PC\n]{1,200}",
        scripts in proptest::collection::btree_map("[a-zA-Z0-9 _-]{1,20}(\\.[a-z]{1,3})?", "\\PC{0,60}", 0..4),
    ) {
        let definition = SkillDefinition {
            description: Some(description), category, prompt: Some(prompt), capabilities, scripts,
        };
        let Ok(definition) = definition.validate() else { return Ok(()) };
        // White space around a text is not kept.
        let [description, prompt] =
            [&definition.description, &definition.prompt].map(|text| text.as_deref().unwrap_or_default().trim().to_owned());
        prop_assume!(!description.is_empty() && !prompt.is_empty());
        let skill = custom(&name, definition.clone());
        let (folder, read) = read_back(&Skill::Custom(Box::new(skill)));
        prop_assert_eq!(&read.name, &name);
        prop_assert_eq!(&read.description, &description);
        prop_assert_eq!(&read.body, &prompt);
        let exported = Skill::Platform(read).into_contract(Timestamp::from_unix_ms(0)).unwrap();
        prop_assert_eq!(exported.category, definition.category);
        prop_assert_eq!(exported.capabilities, definition.capabilities);
        prop_assert_eq!(exported.scripts, definition.scripts);
        drop(folder);
    }
}
