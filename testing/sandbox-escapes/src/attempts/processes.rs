//! Attempts on other processes: the engine and the helper.

use std::fs::{self, File};
use std::io::{IoSliceMut, Read};
use std::os::unix::process::parent_id;
use std::path::PathBuf;

use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use rustix::process::{Pid, PidfdFlags, Resource, Rlimit, Signal};

use super::attempt;
use crate::{Attempt, AttemptError, Control, Mechanism, Target, raw_syscall};

/// The attempts of this group.
pub(super) const ALL: &[Attempt] = &[
    attempt("engine-environment", "read the engine's environment", Mechanism::LandlockFiles, |target| {
        read_proc_file(target, "environ")
    }),
    attempt("engine-command-line", "read the engine's command line", Mechanism::LandlockFiles, |target| {
        read_proc_file(target, "cmdline")
    }),
    attempt(
        "engine-memory-file",
        "read the engine's memory by /proc/PID/mem",
        Mechanism::LandlockFiles,
        |target| {
            File::open(proc_path(target, "mem")?)?;
            Ok("opened".into())
        },
    ),
    attempt("engine-files", "list the engine's open files", Mechanism::LandlockFiles, |target| {
        Ok(format!("{} files", fs::read_dir(proc_path(target, "fd")?)?.count()))
    }),
    attempt(
        "engine-open-brain",
        "open the brain through the engine's open file",
        Mechanism::LandlockDomain,
        |target| {
            for number in 3..32 {
                match fs::read_to_string(proc_path(target, &format!("fd/{number}"))?) {
                    Ok(text) if text.contains("secret") => return Ok(text),
                    Err(error) if error.raw_os_error() == Some(libc::EACCES) => return Err(error.into()),
                    _ => {}
                }
            }
            Err(AttemptError::NotApplicable("the engine has no such file open".into()))
        },
    ),
    attempt("engine-root", "reach the brain by the engine's root", Mechanism::LandlockDomain, |target| {
        let brain = target.path("brain")?;
        let brain = brain.strip_prefix("/").unwrap_or(&brain).to_owned();
        Ok(fs::read_to_string(proc_path(target, "root")?.join(brain))?)
    }),
    attempt("engine-folder", "list the engine's working folder", Mechanism::LandlockDomain, |target| {
        Ok(format!("{} names", fs::read_dir(proc_path(target, "cwd")?)?.count()))
    }),
    attempt("own-root", "reach the brain by /proc/self/root", Mechanism::LandlockFiles, |target| {
        let brain = target.path("brain")?;
        let brain = brain.strip_prefix("/").unwrap_or(&brain).to_owned();
        Ok(fs::read_to_string(PathBuf::from("/proc/self/root").join(brain))?)
    }),
    attempt("processes", "list all processes", Mechanism::LandlockFiles, |_| {
        Ok(format!("{} names", fs::read_dir("/proc")?.count()))
    }),
    attempt("kernel-settings", "read the kernel's settings in /proc/sys", Mechanism::LandlockFiles, |_| {
        Ok(fs::read_to_string("/proc/sys/kernel/ostype")?)
    }),
    attempt("kernel-objects", "list /sys", Mechanism::LandlockFiles, |_| {
        Ok(format!("{} names", fs::read_dir("/sys")?.count()))
    }),
    attempt("engine-kill", "kill the engine", Mechanism::LandlockScopes, |target| {
        rustix::process::kill_process(engine_pid(target)?, Signal::KILL)?;
        Ok("killed".into())
    }),
    attempt("engine-stop", "stop the engine", Mechanism::LandlockScopes, |target| {
        rustix::process::kill_process(engine_pid(target)?, Signal::STOP)?;
        Ok("stopped".into())
    }),
    attempt(
        "engine-kill-by-handle",
        "kill the engine by a process handle",
        Mechanism::LandlockScopes,
        |target| {
            let handle = rustix::process::pidfd_open(engine_pid(target)?, PidfdFlags::empty())?;
            rustix::process::pidfd_send_signal(handle, Signal::KILL)?;
            Ok("killed".into())
        },
    ),
    attempt(
        "engine-kill-thread",
        "kill the engine by one of its threads",
        Mechanism::LandlockScopes,
        |target| {
            let pid = target.number("victim")?;
            raw_syscall::syscall(libc::SYS_tgkill, &[pid.into(), pid.into(), libc::SIGKILL.into()])
        },
    ),
    attempt("engine-queue-signal", "queue a signal for the engine", Mechanism::LandlockScopes, |target| {
        let pid = target.number("victim")?;
        // A `siginfo_t`: the signal's number, no error, and `SI_QUEUE`.
        let code = (-1_i32).to_ne_bytes();
        let signal = libc::SIGTERM.to_ne_bytes();
        let information = [signal.as_slice(), &[0; 4], &code, &[0; 116]].concat();
        raw_syscall::syscall(
            libc::SYS_rt_sigqueueinfo,
            &[pid.into(), libc::SIGTERM.into(), raw_syscall::SyscallArg::Bytes(information)],
        )
    }),
    attempt("everybody-kill", "kill all that may be killed", Mechanism::LandlockScopes, |_| {
        raw_syscall::run_perl("kill('KILL', -1) or refused(); print 'killed';", &[] as &[&str])
    })
    .with_control(Control::NotTried("it would kill the machine's processes")),
    attempt("group-kill", "kill the engine's process group", Mechanism::LandlockScopes, |target| {
        rustix::process::kill_process_group(engine_pid(target)?, Signal::KILL)?;
        Ok("killed".into())
    }),
    attempt(
        "engine-signal-by-file",
        "have the kernel signal the engine when a pipe has data",
        Mechanism::LandlockScopes,
        |target| {
            let pid = target.text("victim")?.to_owned();
            // Setting the owner is allowed; only the signal must not arrive.
            raw_syscall::run_perl(
                "use Fcntl; pipe(my $in, my $out); fcntl($in, F_SETOWN, $ARGV[0] + 0) or refused();
             fcntl($in, F_SETFL, O_ASYNC) or refused(); syswrite($out, 'x');
             select(undef, undef, undef, 0.2); kill(0, $ARGV[0] + 0) or refused(); print 'sent, perhaps';",
                &[pid],
            )
        },
    )
    .with_control(Control::NotTried("the engine's end is what would show it")),
    attempt("helper-kill", "kill the helper, to outlive it", Mechanism::LandlockScopes, |_| {
        let helper = i32::try_from(parent_id()).ok().and_then(Pid::from_raw);
        let helper =
            helper.ok_or_else(|| AttemptError::Refused("the helper is not seen (os error 3)".into()))?;
        rustix::process::kill_process(helper, Signal::KILL)?;
        Ok("killed".into())
    })
    .with_control(Control::NotTried("it would kill the suite")),
    attempt("engine-trace", "attach a debugger to the engine", Mechanism::Seccomp, |target| {
        nix::sys::ptrace::attach(nix::unistd::Pid::from_raw(target.number("victim")?))?;
        Ok("attached".into())
    }),
    attempt("engine-memory", "read the engine's memory by a system call", Mechanism::Seccomp, |target| {
        let pid = nix::unistd::Pid::from_raw(target.number("victim")?);
        let base = usize::from_str_radix(target.text("address")?, 16).unwrap_or_default();
        let mut bytes = [0; 16];
        let read =
            process_vm_readv(pid, &mut [IoSliceMut::new(&mut bytes)], &[RemoteIoVec { base, len: 16 }])?;
        Ok(format!("{read} bytes"))
    }),
    attempt("engine-take-file", "take a copy of the engine's open file", Mechanism::Seccomp, |target| {
        raw_syscall::run_perl(
            "my $handle = syscall($ARGV[0] + 0, $ARGV[2] + 0, 0); refused() if $handle < 0;
             my $file = syscall($ARGV[1] + 0, $handle, 3, 0); refused() if $file < 0; print $file;",
            &[
                libc::SYS_pidfd_open.to_string(),
                libc::SYS_pidfd_getfd.to_string(),
                target.text("victim")?.to_owned(),
            ],
        )
    }),
    attempt("engine-limits", "lower the engine's limits", Mechanism::Seccomp, |target| {
        let limits = Rlimit { current: Some(5), maximum: Some(1 << 20) };
        rustix::process::prlimit(Some(engine_pid(target)?), Resource::Core, limits)?;
        Ok("lowered".into())
    }),
    attempt("engine-priority", "lower the engine's priority", Mechanism::Seccomp, |target| {
        rustix::process::setpriority_process(Some(engine_pid(target)?), 19)?;
        Ok("lowered".into())
    }),
    attempt("own-user-priority", "lower the priority of all with this user", Mechanism::Seccomp, |_| {
        let user = i64::from(libc::PRIO_USER);
        raw_syscall::syscall(libc::SYS_setpriority, &[user.into(), 0.into(), 0.into()])
    }),
    attempt("engine-processors", "bind the engine to one processor", Mechanism::Seccomp, |target| {
        let pid = target.number("victim")?;
        let mask = raw_syscall::SyscallArg::Bytes(vec![1, 0, 0, 0, 0, 0, 0, 0]);
        raw_syscall::syscall(libc::SYS_sched_setaffinity, &[pid.into(), 8.into(), mask])
    }),
    attempt("engine-compare", "learn what the engine shares with another", Mechanism::Seccomp, |target| {
        let pid = target.number("victim")?;
        raw_syscall::syscall(libc::SYS_kcmp, &[pid.into(), pid.into(), 0.into(), 0.into(), 0.into()])
    }),
];

fn proc_path(target: &Target, name: &str) -> Result<PathBuf, AttemptError> {
    Ok(PathBuf::from("/proc").join(target.text("victim")?).join(name))
}

fn read_proc_file(target: &Target, name: &str) -> Result<String, AttemptError> {
    let mut text = Vec::new();
    File::open(proc_path(target, name)?)?.read_to_end(&mut text)?;
    Ok(String::from_utf8_lossy(&text).replace('\0', " "))
}

fn engine_pid(target: &Target) -> Result<Pid, AttemptError> {
    Pid::from_raw(target.number("victim")?)
        .ok_or_else(|| AttemptError::NotApplicable("`victim` is not a process id".into()))
}
