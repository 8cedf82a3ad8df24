//! The commands of the tour and of the guides, run as they are: in a shell, against the real binary with the scripted
//! provider, with the outputs that the pages show.
//!
//! In a page, a block with the info string `sh run` is a command, and the block `text output` behind it is what it
//! prints; `…` there stands for anything. `sh run background` starts what goes on running, and `sh run setup` belongs to
//! the tour's first step, which the other pages build on.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use rustix::process::Signal;

use crate::support::test_env::BINARY;
use crate::support::{Fleet, Program, is_installed};

/// What a block of a page is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Background,
    Setup,
    Run,
}

/// A command of a page, and what the page says that it prints.
#[derive(Debug)]
struct Command {
    kind: Kind,
    text: String,
    output: Option<String>,
}

/// Reads the commands of a page.
fn commands(page: &str) -> Vec<Command> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(page);
    let text = fs::read_to_string(&path).unwrap();
    let mut found: Vec<Command> = Vec::new();
    for block in text.split("\n```").skip(1).step_by(2) {
        let (info, content) = block.split_once('\n').unwrap();
        let kind = match info {
            "sh run background" => Kind::Background,
            "sh run setup" => Kind::Setup,
            "sh run" => Kind::Run,
            "text output" => {
                let last = found.last_mut().expect("an output follows a command");
                assert!(
                    last.output.replace(content.to_owned()).is_none(),
                    "{page}: two outputs of {}",
                    last.text
                );
                continue;
            }
            other => {
                assert!(!other.contains("run") && !other.contains("output"), "{page}: `{other}`");
                continue;
            }
        };
        found.push(Command { kind, text: content.to_owned(), output: None });
    }
    found
}

/// Whether a text is as a page shows it: the pieces between `…`, in their order. Spaces and ends of lines are alike.
fn is_as_shown(text: &str, shown: &str) -> bool {
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let (text, shown) = (words(text), words(shown));
    let pieces: Vec<&str> = shown.split('…').map(str::trim).collect();
    let [first, middle @ .., last] = &pieces[..] else { return text == shown };
    let Some(mut rest) = text.strip_prefix(first).and_then(|rest| rest.strip_suffix(last)) else {
        return false;
    };
    for piece in middle {
        let Some(at) = rest.find(piece) else { return false };
        rest = &rest[at + piece.len()..];
    }
    true
}

/// A folder in which the commands of one page run, one after the other.
struct Session {
    fleet: Fleet,
    page: &'static str,
}

impl Session {
    fn new(page: &'static str) -> Self {
        let fleet = Fleet::new();
        let folder = fleet.test_env.path();
        fs::create_dir(folder.join("bin")).unwrap();
        symlink(BINARY, folder.join("bin/roundhouse")).unwrap();
        Self { fleet, page }
    }

    /// Starts the program that goes on running, and waits until it is up.
    async fn start(&self, command: &Command) -> Program {
        // In place of the shell, so that a signal reaches it.
        let line = in_folder(self.fleet.test_env.path(), &format!("exec env {}", command.text));
        let mut up = self.fleet.test_env.run_program(&["sh", "-c", &line], &self.fleet.variables);
        if let Err(exit) = up.wait_for_output("Ctrl-C").await {
            panic!("{}: {} ended: {}", self.page, command.text, exit.output);
        }
        up
    }

    /// Runs commands in one shell, and compares what they print with what the page shows.
    async fn run(&self, commands: &[&Command]) {
        let mut script = "set -eu\n".to_owned();
        for (number, command) in commands.iter().enumerate() {
            writeln!(script, "printf '\\n@@ {number} @@\\n'\n{}", command.text).unwrap();
        }
        let line = in_folder(self.fleet.test_env.path(), &script);
        let exit = self.fleet.test_env.run_program(&["bash", "-c", &line], &BTreeMap::new()).wait().await;
        let (page, output) = (self.page, exit.output);
        assert_eq!(exit.code, Some(0), "{page}: {output}");
        for (number, command) in commands.iter().enumerate() {
            let (_, printed) = output.split_once(&format!("\n@@ {number} @@\n")).unwrap();
            let printed = printed.split("\n@@ ").next().unwrap();
            if let Some(shown) = &command.output {
                let text = &command.text;
                assert!(is_as_shown(printed, shown), "{page}:\n{text}\nprinted\n{printed}\nand not\n{shown}");
            }
        }
    }
}

fn in_folder(folder: &Path, commands: &str) -> String {
    format!("cd '{0}'; export PATH=\"{0}/bin:$PATH\"; {commands}", folder.display())
}

/// Runs the commands of a page after the tour's first step, or after the page's own start of a fleet.
async fn assert_commands_work(page: &'static str, at_least: usize) {
    if !is_installed("curl") || !is_installed("bash") {
        return;
    }
    let (tour, own) = (commands("tour.md"), commands(page));
    assert!(own.len() >= at_least, "{page} has {} commands", own.len());
    let starts = |command: &&Command| command.kind == Kind::Background;
    let start = own.iter().find(starts).or(tour.iter().find(starts)).expect("the tour starts a fleet");
    let before = own.iter().position(|command| starts(&command)).unwrap_or_default();
    let (before, after) = own.split_at(before);

    let session = Session::new(page);
    session.run(&before.iter().collect::<Vec<_>>()).await;
    let up = session.start(start).await;
    let setup = tour.iter().filter(|command| command.kind == Kind::Setup);
    let after = after.iter().filter(|command| command.kind == Kind::Run);
    session.run(&setup.chain(after).collect::<Vec<_>>()).await;
    up.signal_and_wait(Signal::TERM).await.assert_success();
}

#[tokio::test]
async fn the_commands_of_the_tour_work() {
    assert_commands_work("tour.md", 8).await;
}

#[tokio::test]
async fn the_commands_of_the_guide_to_admits_work() {
    assert_commands_work("guide-admit.md", 4).await;
}

#[tokio::test]
async fn the_commands_of_the_guide_to_streams_work() {
    assert_commands_work("guide-stream.md", 4).await;
}

#[tokio::test]
async fn the_commands_of_the_guide_to_questions_work() {
    assert_commands_work("guide-human.md", 5).await;
}

#[tokio::test]
async fn the_commands_about_memory_work() {
    assert_commands_work("memory.md", 3).await;
}

#[tokio::test]
async fn the_commands_about_skills_work() {
    assert_commands_work("skills.md", 2).await;
}

#[tokio::test]
async fn the_commands_about_caps_work() {
    assert_commands_work("usage.md", 2).await;
}

#[tokio::test]
async fn the_commands_about_the_scripted_provider_work() {
    assert_commands_work("scripted-provider.md", 2).await;
}

#[test]
fn an_output_that_differs_is_noticed() {
    for (text, shown) in [
        ("a b c", "a b c"),
        ("a  b\nc\n", "a b c"),
        ("{\"x\":1,\"y\":2}", "{\"x\":…,\"y\":2}"),
        ("first\nmiddle\nlast", "first\n…\nlast"),
        ("first\nlast", "first…"),
        ("0 1 2", "…1…"),
    ] {
        assert!(is_as_shown(text, shown), "{text:?} {shown:?}");
    }
    for (text, shown) in [
        ("a b c", "a b"),
        ("a b c", "b c"),
        ("a b c", "a … d"),
        ("last first", "first … last"),
        ("0 1 2", "…1"),
        ("", "a"),
    ] {
        assert!(!is_as_shown(text, shown), "{text:?} {shown:?}");
    }
}
