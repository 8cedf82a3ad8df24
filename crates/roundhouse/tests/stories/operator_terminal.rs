//! The commands on a terminal: tables of any width, colours, watching, questions, interrupts; and in pipes.

use std::collections::BTreeMap;

use crate::support::test_env::BINARY;
use crate::support::{Fleet, Terminal, processes};
use rustix::process::Signal;
use unicode_width::UnicodeWidthStr as _;

/// Starts a command against a fleet in a terminal.
fn open(fleet: &Fleet, words: &[&str], columns: u16, variables: &[(&str, &str)]) -> Terminal {
    let line = [&[BINARY], words, &["--dir", fleet.folder().to_str().unwrap()]].concat();
    let variables: BTreeMap<String, String> =
        variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    Terminal::start(&fleet.test_env, &line, &variables, columns)
}

#[tokio::test]
async fn tables_fit_the_terminal_and_have_colours_if_they_may() {
    let fleet = Fleet::new();
    let up = fleet.start_up().await;
    let user = "a user with a rather long name: 日本\u{202e}";
    up.product().engine(user).await;
    for (columns, words) in [
        (80, &["engine", "list"][..]),
        (40, &["engine", "list"]),
        (40, &["audit", "list"]),
        (80, &["audit", "list"]),
        (40, &["product", "list"]),
        (40, &["status"]),
        (40, &["metrics"]),
        (40, &["engine", "get", user]),
        (40, &["engine", "explain", user]),
    ] {
        let mut terminal = open(&fleet, words, columns, &[("NO_COLOR", "1")]);
        assert!(terminal.wait_for_exit().await.success(), "{words:?}");
        let raw = terminal.raw();
        assert!(!raw.contains('\u{1b}') && !raw.contains('\u{202e}'), "{raw:?}");
        for line in raw.lines() {
            assert!(line.trim_end().width() <= usize::from(columns), "{words:?} in {columns}: {line:?}");
        }
    }
    let mut coloured = open(&fleet, &["engine", "list"], 120, &[]);
    assert!(coloured.wait_for_exit().await.success());
    assert!(coloured.raw().contains("\u{1b}[32mrunning\u{1b}[0m"), "{}", coloured.raw());
    // Each value on a line of its own, where there is no room for a table.
    let mut narrow = open(&fleet, &["engine", "list"], 40, &[("TERM", "dumb")]);
    assert!(narrow.wait_for_exit().await.success());
    let rows = narrow.rows();
    assert!(rows.iter().any(|row| row == "STATUS   running"), "{rows:#?}");
    assert!(!narrow.raw().contains('\u{1b}'), "{}", narrow.raw());
}

#[tokio::test]
async fn watching_draws_in_place_and_ctrl_c_gives_the_terminal_back() {
    let fleet = Fleet::new();
    let up = fleet.start_up().await;
    let mut terminal = open(&fleet, &["engine", "list", "--watch", "0.1"], 80, &[]);
    terminal.wait_for("There is no engine").await;
    up.product().engine("ada").await;
    terminal.wait_for("running").await;
    terminal.send("\x03");
    let status = terminal.wait_for_exit().await;
    assert_eq!(status.code(), Some(130));
    let raw = terminal.raw();
    assert!(
        raw.starts_with("\u{1b}[?1049h\u{1b}[?25l") && raw.ends_with("\u{1b}[?25h\u{1b}[?1049l"),
        "{raw:?}"
    );
}

#[tokio::test]
async fn destroying_asks_for_the_users_id() {
    let fleet = Fleet::new();
    let up = fleet.start_up().await;
    let product = up.product();
    product.engine("ada").await;
    let mut terminal = open(&fleet, &["engine", "destroy", "ada"], 80, &[]);
    terminal.wait_for("Type `ada` to go on:").await;
    terminal.enter("bob");
    assert_eq!(terminal.wait_for_exit().await.code(), Some(4));
    let mut terminal = open(&fleet, &["engine", "destroy", "ada"], 40, &[]);
    terminal.wait_for("to go on:").await;
    terminal.send("\x03");
    assert_eq!(terminal.wait_for_exit().await.code(), Some(130));
    assert_eq!(product.status("ada").await, "running");
    let mut terminal = open(&fleet, &["engine", "destroy", "ada"], 80, &[]);
    terminal.wait_for("to go on:").await;
    terminal.enter("ada");
    assert!(terminal.wait_for_exit().await.success());
    product.get("ada").await.assert_error(404, "ENGINE_NOT_FOUND");
}

#[tokio::test]
async fn a_reader_that_leaves_and_a_language_make_no_difference() {
    let fleet = Fleet::new();
    let up = fleet.start_up().await;
    up.product().engine("ada").await;
    let dir = fleet.folder().display();
    let line = format!("{{ {BINARY} status --json --watch 0.1 --dir {dir}; echo code $? >&2; }} | head -n 2");
    let output = fleet.test_env.run_shell(&line).wait().await.assert_success();
    assert_eq!(output.matches("by_status").count(), 2, "{output}");
    assert!(output.ends_with("code 0\n"), "{output}");

    let run = async |variables: &[(&str, &str)]| {
        let variables =
            variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let line = ["engine", "get", "ada", "--json", "--dir", fleet.folder().to_str().unwrap()];
        fleet.test_env.run(&line, &variables).wait().await.assert_success()
    };
    let without_health = |output: String| output.split("last_health_at").next().unwrap().to_owned();
    let plain = without_health(run(&[]).await);
    for locale in ["de_DE.UTF-8", "tr_TR.UTF-8", "C", "ja_JP.eucJP"] {
        assert_eq!(without_health(run(&[("LC_ALL", locale), ("LANG", locale)]).await), plain, "{locale}");
    }
    let mut watching = fleet
        .test_env
        .run(&["status", "--watch", "60", "--dir", fleet.folder().to_str().unwrap()], &[].into());
    watching.wait_for_output("running").await.unwrap();
    processes::signal(watching.pid(), Signal::INT);
    let ended = watching.wait().await.assert_failure(130, &[]);
    assert!(!ended.contains('\u{1b}'), "{ended:?}");
}
