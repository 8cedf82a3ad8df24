use std::fs;

use super::read_all;

/// Returns the names of the mutants that these files define, or what is wrong with them.
fn names(files: &[(&str, &str)]) -> Result<Vec<String>, String> {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        fs::write(folder.path().join(name), text).unwrap();
    }
    let mutants = read_all(folder.path()).map_err(|error| format!("{error:#}"))?;
    Ok(mutants.into_iter().map(|mutant| mutant.name).collect())
}

const SKIP_INTENT: &str = "
[[mutant]]
name = \"skip_intent\"
breaks = \"Runs a tool without recording the intent.\"

[[mutant.edit]]
file = \"crates/engine/src/agent/tool_calls.rs\"
find = '''if is_known {'''
replace = '''if is_known || mutants::active(\"skip_intent\") || mutants::active(\"rerun_tool\") {'''
";
const RERUN_TOOL: &str = "[[mutant]]\nname = \"rerun_tool\"\nbreaks = \"Runs a tool again.\"";

#[test]
fn all_files_but_the_manifest_are_read() {
    assert_eq!(names(&[]).unwrap(), [""; 0]);
    assert_eq!(names(&[("Cargo.toml", "[package]"), ("a.toml", ""), ("b.md", "")]).unwrap(), [""; 0]);
    let two = format!("{SKIP_INTENT}{RERUN_TOOL}");
    assert_eq!(names(&[("a.toml", &two)]).unwrap(), ["skip_intent", "rerun_tool"]);
}

#[test]
fn a_mutant_has_a_name_of_its_own_that_an_edit_uses() {
    let problem = |text: &str| names(&[("a.toml", text), ("b.toml", SKIP_INTENT)]).unwrap_err();
    assert!(problem(SKIP_INTENT).contains("skip_intent: there are two"));
    assert!(problem(&RERUN_TOOL.replace("rerun_tool", "RerunTool")).contains("snake case"));
    assert!(problem(&RERUN_TOOL.replace("rerun_tool", "unused")).contains("unused: no edit"));
    assert!(problem(&RERUN_TOOL.replace("Runs a tool again.", " ")).contains("rerun_tool: `breaks`"));
    assert!(problem("[[mutants]]").contains("a.toml is not valid"));
}
