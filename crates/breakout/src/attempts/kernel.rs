//! The kernel's own doors, and privileges.

use std::fs;
use std::process::Command;

use nix::sched::CloneFlags;

use super::attempt;
use crate::raw::{self, Arg, call};
use crate::{Attempt, By, Control, Stopped};

const NOT_EVERYWHERE: Control = Control::NotTried("the machine may forbid it by itself");

/// See the module.
pub(super) const ALL: &[Attempt] = &[
    attempt("mount", "mount a file system", By::Calls, |_| {
        fs::create_dir_all("mounted")?;
        call(libc::SYS_mount, &["none".into(), "mounted".into(), "tmpfs".into(), 0.into(), 0.into()])
    })
    .control(Control::NotTried("it would stay mounted")),
    attempt("new-mount", "mount a file system by the newer calls", By::Calls, |_| {
        call(libc::SYS_fsopen, &["tmpfs".into(), 0.into()])
    })
    .control(Control::SucceedsAsRoot),
    attempt("clone-mounts", "take a copy of the mounts", By::Calls, |_| {
        call(libc::SYS_open_tree, &[libc::AT_FDCWD.into(), "/".into(), (0x8001).into()])
    })
    .control(Control::SucceedsAsRoot),
    attempt("writable-mounts", "make a read-only mount writable again", By::Calls, |_| {
        call(libc::SYS_mount, &["none".into(), "/".into(), "none".into(), (32 | 4096).into(), 0.into()])
    })
    .control(Control::NotTried("it would change the machine's mounts")),
    attempt("user-namespace", "become root in a user namespace", By::Calls, |_| {
        unshare(CloneFlags::CLONE_NEWUSER)
    })
    .control(NOT_EVERYWHERE),
    attempt("mount-namespace", "make mounts of its own", By::Calls, |_| unshare(CloneFlags::CLONE_NEWNS))
        .control(Control::SucceedsAsRoot),
    attempt("network-namespace", "make a network of its own", By::Calls, |_| {
        unshare(CloneFlags::CLONE_NEWNET)
    })
    .control(Control::SucceedsAsRoot),
    attempt("clone-user-namespace", "start a process in a user namespace", By::Calls, |_| {
        let flags = i64::from(libc::CLONE_NEWUSER | libc::SIGCHLD);
        call(libc::SYS_clone, &[flags.into(), 0.into(), 0.into(), 0.into(), 0.into()])
    })
    .control(NOT_EVERYWHERE),
    attempt("clone3", "start a process by a call whose flags cannot be checked", By::Calls, |_| {
        let arguments = [0_u64.to_ne_bytes().as_slice(), &[0; 80]].concat();
        call(libc::SYS_clone3, &[Arg::Bytes(arguments), 88.into()])
    }),
    attempt("enter-namespace", "enter the engine's namespaces", By::Calls, |target| {
        raw::perl(
            "my $handle = syscall($ARGV[0] + 0, $ARGV[2] + 0, 0); refused() if $handle < 0;
             syscall($ARGV[1] + 0, $handle, 0x20000) < 0 and refused(); print 'entered';",
            &[
                libc::SYS_pidfd_open.to_string(),
                libc::SYS_setns.to_string(),
                target.text("victim")?.to_owned(),
            ],
        )
    })
    .control(Control::SucceedsAsRoot),
    attempt("change-root", "change the root", By::Calls, |_| call(libc::SYS_chroot, &[".".into()]))
        .control(Control::SucceedsAsRoot),
    attempt("keyring-add", "put a key into the kernel's keyring", By::Calls, |_| {
        call(libc::SYS_add_key, &["user".into(), "breakout".into(), "x".into(), 1.into(), (-2).into()])
    })
    .control(NOT_EVERYWHERE),
    attempt("keyring-read", "look into the user's keyring", By::Calls, |_| {
        call(libc::SYS_keyctl, &[0.into(), (-4).into(), 1.into()])
    })
    .control(NOT_EVERYWHERE),
    attempt("io-uring", "make calls around the filter by io_uring", By::Calls, |_| {
        call(libc::SYS_io_uring_setup, &[1.into(), Arg::Zeros(120)])
    })
    .control(NOT_EVERYWHERE),
    attempt("bpf", "load a program into the kernel", By::Calls, |_| {
        let map = [1_u32, 4, 4, 1].map(u32::to_ne_bytes).concat();
        call(libc::SYS_bpf, &[0.into(), Arg::Bytes([map, vec![0; 112]].concat()), 128.into()])
    })
    .control(NOT_EVERYWHERE),
    attempt("performance-events", "watch the machine by performance events", By::Calls, |_| {
        let event = [1_u32, 128].map(u32::to_ne_bytes).concat();
        let event = Arg::Bytes([event, vec![0; 120]].concat());
        call(libc::SYS_perf_event_open, &[event, 0.into(), (-1).into(), (-1).into(), 0.into()])
    })
    .control(NOT_EVERYWHERE),
    attempt("page-faults", "handle page faults, which helps to exploit the kernel", By::Calls, |_| {
        call(libc::SYS_userfaultfd, &[1.into()])
    })
    .control(NOT_EVERYWHERE),
    attempt("kernel-module", "load a kernel module", By::Calls, |_| {
        call(libc::SYS_init_module, &[Arg::Zeros(16), 16.into(), "".into()])
    })
    .control(Control::NotTried("no kernel should be asked")),
    attempt("terminal-input", "type into a terminal", By::Calls, |_| {
        call(
            libc::SYS_ioctl,
            &[0.into(), i64::try_from(libc::TIOCSTI).unwrap_or_default().into(), "x".into()],
        )
    })
    .control(Control::NotTried("it needs a terminal")),
    attempt("personality", "switch address randomisation off", By::Calls, |_| {
        call(libc::SYS_personality, &[(0x004_0000).into()])
    }),
    attempt("shared-memory", "make memory that outlives its maker", By::Calls, |_| {
        let id = call(libc::SYS_shmget, &[0.into(), 4096.into(), (0o1600).into()])?;
        call(libc::SYS_shmctl, &[id.parse::<i64>().unwrap_or_default().into(), 0.into(), 0.into()])?;
        Ok(id)
    }),
    attempt("message-queue", "make a message queue that others reach", By::Calls, |_| {
        let id = call(libc::SYS_msgget, &[0.into(), (0o1600).into()])?;
        call(libc::SYS_msgctl, &[id.parse::<i64>().unwrap_or_default().into(), 0.into(), 0.into()])?;
        Ok(id)
    }),
    attempt("named-queue", "make a named queue that others reach", By::Calls, |_| {
        let flags = i64::from(libc::O_CREAT | libc::O_RDWR);
        let made = call(libc::SYS_mq_open, &["breakout".into(), flags.into(), (0o600).into(), 0.into()])?;
        call(libc::SYS_mq_unlink, &["breakout".into()])?;
        Ok(made)
    })
    .control(NOT_EVERYWHERE),
    attempt("unknown-call", "make a call that is newer than the filter", By::Calls, |_| call(100_000, &[]))
        .control(Control::NotTried("no kernel has it")),
    attempt("host-name", "rename the machine", By::Calls, |_| {
        call(libc::SYS_sethostname, &["broken".into(), 6.into()])
    })
    .control(Control::NotTried("it would rename the machine")),
    attempt("clock", "set the machine's clock", By::Calls, |_| {
        call(libc::SYS_clock_settime, &[0.into(), Arg::Zeros(16)])
    })
    .control(Control::NotTried("it would set the clock")),
    attempt("become-another", "become another user", By::Privileges, |_| {
        raw::perl("$> = 12345; refused() if $> != 12345; print $>;", &[] as &[&str])
    })
    .control(Control::SucceedsAsRoot),
    attempt("give-away", "give a file to another user", By::Privileges, |_| {
        fs::write("given", "x")?;
        std::os::unix::fs::chown("given", Some(12345), None)?;
        Ok("given away".into())
    })
    .control(Control::SucceedsAsRoot),
    attempt("set-user-id-program", "gain rights by a program that runs as root", By::Privileges, |target| {
        let output = Command::new(target.path("set_user_id")?).output()?;
        let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        // Root's rights are told by what it holds, anybody's by who it is.
        if said.is_empty() || said == "0000000000000000" {
            Err(Stopped::Refused(format!("gained none: {said}")))
        } else {
            Ok(said)
        }
    })
    .control(Control::SucceedsAsRoot),
    attempt("new-privileges", "have rights left, or a way to new ones", By::Privileges, |_| {
        let rights = rustix::thread::capabilities(None)?;
        if rights.permitted.is_empty() && rustix::thread::no_new_privs()? {
            return Err(Stopped::Refused("there are none".into()));
        }
        Ok(format!("{:?}", rights.permitted))
    }),
];

fn unshare(what: CloneFlags) -> Result<String, Stopped> {
    nix::sched::unshare(what)?;
    Ok("it has one".into())
}
