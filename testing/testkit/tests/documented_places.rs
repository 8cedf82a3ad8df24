//! The documentation sends its readers to files, pages and names of the code. A move or a renaming must not
//! leave them behind.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The workspace's folder.
fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// All files of a folder and of those in it.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

/// The files of the source code, and every word that occurs in it.
struct SourceTree {
    files: Vec<PathBuf>,
    words: BTreeSet<String>,
}

impl SourceTree {
    fn read(workspace: &Path) -> Self {
        let mut files: Vec<PathBuf> = ["api", "crates", "testing", "catalog", "deploy"]
            .iter()
            .flat_map(|folder| files(&workspace.join(folder)))
            .collect();
        files.retain(|file| {
            !file.components().any(|part| part.as_os_str() == "target" || part.as_os_str() == "node_modules")
        });
        let mut words = BTreeSet::new();
        for file in &files {
            let path = file.strip_prefix(workspace).unwrap().with_extension("");
            words.extend(words_of(&path.to_string_lossy().replace('-', "_")));
            if file.extension().is_some_and(|extension| extension == "rs") {
                words.extend(words_of(&fs::read_to_string(file).unwrap()));
            }
        }
        Self { files, words }
    }

    /// Whether `code`, which a page shows as code, is not what it appears to be: the end of a file's path, or a
    /// path of names such as `module::Type`. Any other code is accepted.
    fn is_unknown(&self, code: &str) -> bool {
        let is_plain = |character: char| character.is_ascii_alphanumeric() || "_-./".contains(character);
        let stem = [".rs", ".py"].iter().find_map(|end| code.strip_suffix(end));
        if code.chars().all(is_plain) && stem.is_some_and(|stem| !stem.is_empty()) {
            return !self.files.iter().any(|file| file.ends_with(code));
        }
        let names: Vec<&str> = code.split("::").collect();
        let are_names = names.iter().all(|name| words_of(name).eq([(*name).to_owned()]));
        names.len() > 1 && are_names && names.iter().any(|name| !self.words.contains(*name))
    }
}

/// The words of a text, in the sense of identifiers.
fn words_of(text: &str) -> impl Iterator<Item = String> {
    let words = text.split(|character: char| !character.is_alphanumeric() && character != '_');
    words.filter(|word| !word.is_empty()).map(str::to_owned)
}

/// The pages that people read.
fn pages(workspace: &Path) -> Vec<PathBuf> {
    let mut pages = vec![workspace.join("README.md"), workspace.join("CONTRIBUTING.md")];
    for folder in ["docs", "deploy", "testing"] {
        pages.extend(files(&workspace.join(folder)));
    }
    pages.retain(|page| page.extension().is_some_and(|extension| extension == "md"));
    pages
}

/// The texts that a page shows as code within a line, without its blocks of code.
fn codes(page: &str) -> impl Iterator<Item = &str> {
    let prose = page.split("```").step_by(2);
    prose.flat_map(str::lines).flat_map(|line| line.split('`').skip(1).step_by(2))
}

/// The files to which a page links.
fn links(page: &str) -> impl Iterator<Item = &str> {
    let targets = page.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next());
    targets.filter(|target| !target.is_empty() && !target.contains("://"))
}

#[test]
fn the_documentation_names_files_and_code_that_are_there() {
    let workspace = workspace();
    let source = SourceTree::read(&workspace);
    let (mut faults, mut checked) = (Vec::new(), 0);
    for page in pages(&workspace) {
        let (text, name) = (fs::read_to_string(&page).unwrap(), page.strip_prefix(&workspace).unwrap());
        let folder = page.parent().unwrap();
        for link in links(&text).filter(|link| !folder.join(link).exists()) {
            faults.push(format!("{}: no file {link}", name.display()));
        }
        for code in codes(&text) {
            checked += 1;
            if source.is_unknown(code) {
                faults.push(format!("{}: `{code}` is not in the source", name.display()));
            }
        }
    }
    assert!(checked > 1_000, "{checked} pieces of code");
    assert!(faults.is_empty(), "{faults:#?}");
}

/// The functions and constants of a trait that have a default: the compiler does not ask for them.
fn defaults_of_trait<'a>(source: &'a str, name: &str) -> Vec<&'a str> {
    let (_, rest) = source.split_once(&format!("trait {name}: ")).unwrap();
    let (body, _) = rest.split_once("\n}\n").unwrap();
    let mut defaults = Vec::new();
    let mut open = None;
    for line in body.lines() {
        let declared = line.strip_prefix("    fn ").or_else(|| line.strip_prefix("    const "));
        open = declared.and_then(|line| line.split(['(', '<', ':']).next()).or(open);
        let is_declaration = line.starts_with("    fn ") || line.starts_with("    )");
        if (is_declaration && line.ends_with('{')) || (line.starts_with("    const ") && line.contains(" = "))
        {
            defaults.extend(open);
        }
    }
    defaults
}

#[test]
fn a_checklist_names_what_a_new_part_may_leave_out() {
    let workspace = workspace();
    let read = |path: &str| fs::read_to_string(workspace.join(path)).unwrap();
    let mut faults = Vec::new();
    for (page, source, name) in [
        ("docs/adding-a-tool.md", "crates/tools/src/lib.rs", "Tool"),
        ("docs/adding-a-provider.md", "crates/llm/src/lib.rs", "ChatModel"),
        ("docs/adding-a-provider.md", "crates/llm/src/http.rs", "Decoder"),
        ("docs/adding-a-provider.md", "testing/mock-llm/src/protocol.rs", "Protocol"),
    ] {
        let (text, source) = (read(page), read(source));
        let named: Vec<&str> = codes(&text).collect();
        let defaults = defaults_of_trait(&source, name);
        assert!(!defaults.is_empty(), "{name}");
        let missing = defaults.iter().filter(|default| !named.contains(default));
        faults.extend(
            missing.map(|default| format!("{page}: no `{default}`, which `{name}` has a default for")),
        );
    }
    assert!(faults.is_empty(), "{faults:#?}");
}

#[test]
fn a_checklist_fits_on_a_page() {
    const MAX_LINES: usize = 30;
    for page in files(&workspace().join("docs")) {
        let name = page.file_name().unwrap().to_string_lossy();
        let lines = fs::read_to_string(&page).unwrap_or_default().lines().count();
        assert!(
            !name.starts_with("adding-") || lines <= MAX_LINES,
            "docs/{name}: {lines} lines of {MAX_LINES}"
        );
    }
}

#[test]
fn a_place_that_is_not_there_is_found() {
    let source = SourceTree::read(&workspace());
    for known in
        ["testkit/src/lib.rs", "lib.rs", "testkit::with_deadline", "cargo test", "GET /health", ".py"]
    {
        assert!(!source.is_unknown(known), "{known}");
    }
    // In two parts, because the words of this file are known as well.
    let no_name = ["testkit::no", "where_to_be_found"].concat();
    for lost in ["nowhere.rs", "estkit/src/lib.rs", no_name.as_str()] {
        assert!(source.is_unknown(lost), "{lost}");
    }
    let page =
        "`a` and `b::c`\n```\n`d`\n```\n[a page](x/y.md#part), [a site](https://example.com), [here](#part)";
    assert_eq!(codes(page).collect::<Vec<_>>(), ["a", "b::c"]);
    assert_eq!(links(page).collect::<Vec<_>>(), ["x/y.md"]);
}
