//! The commands that a person types at the prompt: lines that begin with a slash.

use std::fmt::Write as _;

use api::TaskId;

/// A command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Command {
    Help,
    /// Begins a conversation, with this name if there is one.
    New(Option<TaskId>),
    /// Lists the conversations.
    Tasks,
    /// Opens a conversation.
    Open(TaskId),
    /// Replaces the last message, by this text or by what is written next.
    Edit(Option<String>),
    /// Answers the last message again.
    Retry,
    /// Shows what is remembered, or searches it.
    Memory(Option<String>),
    /// Shows the models, or chooses one for the messages to come.
    Model(Option<String>),
    /// Lists a folder of the workspace.
    Files(Option<String>),
    Quit,
}

/// A line that was typed at the prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Typed {
    Message(String),
    Command(Command),
    /// It looks like a command, but is none. The text is for the person.
    Mistake(String),
}

/// The names and what the help says of them.
const COMMANDS: [(&str, &str, &str); 9] = [
    ("/help", "", "this list"),
    ("/new", "[NAME]", "begin a conversation"),
    ("/tasks", "[NAME]", "list the conversations, or open one"),
    ("/edit", "[TEXT]", "write your last message again"),
    ("/retry", "", "answer your last message again"),
    ("/memory", "[WORDS]", "what the agent remembers, or a search in it"),
    ("/model", "[NAME]", "the models, or the one to use from now on"),
    ("/files", "[FOLDER]", "list the files of the workspace"),
    ("/quit", "", "leave; a turn that runs goes on"),
];

/// Parses a line. A second slash makes it a message that begins with one.
pub(super) fn parse(line: &str) -> Typed {
    let Some(command) = line.strip_prefix('/') else { return Typed::Message(line.to_owned()) };
    if command.starts_with('/') {
        return Typed::Message(command.to_owned());
    }
    let (name, argument) = command.split_once(char::is_whitespace).unwrap_or((command, ""));
    let argument = Some(argument.trim()).filter(|argument| !argument.is_empty());
    let text = argument.map(str::to_owned);
    let task = || argument.map(|name| TaskId::new(name.to_owned())).transpose();
    let none = |command| match argument {
        None => Typed::Command(command),
        Some(_) => Typed::Mistake(format!("/{name} takes nothing after it.")),
    };
    let with_task = |make: fn(Option<TaskId>) -> Command| match task() {
        Ok(task) => Typed::Command(make(task)),
        Err(error) => Typed::Mistake(format!("This cannot be the name of a conversation: {error}.")),
    };
    match name {
        "help" | "?" => none(Command::Help),
        "new" => with_task(Command::New),
        "tasks" => with_task(|task| task.map_or(Command::Tasks, Command::Open)),
        "edit" => Typed::Command(Command::Edit(text)),
        "retry" => none(Command::Retry),
        "memory" => Typed::Command(Command::Memory(text)),
        "model" => Typed::Command(Command::Model(text)),
        "files" => Typed::Command(Command::Files(text)),
        "quit" | "exit" => none(Command::Quit),
        _ => Typed::Mistake(unknown(name)),
    }
}

fn unknown(name: &str) -> String {
    let names: Vec<&str> = COMMANDS.iter().map(|(name, ..)| *name).collect();
    format!(
        "There is no command /{name}. There are {}. To send a message that begins with /, write // in front.",
        names.join(", ")
    )
}

/// The width from which on what a command or a key does fits beside it.
const MIN_COLUMNS_FOR_TABLE: usize = 70;

/// The commands and keys, for the person, on a terminal of this width.
pub(super) fn help(has_editor: bool, columns: usize) -> String {
    let keys: &[(&str, &str)] = if has_editor {
        &[
            ("Enter", "send"),
            ("Alt-Enter, Ctrl-J", "another line; so does \\ at the end of one"),
            ("Up, Down", "earlier messages"),
            ("Ctrl-C", "cancel the turn; twice leaves"),
            ("Ctrl-D", "leave; a turn that runs goes on"),
        ]
    } else {
        &[
            ("\\ at the end", "another line"),
            ("Ctrl-C", "cancel the turn; twice leaves"),
            ("Ctrl-D", "leave; a turn that runs goes on"),
        ]
    };
    let mut help = String::new();
    let commands = COMMANDS.iter().map(|(name, argument, does)| (format!("{name} {argument}"), *does));
    for (name, does) in commands.chain(keys.iter().map(|(key, does)| ((*key).to_owned(), *does))) {
        // Writing to a `String` cannot fail.
        let _ = if columns < MIN_COLUMNS_FOR_TABLE {
            writeln!(help, "{}: {does}", name.trim_end())
        } else {
            writeln!(help, "{name:<20}{does}")
        };
    }
    help.push_str("Lines with | in front are what the model thinks before it answers.");
    help
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lines_with_a_slash_are_commands() {
        let text = |text: &str| Some(text.to_owned());
        let task = |name: &str| TaskId::new(name.to_owned()).unwrap();
        for (line, command) in [
            ("/help", Command::Help),
            ("/new", Command::New(None)),
            ("/new  a b ", Command::New(Some(task("a b")))),
            ("/tasks", Command::Tasks),
            ("/tasks trip", Command::Open(task("trip"))),
            ("/edit", Command::Edit(None)),
            ("/edit two\nlines", Command::Edit(text("two\nlines"))),
            ("/retry ", Command::Retry),
            ("/memory", Command::Memory(None)),
            ("/memory green tea", Command::Memory(text("green tea"))),
            ("/model fast", Command::Model(text("fast"))),
            ("/files a/b", Command::Files(text("a/b"))),
            ("/quit", Command::Quit),
            ("/exit", Command::Quit),
        ] {
            assert_eq!(parse(line), Typed::Command(command), "{line}");
        }
        for (line, message) in [("hello /help", "hello /help"), ("//etc/hosts", "/etc/hosts"), (" /x", " /x")]
        {
            assert_eq!(parse(line), Typed::Message(message.into()));
        }
    }

    #[test]
    fn an_unknown_command_says_which_there_are() {
        for line in ["/hlep", "/", "/Help", "/etc/hosts is what?"] {
            let Typed::Mistake(text) = parse(line) else { panic!("{line}") };
            for (name, ..) in COMMANDS {
                assert!(text.contains(name), "{text}");
            }
            assert!(text.contains("//"), "{text}");
        }
        assert!(matches!(parse("/quit now"), Typed::Mistake(_)));
        let Typed::Mistake(text) = parse(&format!("/new {}", "x".repeat(10_000))) else { panic!() };
        assert!(text.contains("name of a conversation"), "{text}");
    }

    #[test]
    fn every_command_is_in_the_help_and_the_help_fits() {
        for (has_editor, columns) in [(true, 80), (false, 80), (true, 40), (false, 40)] {
            let help = help(has_editor, columns);
            assert!(COMMANDS.iter().all(|(name, ..)| help.contains(name)));
            assert!(help.lines().all(|line| line.len() < 70), "{help}");
            assert_eq!(help.contains("\n/new [NAME]: begin a conversation\n"), columns < 70, "{help}");
        }
        assert!(COMMANDS.iter().all(|(name, ..)| matches!(parse(name), Typed::Command(_))));
    }

    proptest! {
        #[test]
        fn every_message_can_be_sent(text in "\\PC{0,20}") {
            let line = if text.starts_with('/') { format!("/{text}") } else { text.clone() };
            prop_assert_eq!(parse(&line), Typed::Message(text));
        }
    }
}
