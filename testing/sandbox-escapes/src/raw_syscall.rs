//! Any system call, by a language that has them all without a wrapper's opinion.

use std::ffi::OsStr;
use std::process::Command;

use crate::AttemptError;

/// An argument of a system call.
pub(crate) enum SyscallArg {
    Number(i64),
    /// A string, ended by a zero.
    Text(String),
    /// So many zero bytes to read from or write to.
    Zeros(usize),
    /// These bytes.
    Bytes(Vec<u8>),
}

impl From<i64> for SyscallArg {
    fn from(number: i64) -> Self {
        Self::Number(number)
    }
}

impl From<i32> for SyscallArg {
    fn from(number: i32) -> Self {
        Self::Number(number.into())
    }
}

impl From<&str> for SyscallArg {
    fn from(text: &str) -> Self {
        Self::Text(text.into())
    }
}

/// Makes the call whose number and arguments it is given.
const SYSCALL_SCRIPT: &str = r#"
my @values = map { /^t(.*)/s ? "$1\0" : /^z(.*)/ ? "\0" x $1 : /^b(.*)/ ? pack("H*", $1) : $_ + 0 } @ARGV;
my $given = syscall(shift @values, @values);
refused() if $given == -1;
print $given;
"#;

/// Makes one call, and says what it gave.
pub(crate) fn syscall(number: i64, arguments: &[SyscallArg]) -> Result<String, AttemptError> {
    let mut values = vec![number.to_string()];
    values.extend(arguments.iter().map(|argument| match argument {
        SyscallArg::Number(number) => number.to_string(),
        SyscallArg::Text(text) => format!("t{text}"),
        SyscallArg::Zeros(length) => format!("z{length}"),
        SyscallArg::Bytes(bytes) => {
            bytes.iter().fold("b".to_owned(), |text, byte| text + &format!("{byte:02x}"))
        }
    }));
    run_perl(SYSCALL_SCRIPT, &values)
}

/// Runs a program that ends with 10 where it is refused, and says what it printed.
pub(crate) fn run_script(program: &mut Command) -> Result<String, AttemptError> {
    let output = program.output().map_err(|error| {
        AttemptError::NotApplicable(format!("{} cannot be run: {error}", program.get_program().display()))
    })?;
    let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    match output.status.code() {
        Some(0) => Ok(said),
        Some(10) => Err(AttemptError::Refused(said)),
        // It says nothing any more.
        None => Err(AttemptError::Refused(format!("it was ended by {}", output.status))),
        other => Err(AttemptError::NotApplicable(format!(
            "{other:?}: {said} {}",
            String::from_utf8_lossy(&output.stderr)
        ))),
    }
}

/// Runs a Perl script, which may call `refused`.
pub(crate) fn run_perl(text: &str, arguments: &[impl AsRef<OsStr>]) -> Result<String, AttemptError> {
    let mut run_perl = Command::new("perl");
    run_perl
        .arg("-e")
        .arg(format!("sub refused {{ print \"$! (os error \", $! + 0, \")\"; exit 10 }}\n{text}"));
    run_perl.arg("--").args(arguments);
    run_script(&mut run_perl)
}
