//! Makes arbitrary system calls. It does so through Perl, whose `syscall` passes arguments on without the checks
//! of a library wrapper.

use std::ffi::OsStr;
use std::process::Command;

use crate::AttemptError;

/// An argument of a system call.
pub(crate) enum SyscallArg {
    Number(i64),
    /// A pointer to a string that ends with a zero byte.
    Text(String),
    /// A pointer to a buffer of this many zero bytes, which the kernel may read or write.
    Zeros(usize),
    /// A pointer to these bytes.
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

/// A Perl script that makes the system call whose number and encoded arguments are its own arguments.
const SYSCALL_SCRIPT: &str = r#"
my @values = map { /^t(.*)/s ? "$1\0" : /^z(.*)/ ? "\0" x $1 : /^b(.*)/ ? pack("H*", $1) : $_ + 0 } @ARGV;
my $given = syscall(shift @values, @values);
refused() if $given == -1;
print $given;
"#;

/// Makes a system call, and returns its result.
pub(crate) fn syscall(number: i64, arguments: &[SyscallArg]) -> Result<String, AttemptError> {
    let mut values = vec![number.to_string()];
    values.extend(arguments.iter().map(|argument| match argument {
        SyscallArg::Number(number) => number.to_string(),
        SyscallArg::Text(text) => format!("t{text}"),
        SyscallArg::Zeros(length) => format!("z{length}"),
        SyscallArg::Bytes(bytes) => format!("b{}", hex::encode(bytes)),
    }));
    run_perl(SYSCALL_SCRIPT, &values)
}

/// Runs a program, and returns its standard output. Exit code 10 means that the program was refused.
pub(crate) fn run_script(program: &mut Command) -> Result<String, AttemptError> {
    let output = program.output().map_err(|error| {
        AttemptError::NotApplicable(format!("{} cannot be run: {error}", program.get_program().display()))
    })?;
    let printed = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    match output.status.code() {
        Some(0) => Ok(printed),
        Some(10) => Err(AttemptError::Refused(printed)),
        // A signal ended it before it could report.
        None => Err(AttemptError::Refused(format!("it was ended by {}", output.status))),
        other => Err(AttemptError::NotApplicable(format!(
            "{other:?}: {printed} {}",
            String::from_utf8_lossy(&output.stderr)
        ))),
    }
}

/// Runs a Perl script. It may call `refused`, which reports the current error and exits with 10.
pub(crate) fn run_perl(script: &str, arguments: &[impl AsRef<OsStr>]) -> Result<String, AttemptError> {
    let mut perl = Command::new("perl");
    perl.arg("-e")
        .arg(format!("sub refused {{ print \"$! (os error \", $! + 0, \")\"; exit 10 }}\n{script}"));
    perl.arg("--").args(arguments);
    run_script(&mut perl)
}
