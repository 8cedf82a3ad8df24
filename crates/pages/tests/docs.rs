//! The documentation: which pages it has, and what its search finds.

#![expect(clippy::unwrap_used, reason = "tests fail as tests do")]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use pages::DOCS;
use pretty_assertions::assert_eq;
use serde_json::Value;

fn workspace() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn asset(path: &str) -> String {
    String::from_utf8(DOCS.asset(path).unwrap().content().unwrap()).unwrap()
}

fn page(name: &str) -> String {
    String::from_utf8(DOCS.page(name).unwrap().content().unwrap()).unwrap()
}

/// The Markdown files of a folder.
fn files(folder: &str) -> BTreeSet<String> {
    let names = fs::read_dir(workspace().join(folder)).unwrap().map(|entry| entry.unwrap().file_name());
    let names = names.map(|name| name.into_string().unwrap());
    names.filter_map(|name| name.strip_suffix(".md").map(str::to_owned)).collect()
}

#[test]
fn each_page_of_the_repository_is_in_one_part() {
    let pages: Vec<&str> = DOCS.pages.iter().map(|page| page.path).collect();
    let mut expected = files("docs");
    // The page at `/docs`.
    expected.remove("README");
    expected.extend(files("docs/decisions"));
    let others = ["api", "bench", "changelog", "chaos", "contributing", "deploying", "readme", "security"];
    expected.extend(others.map(str::to_owned));
    assert_eq!(
        pages,
        expected.iter().collect::<Vec<_>>(),
        "crates/pages/build/contents.rs lists the pages of each part"
    );
}

#[test]
fn a_page_names_where_it_is_and_its_neighbours() {
    let page = page("memory");
    assert!(page.contains("<title>Memory and its search · Roundhouse</title>"));
    assert_eq!(page.matches("aria-current=\"page\"").count(), 1);
    assert!(page.contains("<a href=\"memory\" aria-current=\"page\">Memory</a>"));
    assert!(page.contains("rel=\"prev\"") && page.contains("rel=\"next\""));
    assert_eq!(page.matches("<h1").count(), 1);
}

#[test]
fn pages_need_no_script_to_be_read() {
    for page in DOCS.pages.iter().chain([&DOCS.index]) {
        let text = String::from_utf8(page.content().unwrap()).unwrap();
        let article = text.split("<article>").nth(1).unwrap().split("</article>").next().unwrap();
        assert!(article.len() > 400, "{} has {} bytes of text", page.path, article.len());
        assert!(!article.contains("<script"), "{}", page.path);
    }
}

#[test]
fn every_operation_of_both_documents_is_listed_without_a_script() {
    let page = page("api");
    let mut listed = 0;
    for service in ["orchestrator", "engine"] {
        let document: Value = serde_json::from_str(&asset(&format!("openapi/{service}.json"))).unwrap();
        for (path, item) in document["paths"].as_object().unwrap() {
            for (method, operation) in item.as_object().unwrap() {
                let id = operation["operationId"].as_str().unwrap();
                let line = format!(
                    "<li id=\"{service}/{id}\"><a href=\"#{service}/{id}\"><code>{} {path}</code></a>",
                    method.to_uppercase()
                );
                assert!(page.contains(&line), "{line}");
                listed += 1;
            }
        }
    }
    assert_eq!(page.matches("<li id=\"").count(), listed);
}

#[test]
fn the_search_has_every_page_and_every_section() {
    let index: Value = serde_json::from_str(&asset("search.json")).unwrap();
    let pages = index["pages"].as_array().unwrap();
    assert_eq!(pages.len(), DOCS.pages.len() + 1);
    let mut sections = 0;
    for section in index["sections"].as_array().unwrap() {
        let number = usize::try_from(section[0].as_u64().unwrap()).unwrap();
        let name = pages[number][0].as_str().unwrap();
        let text = if name.is_empty() { DOCS.index.content() } else { DOCS.page(name).unwrap().content() };
        let id = format!("id=\"{}\"", section[1].as_str().unwrap());
        assert!(String::from_utf8(text.unwrap()).unwrap().contains(&id), "{name}: {id}");
        sections += 1;
    }
    assert!(sections > 900, "{sections}");
}
