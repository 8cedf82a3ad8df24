//! Tests of loading skills: which are loaded, with which warnings, and which are left out.

use proptest::prelude::*;

use super::*;

struct SkillsFixture(tempfile::TempDir);

impl SkillsFixture {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn write_file(&self, path: &str, text: impl AsRef<[u8]>) {
        let path = self.0.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn load(&self) -> (Vec<Arc<SkillSpec>>, Vec<String>) {
        let mut warnings = Vec::new();
        (load(self.0.path(), &[], &mut warnings), warnings)
    }
}

#[test]
fn a_skill_is_read_with_its_files() {
    let folder = SkillsFixture::new();
    folder.write_file(
        "pdf-forms/SKILL.md",
        "---\nname: pdf-forms\ndescription: >\n  Fills in forms.\n  Use it for PDF.\nlicense: MIT\n\
         compatibility: Needs python3\nmetadata:\n  author: Ada\n  version: 1.0\n  beta: true\n\
         allowed-tools: read_file shell\n---\n# Forms\n\nDo this.\n",
    );
    folder.write_file("pdf-forms/scripts/fill.py", "print(1)");
    folder.write_file("pdf-forms/scripts/lib/a.py", "");
    folder.write_file("pdf-forms/references/REFERENCE.md", "More.");
    folder.write_file("note.txt", "no skill");
    let (skills, warnings) = folder.load();
    assert_eq!(warnings, [""; 0]);
    let [skill] = skills.as_slice() else { panic!("{skills:?}") };
    assert_eq!(skill.name, "pdf-forms");
    assert_eq!(skill.description, "Fills in forms. Use it for PDF.");
    assert_eq!(
        (skill.license.as_deref(), skill.compatibility.as_deref()),
        (Some("MIT"), Some("Needs python3"))
    );
    let metadata: Vec<_> = skill.metadata.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
    assert_eq!((metadata[0], metadata[1], metadata[2].0), (("author", "Ada"), ("beta", "true"), "version"));
    assert_eq!(skill.allowed_tools, ["read_file", "shell"]);
    assert_eq!(skill.body, "# Forms\n\nDo this.");
    assert_eq!(skill.folder, folder.0.path().join("pdf-forms"));
    assert_eq!(skill.files, ["references/REFERENCE.md", "scripts/fill.py", "scripts/lib/a.py"]);
}

#[test]
fn what_is_odd_is_named_and_the_skill_taken() {
    let folder = SkillsFixture::new();
    folder.write_file(
        "a/SKILL.md",
        "---\nname: other\ndescription: x\nallowed-tools: [a, b]\nunknown: 1\n---\nDo.",
    );
    folder.write_file("b/SKILL.md", format!("---\ndescription: {}\n---\nDo.", "ü".repeat(1_025)));
    std::os::unix::fs::symlink("/etc", folder.0.path().join("b/scripts")).unwrap();
    let (skills, warnings) = folder.load();
    let names: Vec<_> = skills.iter().map(|skill| skill.name.as_str()).collect();
    assert_eq!(names, ["a", "b"]);
    assert_eq!(skills[0].allowed_tools, ["a", "b"]);
    assert_eq!((skills[1].description.chars().count(), skills[1].files.len()), (1_024, 0));
    assert_eq!(
        warnings,
        [
            "skills/a: its `name` is not that of its folder; it is called `a`",
            "skills/b: it has no `name`; it is called `b`",
            "skills/b: its `description` is over 1024 characters; the rest is left out",
            "skills/b: `scripts` in its folder is left out",
        ]
    );
}

#[test]
fn a_faulty_skill_is_left_out_and_named() {
    let folder = SkillsFixture::new();
    let valid = "---\nname: whole\ndescription: x\n---\nDo.";
    folder.write_file("whole/SKILL.md", valid);
    folder.write_file("Loud/SKILL.md", valid);
    folder.write_file("empty/README.md", "");
    folder.write_file("no-body/SKILL.md", "---\nname: no-body\ndescription: x\n---\n");
    folder.write_file("no-description/SKILL.md", "---\nname: no-description\n---\nDo.");
    folder.write_file("no-front/SKILL.md", "Do.");
    folder.write_file("no-text/SKILL.md", b"---\nname: no-text\ndescription: \xff\n---\nDo.");
    folder.write_file("large/SKILL.md", format!("{valid}{}", " ".repeat(300_000)));
    folder.write_file("list/SKILL.md", "---\n- a\n---\nDo.");
    let (skills, warnings) = folder.load();
    assert_eq!(skills.len(), 1);
    let named: Vec<_> = warnings.iter().map(|warning| warning.split(':').next().unwrap()).collect();
    let invalid_field =
        ["Loud", "empty", "large", "list", "no-body", "no-description", "no-front", "no-text"];
    assert_eq!(named, invalid_field.map(|name| format!("skills/{name}")));
}

#[test]
fn a_folder_without_end_is_bounded() {
    let folder = SkillsFixture::new();
    folder.write_file("many/SKILL.md", "---\nname: many\ndescription: x\n---\nDo.");
    for number in 0..600 {
        folder.write_file(&format!("many/references/{number}.md"), "");
    }
    folder.write_file("deep/SKILL.md", "---\nname: deep\ndescription: x\n---\nDo.");
    folder.write_file(&format!("deep/{}a", "d/".repeat(20)), "");
    let (skills, warnings) = folder.load();
    assert_eq!((skills[0].files.len(), skills[1].files.len()), (0, MAX_FILES + 1));
    assert_eq!(warnings.len(), 2, "{warnings:?}");
}

proptest! {
    #[test]
    fn any_text_is_a_skill_or_a_reason(front in "[a-z:\\- \\[\\]{}&*!|>'\"#\n]{0,80}", body in any::<String>()) {
        let mut problems = Vec::new();
        for text in [body.clone(), format!("---\n{front}\n---\n{body}"), format!("---\ndescription: x\n{front}\n---\n{body}")] {
            if let Ok(skill) = parse("a", &text, &mut problems) {
                prop_assert!(!skill.description.is_empty() && !skill.body.is_empty());
            }
        }
    }
}
