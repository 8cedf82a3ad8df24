//! Any system call, by a language that has them all without a wrapper's opinion.

use std::ffi::OsStr;
use std::process::Command;

use crate::Stopped;

/// An argument of a system call.
pub(crate) enum Arg {
    Number(i64),
    /// A string, ended by a zero.
    Text(String),
    /// So many zero bytes to read from or write to.
    Zeros(usize),
    /// These bytes.
    Bytes(Vec<u8>),
}

impl From<i64> for Arg {
    fn from(number: i64) -> Self {
        Self::Number(number)
    }
}

impl From<i32> for Arg {
    fn from(number: i32) -> Self {
        Self::Number(number.into())
    }
}

impl From<&str> for Arg {
    fn from(text: &str) -> Self {
        Self::Text(text.into())
    }
}

/// Makes the call whose number and arguments it is given.
const SCRIPT: &str = r#"
my @values = map { /^t(.*)/s ? "$1\0" : /^z(.*)/ ? "\0" x $1 : /^b(.*)/ ? pack("H*", $1) : $_ + 0 } @ARGV;
my $given = syscall(shift @values, @values);
refused() if $given == -1;
print $given;
"#;

/// Makes one call, and says what it gave.
pub(crate) fn call(number: i64, arguments: &[Arg]) -> Result<String, Stopped> {
    let mut values = vec![number.to_string()];
    values.extend(arguments.iter().map(|argument| match argument {
        Arg::Number(number) => number.to_string(),
        Arg::Text(text) => format!("t{text}"),
        Arg::Zeros(length) => format!("z{length}"),
        Arg::Bytes(bytes) => bytes.iter().fold("b".to_owned(), |text, byte| text + &format!("{byte:02x}")),
    }));
    perl(SCRIPT, &values)
}

/// Runs a program that ends with 10 where it is refused, and says what it printed.
pub(crate) fn script(program: &mut Command) -> Result<String, Stopped> {
    let output = program.output().map_err(|error| {
        Stopped::Unable(format!("{} cannot be run: {error}", program.get_program().display()))
    })?;
    let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    match output.status.code() {
        Some(0) => Ok(said),
        Some(10) => Err(Stopped::Refused(said)),
        // It says nothing any more.
        None => Err(Stopped::Refused(format!("it was ended by {}", output.status))),
        other => {
            Err(Stopped::Unable(format!("{other:?}: {said} {}", String::from_utf8_lossy(&output.stderr))))
        }
    }
}

/// Runs a Perl script, which may call `refused`.
pub(crate) fn perl(text: &str, arguments: &[impl AsRef<OsStr>]) -> Result<String, Stopped> {
    let mut perl = Command::new("perl");
    perl.arg("-e").arg(format!("sub refused {{ print \"$! (os error \", $! + 0, \")\"; exit 10 }}\n{text}"));
    perl.arg("--").args(arguments);
    script(&mut perl)
}
