//! The scope of a person's `always`. Pure.
//!
//! For most tools it covers the tool. For a tool that runs commands it covers commands with the same beginning as
//! the one that the person saw, and only if the beginning determines which program will run: not through shell
//! syntax, and not for programs that are known to run others. What a program does with its remaining arguments is
//! its own affair: whoever allows `git grep` trusts git with its options.

/// Characters that make a prefix meaningless, because a shell would read several commands or an expansion.
const SHELL_SYNTAX: [char; 10] = [';', '&', '|', '<', '>', '$', '`', '(', ')', '\\'];
/// Programs that run what their arguments name.
const COMMAND_RUNNERS: [&str; 45] = [
    "builtin",
    "bunx",
    "chroot",
    "chrt",
    "coproc",
    "deno",
    "docker",
    "make",
    "ninja",
    "npx",
    "podman",
    "pnpx",
    "ssh",
    "setarch",
    "systemd-run",
    "taskset",
    "unshare",
    "watch",
    "ash",
    "bash",
    "busybox",
    "command",
    "dash",
    "doas",
    "env",
    "eval",
    "exec",
    "find",
    "flock",
    "ionice",
    "ksh",
    "nice",
    "nohup",
    "parallel",
    "setsid",
    "sh",
    "source",
    "stdbuf",
    "strace",
    "su",
    "sudo",
    "time",
    "timeout",
    "xargs",
    "zsh",
];

/// Subcommands with which a program runs what its arguments name.
const RUN_SUBCOMMANDS: [&str; 6] = ["run", "exec", "x", "dlx", "eval", "shell"];

/// Splits a command into words as a shell does if nothing is quoted.
fn words(command: &str) -> impl Iterator<Item = &str> {
    command.split([' ', '\t']).filter(|word| !word.is_empty())
}

/// Returns the text to store with a grant for `command`: its first two words if they determine what will run, else
/// all of it.
pub fn prefix_of(command: &str) -> &str {
    let command = command.trim();
    let second = words(command).nth(1);
    match second.filter(|_| has_plain_prefix(command)) {
        // Both are slices of the command.
        Some(second) => {
            let start = words(command).next().map_or(0, str::len);
            let gap = command.get(start..).and_then(|rest| rest.find(second)).unwrap_or(0);
            command.get(..start + gap + second.len()).unwrap_or(command)
        }
        None => command,
    }
}

/// Whether a grant with `prefix` covers `command`.
pub(super) fn covers(prefix: &str, command: &str) -> bool {
    let command = command.trim();
    if command == prefix {
        return true;
    }
    let count = words(prefix).count();
    let extends = || words(command).take(count).eq(words(prefix));
    has_plain_prefix(prefix)
        // Words after the second one come from a person.
        && words(prefix).all(is_plain)
        && has_plain_prefix(command)
        && extends()
}

/// Returns the description of what a person's `always` would cover.
pub fn describe_scope(command: &str) -> String {
    let prefix = prefix_of(command);
    let covered = super::approval::excerpt(prefix, "", 200);
    if has_plain_prefix(prefix) {
        format!("`always` would allow all commands that begin with `{covered}`.")
    } else {
        "`always` would allow exactly this command.".to_owned()
    }
}

/// Whether a shell reads a word as it is written.
fn is_plain(word: &str) -> bool {
    !word.contains(['"', '\'', '*', '?', '[', '{', '~', '#', '!'])
}

/// Whether the first two words of a command determine what will run: a program and a subcommand.
fn has_plain_prefix(command: &str) -> bool {
    let mut both = words(command);
    let (Some(program), Some(second)) = (both.next(), both.next()) else { return false };
    let name = program.rsplit('/').next().unwrap_or(program);
    // Other white space does not separate words in a shell, but looks as if it did.
    let blank = |character: char| character.is_whitespace() && character != ' ' && character != '\t';
    !command.contains(SHELL_SYNTAX)
        && !command.contains(blank)
        // An assignment before the program changes its behavior.
        && !program.contains('=')
        && is_plain(program)
        && is_plain(second)
        && !second.starts_with('-')
        && !RUN_SUBCOMMANDS.contains(&second)
        && !COMMAND_RUNNERS.contains(&name)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn two_plain_words_cover_what_begins_with_them() {
        assert_eq!(prefix_of("  git  status -s "), "git  status");
        assert_eq!(prefix_of("git commit -m 'it works'"), "git commit");
        for covered in ["git status", "git  status", "git status -s", " git status --long \"a b\""] {
            assert!(covers("git status", covered), "{covered}");
        }
        for other in
            ["git", "git push", "git statuses", "gitstatus", "git 'status'", "GIT status", "./git status"]
        {
            assert!(!covers("git status", other), "{other}");
        }
    }

    #[test]
    fn nothing_rides_along() {
        for more in [
            "git status; rm -r x",
            "git status && rm -r x",
            "git status | sh",
            "git status > x",
            "git status $(rm -r x)",
            "git status `rm -r x`",
            "git status \"$(rm -r x)\"",
            "git status\nrm -r x",
            "git status & rm -r x",
            "git status \\\nx",
            "PATH=. git status",
            "git status\u{a0}x",
        ] {
            assert!(!covers("git status", more), "{more}");
            // A grant for the whole command covers only that command.
            assert_eq!(prefix_of(more), more);
            assert!(covers(more, more) && !covers(more, &format!("{more} -x")), "{more}");
        }
    }

    #[test]
    fn what_runs_others_or_is_told_by_an_option_is_covered_as_a_whole() {
        for command in [
            "sudo rm x",
            "/usr/bin/env rm x",
            "bash -c x",
            "python3 -c x",
            "uv run x",
            "make test",
            "rm -rf build",
            "ls",
            "xargs rm",
        ] {
            assert_eq!(prefix_of(command), command);
            assert!(covers(command, command) && !covers(command, &format!("{command} more")), "{command}");
            assert_eq!(describe_scope(command), "`always` would allow exactly this command.");
        }
    }

    proptest! {
        /// A grant for one command covers that command, and no command whose first words differ.
        #[test]
        fn a_grant_covers_its_command(command in "[a-z =\"'$;&|./-]{1,24}", other in "[a-z =\"'$;&|./-]{1,24}") {
            let prefix = prefix_of(&command);
            prop_assert!(covers(prefix, &command));
            if covers(prefix, &other) && other.trim() != command.trim() {
                let begins = |text: &str| text.split([' ', '\t']).filter(|word| !word.is_empty()).take(2).map(str::to_owned).collect::<Vec<_>>();
                prop_assert_eq!(begins(&command), begins(&other));
                prop_assert!(!other.contains(SHELL_SYNTAX));
            }
        }
    }
}
