//! Attempts on the kernel's interfaces and on privileges.

use std::fs;
use std::process::Command;

use nix::sched::CloneFlags;

use super::attempt;
use crate::raw_syscall::{self, SyscallArg, syscall};
use crate::{Attempt, AttemptError, Control, Mechanism};

const MACHINE_DEPENDENT: Control = Control::NotTried("the machine may forbid it by itself");

/// The attempts of this group.
pub(super) const ALL: &[Attempt] = &[
    attempt("mount", "mount a file system", Mechanism::Seccomp, |_| {
        fs::create_dir_all("mounted")?;
        syscall(libc::SYS_mount, &["none".into(), "mounted".into(), "tmpfs".into(), 0.into(), 0.into()])
    })
    .with_control(Control::NotTried("it would stay mounted")),
    attempt("new-mount", "mount a file system by the newer calls", Mechanism::Seccomp, |_| {
        syscall(libc::SYS_fsopen, &["tmpfs".into(), 0.into()])
    })
    .with_control(Control::SucceedsAsRoot),
    attempt("clone-mounts", "take a copy of the mounts", Mechanism::Seccomp, |_| {
        syscall(libc::SYS_open_tree, &[libc::AT_FDCWD.into(), "/".into(), (0x8001).into()])
    })
    .with_control(Control::SucceedsAsRoot),
    attempt("writable-mounts", "make a read-only mount writable again", Mechanism::Seccomp, |_| {
        syscall(libc::SYS_mount, &["none".into(), "/".into(), "none".into(), (32 | 4096).into(), 0.into()])
    })
    .with_control(Control::NotTried("it would change the machine's mounts")),
    attempt("user-namespace", "become root in a user namespace", Mechanism::Seccomp, |_| {
        unshare(CloneFlags::CLONE_NEWUSER)
    })
    .with_control(MACHINE_DEPENDENT),
    attempt("mount-namespace", "make mounts of its own", Mechanism::Seccomp, |_| {
        unshare(CloneFlags::CLONE_NEWNS)
    })
    .with_control(Control::SucceedsAsRoot),
    attempt("network-namespace", "make a network of its own", Mechanism::Seccomp, |_| {
        unshare(CloneFlags::CLONE_NEWNET)
    })
    .with_control(Control::SucceedsAsRoot),
    attempt("clone-user-namespace", "start a process in a user namespace", Mechanism::Seccomp, |_| {
        let flags = i64::from(libc::CLONE_NEWUSER | libc::SIGCHLD);
        syscall(libc::SYS_clone, &[flags.into(), 0.into(), 0.into(), 0.into(), 0.into()])
    })
    .with_control(MACHINE_DEPENDENT),
    attempt("clone3", "start a process by a call whose flags cannot be checked", Mechanism::Seccomp, |_| {
        let arguments = [0_u64.to_ne_bytes().as_slice(), &[0; 80]].concat();
        syscall(libc::SYS_clone3, &[SyscallArg::Bytes(arguments), 88.into()])
    }),
    attempt("enter-namespace", "enter the engine's namespaces", Mechanism::Seccomp, |target| {
        raw_syscall::run_perl(
            "my $handle = syscall($ARGV[0] + 0, $ARGV[2] + 0, 0); refused() if $handle < 0;
             syscall($ARGV[1] + 0, $handle, 0x20000) < 0 and refused(); print 'entered';",
            &[
                libc::SYS_pidfd_open.to_string(),
                libc::SYS_setns.to_string(),
                target.text("victim")?.to_owned(),
            ],
        )
    })
    .with_control(Control::SucceedsAsRoot),
    attempt("change-root", "change the root", Mechanism::Seccomp, |_| {
        syscall(libc::SYS_chroot, &[".".into()])
    })
    .with_control(Control::SucceedsAsRoot),
    attempt("keyring-add", "put a key into the kernel's keyring", Mechanism::Seccomp, |_| {
        syscall(libc::SYS_add_key, &["user".into(), "breakout".into(), "x".into(), 1.into(), (-2).into()])
    })
    .with_control(MACHINE_DEPENDENT),
    attempt("keyring-read", "look into the user's keyring", Mechanism::Seccomp, |_| {
        syscall(libc::SYS_keyctl, &[0.into(), (-4).into(), 1.into()])
    })
    .with_control(MACHINE_DEPENDENT),
    attempt("io-uring", "make calls around the filter by io_uring", Mechanism::Seccomp, |_| {
        syscall(libc::SYS_io_uring_setup, &[1.into(), SyscallArg::Zeros(120)])
    })
    .with_control(MACHINE_DEPENDENT),
    attempt("bpf", "load a program into the kernel", Mechanism::Seccomp, |_| {
        let map = [1_u32, 4, 4, 1].map(u32::to_ne_bytes).concat();
        syscall(libc::SYS_bpf, &[0.into(), SyscallArg::Bytes([map, vec![0; 112]].concat()), 128.into()])
    })
    .with_control(MACHINE_DEPENDENT),
    attempt("performance-events", "watch the machine by performance events", Mechanism::Seccomp, |_| {
        let event = [1_u32, 128].map(u32::to_ne_bytes).concat();
        let event = SyscallArg::Bytes([event, vec![0; 120]].concat());
        syscall(libc::SYS_perf_event_open, &[event, 0.into(), (-1).into(), (-1).into(), 0.into()])
    })
    .with_control(MACHINE_DEPENDENT),
    attempt(
        "page-faults",
        "handle page faults, which helps to exploit the kernel",
        Mechanism::Seccomp,
        |_| syscall(libc::SYS_userfaultfd, &[1.into()]),
    )
    .with_control(MACHINE_DEPENDENT),
    attempt("kernel-module", "load a kernel module", Mechanism::Seccomp, |_| {
        syscall(libc::SYS_init_module, &[SyscallArg::Zeros(16), 16.into(), "".into()])
    })
    .with_control(Control::NotTried("no kernel should be asked")),
    attempt("terminal-input", "type into a terminal", Mechanism::Seccomp, |_| {
        syscall(
            libc::SYS_ioctl,
            &[0.into(), i64::try_from(libc::TIOCSTI).unwrap_or_default().into(), "x".into()],
        )
    })
    .with_control(Control::NotTried("it needs a terminal")),
    attempt("personality", "switch address randomisation off", Mechanism::Seccomp, |_| {
        syscall(libc::SYS_personality, &[(0x004_0000).into()])
    }),
    attempt("shared-memory", "make memory that outlives its maker", Mechanism::Seccomp, |_| {
        let id = syscall(libc::SYS_shmget, &[0.into(), 4096.into(), (0o1600).into()])?;
        syscall(libc::SYS_shmctl, &[id.parse::<i64>().unwrap_or_default().into(), 0.into(), 0.into()])?;
        Ok(id)
    }),
    attempt("message-queue", "make a message queue that others reach", Mechanism::Seccomp, |_| {
        let id = syscall(libc::SYS_msgget, &[0.into(), (0o1600).into()])?;
        syscall(libc::SYS_msgctl, &[id.parse::<i64>().unwrap_or_default().into(), 0.into(), 0.into()])?;
        Ok(id)
    }),
    attempt("named-queue", "make a named queue that others reach", Mechanism::Seccomp, |_| {
        let flags = i64::from(libc::O_CREAT | libc::O_RDWR);
        let made = syscall(libc::SYS_mq_open, &["breakout".into(), flags.into(), (0o600).into(), 0.into()])?;
        syscall(libc::SYS_mq_unlink, &["breakout".into()])?;
        Ok(made)
    })
    .with_control(MACHINE_DEPENDENT),
    attempt("unknown-call", "make a call that is newer than the filter", Mechanism::Seccomp, |_| {
        syscall(100_000, &[])
    })
    .with_control(Control::NotTried("no kernel has it")),
    attempt("host-name", "rename the machine", Mechanism::Seccomp, |_| {
        syscall(libc::SYS_sethostname, &["broken".into(), 6.into()])
    })
    .with_control(Control::NotTried("it would rename the machine")),
    attempt("clock", "set the machine's clock", Mechanism::Seccomp, |_| {
        syscall(libc::SYS_clock_settime, &[0.into(), SyscallArg::Zeros(16)])
    })
    .with_control(Control::NotTried("it would set the clock")),
    attempt("become-another", "become another user", Mechanism::Privileges, |_| {
        raw_syscall::run_perl("$> = 12345; refused() if $> != 12345; print $>;", &[] as &[&str])
    })
    .with_control(Control::SucceedsAsRoot),
    attempt("give-away", "give a file to another user", Mechanism::Privileges, |_| {
        fs::write("given", "x")?;
        std::os::unix::fs::chown("given", Some(12345), None)?;
        Ok("given away".into())
    })
    .with_control(Control::SucceedsAsRoot),
    attempt(
        "set-user-id-program",
        "gain rights by a program that runs as root",
        Mechanism::Privileges,
        |target| {
            let output = Command::new(target.path("set_user_id")?).output()?;
            let capabilities = String::from_utf8_lossy(&output.stdout).trim().to_owned();
            // Capabilities count, and not the user id: programs of an engine that runs as root keep that id.
            if capabilities.is_empty() || capabilities == "0000000000000000" {
                Err(AttemptError::Refused(format!("gained none: {capabilities}")))
            } else {
                Ok(capabilities)
            }
        },
    )
    .with_control(Control::SucceedsAsRoot),
    attempt("new-privileges", "have rights left, or a way to new ones", Mechanism::Privileges, |_| {
        let capabilities = rustix::thread::capabilities(None)?;
        if capabilities.permitted.is_empty() && rustix::thread::no_new_privs()? {
            return Err(AttemptError::Refused("there are none".into()));
        }
        Ok(format!("{:?}", capabilities.permitted))
    }),
];

fn unshare(namespace: CloneFlags) -> Result<String, AttemptError> {
    nix::sched::unshare(namespace)?;
    Ok("it has one".into())
}
