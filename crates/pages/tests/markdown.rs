//! How Markdown becomes HTML, on texts that no page has.

#[expect(dead_code, reason = "the build uses all of it")]
#[path = "../build/markdown.rs"]
mod markdown;

use markdown::{Target, render, sections};
use pretty_assertions::assert_eq;

fn html(text: &str) -> String {
    let resolve = |link: &str| match link {
        "gone.md" => Err("there is no gone.md".to_owned()),
        "source.rs" => Ok(Target::File("a/\"source\".rs".to_owned())),
        _ => Ok(Target::Address(link.replace(".md", ""))),
    };
    render(text, &sections(text), resolve).unwrap_or_else(|why| why)
}

#[test]
fn html_of_a_text_stays_text() {
    let page =
        html("<script>alert(1)</script>\n\na <img src=x onerror=alert(1)> b\n\n`<b>`\n\n```\n<i>\n```\n");
    for active in ["<script", "<img", "<b>", "<i>"] {
        assert!(!page.contains(active), "{page}");
    }
    assert!(page.contains("&lt;script&gt;") && page.contains("&lt;b&gt;") && page.contains("&lt;i&gt;"));
}

#[test]
fn headings_are_named_as_forges_name_them() {
    let text = "# Title\nbefore\n## `GET /a/{b}` & _c_!\nunder\n## Über 10 %\n## Same\n### Same\n";
    let found = sections(text);
    let names: Vec<&str> = found.iter().map(|section| section.id.as_str()).collect();
    assert_eq!(names, ["title", "get-ab--c", "über-10-", "same", "same-1"]);
    assert_eq!((found[1].title.as_str(), found[1].text.trim()), ("GET /a/{b} & c!", "under"));
    assert!(html(text).contains("<h3 id=\"same-1\">Same</h3>"));
}

#[test]
fn links_lead_to_pages_files_are_named_and_others_are_faults() {
    assert!(html("[a](page.md#x)").contains("<a href=\"page#x\">a</a>"));
    assert!(
        html("[a *b*](source.rs)")
            .contains("<span class=\"file\" title=\"a/&quot;source&quot;.rs\">a <em>b</em></span>")
    );
    assert_eq!(html("[a](gone.md)"), "there is no gone.md");
}

#[test]
fn tables_have_no_styles_and_examples_no_marks() {
    let page = html("| a | b |\n|--:|:-:|\n| 1 | 2 |\n\n```sh run\nls\n```\n");
    assert!(page.contains("<div class=\"table\">") && !page.contains("style"), "{page}");
    assert!(page.contains("<code class=\"language-sh\">ls"), "{page}");
}
