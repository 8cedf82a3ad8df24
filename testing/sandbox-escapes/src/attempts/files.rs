//! Attempts on files outside of the workspace.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::attempt;
use crate::{Attempt, AttemptError, Control, Mechanism, Target, raw_syscall};

/// The attempts of this group.
pub(super) const ALL: &[Attempt] = &[
    attempt("brain-read", "read the brain beside the workspace", Mechanism::LandlockFiles, |target| {
        read_start(&target.path("brain")?)
    }),
    attempt("brain-append", "append to the brain", Mechanism::LandlockFiles, |target| {
        OpenOptions::new().append(true).open(target.path("brain")?)?.write_all(b"!")?;
        Ok("appended".into())
    }),
    attempt("brain-truncate", "cut the brain off by its name", Mechanism::LandlockFiles, |target| {
        let brain = target.path("brain")?;
        raw_syscall::syscall(libc::SYS_truncate, &[path_text(&brain).into(), 1.into()])
    }),
    attempt("brain-delete", "delete the brain", Mechanism::LandlockFiles, |target| {
        fs::remove_file(target.path("brain")?)?;
        Ok("deleted".into())
    }),
    attempt("brain-move", "move the brain into the workspace", Mechanism::LandlockFiles, |target| {
        fs::rename(target.path("brain")?, "stolen")?;
        read_start(Path::new("stolen"))
    }),
    attempt("brain-replace", "move a file over the brain", Mechanism::LandlockFiles, |target| {
        fs::write("fake", "fake")?;
        fs::rename("fake", target.path("brain")?)?;
        Ok("replaced".into())
    }),
    attempt("brain-hard-link", "link the brain into the workspace", Mechanism::LandlockFiles, |target| {
        fs::hard_link(target.path("brain")?, "linked")?;
        read_start(Path::new("linked"))
    }),
    attempt("brain-symlink", "read the brain through a symbolic link", Mechanism::LandlockFiles, |target| {
        symlink(target.path("brain")?, "symlinked")?;
        read_start(Path::new("symlinked"))
    }),
    attempt(
        "brain-symlink-write",
        "write to the brain through a symbolic link",
        Mechanism::LandlockFiles,
        |target| {
            symlink(target.path("brain")?, "symlinked-too")?;
            fs::write("symlinked-too", "overwritten")?;
            Ok("overwritten".into())
        },
    ),
    attempt(
        "brain-symlink-race",
        "swap a file for a link while it is opened, 20,000 times",
        Mechanism::LandlockFiles,
        race_symlink,
    ),
    attempt("brain-dot-dot", "read the brain by `..`", Mechanism::LandlockFiles, |target| {
        let brain = target.path("brain")?;
        read_start(&Path::new("..").join(brain.file_name().unwrap_or_default()))
    }),
    attempt(
        "brain-from-its-folder",
        "enter the brain's folder and read it by its bare name",
        Mechanism::LandlockFiles,
        |target| {
            let brain = target.path("brain")?;
            std::env::set_current_dir(brain.parent().unwrap_or(Path::new("/")))?;
            read_start(Path::new(brain.file_name().unwrap_or_default()))
        },
    ),
    attempt(
        "brain-by-handle",
        "open the brain by a handle of the file system",
        Mechanism::Seccomp,
        |target| {
            let brain = target.path("brain")?;
            let handle = [128_u32.to_ne_bytes(), [0; 4]].concat();
            let handle = [handle, vec![0; 128]].concat();
            raw_syscall::syscall(
                libc::SYS_name_to_handle_at,
                &[
                    libc::AT_FDCWD.into(),
                    path_text(&brain).into(),
                    raw_syscall::SyscallArg::Bytes(handle),
                    raw_syscall::SyscallArg::Zeros(8),
                    0.into(),
                ],
            )
        },
    ),
    attempt("brain-folder", "list the brain's folder", Mechanism::LandlockFiles, |target| {
        let brain = target.path("brain")?;
        let names = fs::read_dir(brain.parent().unwrap_or(Path::new("/")))?;
        Ok(format!("{} names", names.count()))
    }),
    attempt("brain-mode", "take the brain's permissions away for good", Mechanism::MetadataGuard, |target| {
        let brain = target.path("brain")?;
        fs::set_permissions(&brain, fs::Permissions::from_mode(0o000))?;
        std::thread::park_timeout(Duration::from_secs(1));
        if fs::metadata(&brain)?.permissions().mode() & 0o777 != 0 {
            return Err(AttemptError::Refused("the permissions were restored".into()));
        }
        Ok("nobody may read it now".into())
    }),
    attempt(
        "brain-times",
        "make the brain look as if it had long not been written",
        Mechanism::MetadataGuard,
        |target| {
            let brain = target.path("brain")?;
            let path = path_text(&brain);
            raw_syscall::syscall(
                libc::SYS_utimensat,
                &[libc::AT_FDCWD.into(), path.into(), raw_syscall::SyscallArg::Zeros(32), 0.into()],
            )?;
            std::thread::park_timeout(Duration::from_secs(1));
            if fs::metadata(&brain)?.mtime() != 0 {
                return Err(AttemptError::Refused("the time was restored".into()));
            }
            Ok("it was last written in 1970".into())
        },
    ),
    attempt("brain-attribute", "fill the brain's extended attributes", Mechanism::Seccomp, |target| {
        let brain = target.path("brain")?;
        let arguments = [path_text(&brain).into(), "user.note".into(), "full".into(), 4.into(), 0.into()];
        raw_syscall::syscall(libc::SYS_setxattr, &arguments)
    }),
    attempt(
        "hidden-read",
        "read a file of the catalog that may hold keys",
        Mechanism::LandlockFiles,
        |target| read_start(&target.path("hidden")?),
    ),
    attempt(
        "hidden-link",
        "link a file of the catalog that may hold keys into the workspace",
        Mechanism::LandlockFiles,
        |target| {
            fs::hard_link(target.path("hidden")?, "hidden")?;
            read_start(Path::new("hidden"))
        },
    ),
    attempt("outside-write", "write a file outside of the workspace", Mechanism::LandlockFiles, |target| {
        fs::write(target.path("outside")?.join("written"), "here")?;
        Ok("written".into())
    }),
    attempt("outside-folder", "make a folder outside of the workspace", Mechanism::LandlockFiles, |target| {
        fs::create_dir(target.path("outside")?.join("made"))?;
        Ok("made".into())
    }),
    attempt("tmp-write", "write to /tmp, which others share", Mechanism::LandlockFiles, |_| {
        let name = format!("/tmp/breakout-{}", std::process::id());
        fs::write(&name, "here")?;
        fs::remove_file(&name)?;
        Ok("written".into())
    }),
    attempt(
        "shared-memory-file",
        "make a file in /dev/shm, which others share",
        Mechanism::LandlockFiles,
        |_| {
            let name = format!("/dev/shm/breakout-{}", std::process::id());
            fs::write(&name, "here")?;
            fs::remove_file(&name)?;
            Ok("written".into())
        },
    ),
    attempt("shadow", "read /etc/shadow", Mechanism::LandlockFiles, |_| read_start(Path::new("/etc/shadow")))
        .with_control(Control::SucceedsAsRoot),
    attempt("etc-list", "list /etc", Mechanism::LandlockFiles, |_| {
        Ok(format!("{} names", fs::read_dir("/etc")?.count()))
    }),
    attempt("other-user", "read another user's folder", Mechanism::LandlockFiles, |target| {
        read_start(&target.path("other")?)
    }),
    attempt(
        "watch-outside",
        "watch another user's folder for names and changes",
        Mechanism::Seccomp,
        |target| {
            let diary = target.path("other")?;
            raw_syscall::run_perl(
                r#"
            my ($init, $watch, $path) = @ARGV;
            my $queue = syscall($init + 0, 0);
            refused() if $queue < 0;
            refused() if syscall($watch + 0, $queue, "$path\0", 0xfff) < 0;
            print "watching";"#,
                &[
                    libc::SYS_inotify_init1.to_string(),
                    libc::SYS_inotify_add_watch.to_string(),
                    diary.parent().unwrap_or(Path::new("/")).display().to_string(),
                ],
            )
        },
    ),
    attempt("home", "list root's and others' home folders", Mechanism::LandlockFiles, |_| {
        let homes = fs::read_dir("/home")?.count();
        Ok(format!("{homes} homes, {} names in /root", fs::read_dir("/root")?.count()))
    })
    .with_control(Control::SucceedsAsRoot),
    attempt("disk-device", "make a device node for the first disk", Mechanism::Privileges, |_| {
        raw_syscall::syscall(
            libc::SYS_mknodat,
            &[libc::AT_FDCWD.into(), "disk".into(), (0o060_600).into(), (0x800).into()],
        )
    })
    .with_control(Control::SucceedsAsRoot),
    attempt("terminal-device", "open the terminal devices", Mechanism::LandlockFiles, |_| {
        File::options().read(true).write(true).open("/dev/ptmx")?;
        Ok("a new terminal".into())
    }),
    attempt("set-user-id", "make a program that runs as its owner", Mechanism::Seccomp, |_| {
        fs::copy("/bin/true", "set-user-id")?;
        fs::set_permissions("set-user-id", fs::Permissions::from_mode(0o4755))?;
        Ok("made".into())
    }),
    attempt(
        "set-user-id-at-once",
        "the same, by the mode that a file is made with",
        Mechanism::Seccomp,
        |_| {
            let mode = i64::from(libc::O_CREAT | libc::O_WRONLY);
            raw_syscall::syscall(
                libc::SYS_openat,
                &[libc::AT_FDCWD.into(), "at-once".into(), mode.into(), (0o4755).into()],
            )
        },
    ),
    attempt("openat2", "open a file by a call whose flags cannot be checked", Mechanism::Seccomp, |_| {
        let how = raw_syscall::SyscallArg::Zeros(24);
        raw_syscall::syscall(libc::SYS_openat2, &[libc::AT_FDCWD.into(), "/bin/true".into(), how, 24.into()])
    }),
    attempt("inherited-files", "use files that the engine had open", Mechanism::CleanedEnvironment, |_| {
        raw_syscall::run_perl(
            r#"
            my @others;
            for my $file (3 .. 1023) {
                open(my $handle, "<&=", $file) or next;
                my $name = readlink("/proc/self/fd/$file");
                push @others, "$file is $name";
                next if $name =~ m{^(pipe|/dev/null|/proc)};
                # Other processes with this file share its offset, and may read between the two calls.
                my $text = "";
                for (1 .. 100) { sysseek($handle, 0, 0); sysread($handle, $text, 4096); last if length $text; }
                print "$file is $name: $text"; exit 0 if $text =~ /secret/;
            }
            print "none but (@others) (os error 9)"; exit 10;"#,
            &[] as &[&str],
        )
    }),
    attempt(
        "secrets-in-the-environment",
        "find the engine's keys in the environment",
        Mechanism::CleanedEnvironment,
        |_| {
            let output = Command::new("env").output()?;
            let variables = String::from_utf8_lossy(&output.stdout).into_owned();
            let found = variables.lines().find(|line| line.contains("KEY") || line.contains("secret"));
            found.map(str::to_owned).ok_or_else(|| AttemptError::Refused("there are none".into()))
        },
    ),
];

fn read_start(path: &Path) -> Result<String, AttemptError> {
    let mut text = Vec::new();
    File::open(path)?.take(4096).read_to_end(&mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

fn path_text(path: &Path) -> &str {
    path.to_str().unwrap_or_default()
}

/// A thread replaces a file alternately by a harmless one and by a link to the brain, while this thread reads it.
fn race_symlink(target: &Target) -> Result<String, AttemptError> {
    let brain = target.path("brain")?;
    fs::write("innocent", "innocent")?;
    std::thread::spawn(move || {
        for _ in 0..20_000 {
            // A failed step does not matter: the next round tries again.
            let _ = fs::copy("innocent", "next").and_then(|_| fs::rename("next", "swapped"));
            let _ = symlink(&brain, "link").and_then(|()| fs::rename("link", "swapped"));
        }
    });
    let mut refused = None;
    for _ in 0..20_000 {
        match read_start(Path::new("swapped")) {
            Ok(text) if text.contains("secret") => return Ok(text),
            Err(AttemptError::Refused(error)) if error.contains("os error 13") => refused = Some(error),
            // The harmless file, or the file does not exist yet.
            Ok(_) | Err(_) => {}
        }
    }
    Err(refused
        .map_or_else(|| AttemptError::NotApplicable("the link was never met".into()), AttemptError::Refused))
}
