//! Files that are not the program's.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::attempt;
use crate::{Attempt, By, Control, Stopped, Target, raw};

/// See the module.
pub(super) const ALL: &[Attempt] = &[
    attempt("brain-read", "read the brain beside the workspace", By::Files, |target| {
        read(&target.path("brain")?)
    }),
    attempt("brain-append", "append to the brain", By::Files, |target| {
        OpenOptions::new().append(true).open(target.path("brain")?)?.write_all(b"!")?;
        Ok("appended".into())
    }),
    attempt("brain-truncate", "cut the brain off by its name", By::Files, |target| {
        let brain = target.path("brain")?;
        raw::call(libc::SYS_truncate, &[brain_text(&brain).into(), 1.into()])
    }),
    attempt("brain-delete", "delete the brain", By::Files, |target| {
        fs::remove_file(target.path("brain")?)?;
        Ok("deleted".into())
    }),
    attempt("brain-move", "move the brain into the workspace", By::Files, |target| {
        fs::rename(target.path("brain")?, "stolen")?;
        read(Path::new("stolen"))
    }),
    attempt("brain-replace", "move a file over the brain", By::Files, |target| {
        fs::write("fake", "fake")?;
        fs::rename("fake", target.path("brain")?)?;
        Ok("replaced".into())
    }),
    attempt("brain-hard-link", "link the brain into the workspace", By::Files, |target| {
        fs::hard_link(target.path("brain")?, "linked")?;
        read(Path::new("linked"))
    }),
    attempt("brain-symlink", "read the brain through a symbolic link", By::Files, |target| {
        symlink(target.path("brain")?, "symlinked")?;
        read(Path::new("symlinked"))
    }),
    attempt("brain-symlink-write", "write to the brain through a symbolic link", By::Files, |target| {
        symlink(target.path("brain")?, "symlinked-too")?;
        fs::write("symlinked-too", "overwritten")?;
        Ok("overwritten".into())
    }),
    attempt("brain-symlink-race", "swap a file for a link while it is opened, 20,000 times", By::Files, race),
    attempt("brain-dot-dot", "read the brain by `..`", By::Files, |target| {
        let brain = target.path("brain")?;
        read(&Path::new("..").join(brain.file_name().unwrap_or_default()))
    }),
    attempt(
        "brain-from-its-folder",
        "enter the brain's folder and read it by its bare name",
        By::Files,
        |target| {
            let brain = target.path("brain")?;
            std::env::set_current_dir(brain.parent().unwrap_or(Path::new("/")))?;
            read(Path::new(brain.file_name().unwrap_or_default()))
        },
    ),
    attempt("brain-by-handle", "open the brain by a handle of the file system", By::Calls, |target| {
        let brain = target.path("brain")?;
        let handle = [128_u32.to_ne_bytes(), [0; 4]].concat();
        let handle = [handle, vec![0; 128]].concat();
        raw::call(
            libc::SYS_name_to_handle_at,
            &[
                libc::AT_FDCWD.into(),
                brain_text(&brain).into(),
                raw::Arg::Bytes(handle),
                raw::Arg::Zeros(8),
                0.into(),
            ],
        )
    }),
    attempt("brain-folder", "list the brain's folder", By::Files, |target| {
        let brain = target.path("brain")?;
        let names = fs::read_dir(brain.parent().unwrap_or(Path::new("/")))?;
        Ok(format!("{} names", names.count()))
    }),
    attempt("brain-mode", "take the brain's permissions away for good", By::Attributes, |target| {
        let brain = target.path("brain")?;
        fs::set_permissions(&brain, fs::Permissions::from_mode(0o000))?;
        std::thread::park_timeout(Duration::from_secs(1));
        if fs::metadata(&brain)?.permissions().mode() & 0o777 != 0 {
            return Err(Stopped::Refused("they are put right".into()));
        }
        Ok("nobody may read it now".into())
    }),
    attempt(
        "brain-times",
        "make the brain look as if it had long not been written",
        By::Attributes,
        |target| {
            let brain = target.path("brain")?;
            let path = brain_text(&brain);
            raw::call(
                libc::SYS_utimensat,
                &[libc::AT_FDCWD.into(), path.into(), raw::Arg::Zeros(32), 0.into()],
            )?;
            std::thread::park_timeout(Duration::from_secs(1));
            if fs::metadata(&brain)?.mtime() != 0 {
                return Err(Stopped::Refused("they are put right".into()));
            }
            Ok("it was last written in 1970".into())
        },
    ),
    attempt("brain-attribute", "fill the brain's extended attributes", By::Calls, |target| {
        let brain = target.path("brain")?;
        let arguments = [brain_text(&brain).into(), "user.note".into(), "full".into(), 4.into(), 0.into()];
        raw::call(libc::SYS_setxattr, &arguments)
    }),
    attempt("hidden-read", "read a file of the catalog that may hold keys", By::Files, |target| {
        read(&target.path("hidden")?)
    }),
    attempt(
        "hidden-link",
        "link a file of the catalog that may hold keys into the workspace",
        By::Files,
        |target| {
            fs::hard_link(target.path("hidden")?, "hidden")?;
            read(Path::new("hidden"))
        },
    ),
    attempt("outside-write", "write a file outside of the workspace", By::Files, |target| {
        fs::write(target.path("outside")?.join("written"), "here")?;
        Ok("written".into())
    }),
    attempt("outside-folder", "make a folder outside of the workspace", By::Files, |target| {
        fs::create_dir(target.path("outside")?.join("made"))?;
        Ok("made".into())
    }),
    attempt("tmp-write", "write to /tmp, which others share", By::Files, |_| {
        let name = format!("/tmp/breakout-{}", std::process::id());
        fs::write(&name, "here")?;
        fs::remove_file(&name)?;
        Ok("written".into())
    }),
    attempt("shared-memory-file", "make a file in /dev/shm, which others share", By::Files, |_| {
        let name = format!("/dev/shm/breakout-{}", std::process::id());
        fs::write(&name, "here")?;
        fs::remove_file(&name)?;
        Ok("written".into())
    }),
    attempt("shadow", "read /etc/shadow", By::Files, |_| read(Path::new("/etc/shadow")))
        .control(Control::SucceedsAsRoot),
    attempt("etc-list", "list /etc", By::Files, |_| Ok(format!("{} names", fs::read_dir("/etc")?.count()))),
    attempt("other-user", "read another user's folder", By::Files, |target| read(&target.path("other")?)),
    attempt("watch-outside", "watch another user's folder for names and changes", By::Calls, |target| {
        let diary = target.path("other")?;
        raw::perl(
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
    }),
    attempt("home", "list root's and others' home folders", By::Files, |_| {
        let homes = fs::read_dir("/home")?.count();
        Ok(format!("{homes} homes, {} names in /root", fs::read_dir("/root")?.count()))
    })
    .control(Control::SucceedsAsRoot),
    attempt("disk-device", "make a device node for the first disk", By::Privileges, |_| {
        raw::call(
            libc::SYS_mknodat,
            &[libc::AT_FDCWD.into(), "disk".into(), (0o060_600).into(), (0x800).into()],
        )
    })
    .control(Control::SucceedsAsRoot),
    attempt("terminal-device", "open the terminal devices", By::Files, |_| {
        File::options().read(true).write(true).open("/dev/ptmx")?;
        Ok("a new terminal".into())
    }),
    attempt("set-user-id", "make a program that runs as its owner", By::Calls, |_| {
        fs::copy("/bin/true", "set-user-id")?;
        fs::set_permissions("set-user-id", fs::Permissions::from_mode(0o4755))?;
        Ok("made".into())
    }),
    attempt("set-user-id-at-once", "the same, by the mode that a file is made with", By::Calls, |_| {
        let mode = i64::from(libc::O_CREAT | libc::O_WRONLY);
        raw::call(libc::SYS_openat, &[libc::AT_FDCWD.into(), "at-once".into(), mode.into(), (0o4755).into()])
    }),
    attempt("openat2", "open a file by a call whose flags cannot be checked", By::Calls, |_| {
        let how = raw::Arg::Zeros(24);
        raw::call(libc::SYS_openat2, &[libc::AT_FDCWD.into(), "/bin/true".into(), how, 24.into()])
    }),
    attempt("inherited-files", "use files that the engine had open", By::Clean, |_| {
        raw::perl(
            r#"
            for my $file (3 .. 1023) {
                open(my $handle, "<&=", $file) or next;
                my $name = readlink("/proc/self/fd/$file");
                next if $name =~ m{^(pipe|/dev/null|/proc)};
                # Whoever else has it may have read on.
                sysseek($handle, 0, 0);
                sysread($handle, my $text, 4096);
                print "$file is $name: $text"; exit 0 if $text =~ /secret/;
            }
            print "none (os error 9)"; exit 10;"#,
            &[] as &[&str],
        )
    }),
    attempt("secrets-in-the-environment", "find the engine's keys in the environment", By::Clean, |_| {
        let output = Command::new("env").output()?;
        let all = String::from_utf8_lossy(&output.stdout).into_owned();
        let found = all.lines().find(|line| line.contains("KEY") || line.contains("secret"));
        found.map(str::to_owned).ok_or_else(|| Stopped::Refused("none is there".into()))
    }),
];

fn read(path: &Path) -> Result<String, Stopped> {
    let mut text = Vec::new();
    File::open(path)?.take(4096).read_to_end(&mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

fn brain_text(path: &Path) -> &str {
    path.to_str().unwrap_or_default()
}

/// A thread puts an innocent file and a link to the brain in turn into the same place, while this one reads
/// it.
fn race(target: &Target) -> Result<String, Stopped> {
    let brain = target.path("brain")?;
    fs::write("innocent", "innocent")?;
    std::thread::spawn(move || {
        for _ in 0..20_000 {
            // The other one has just moved it away.
            let _ = fs::copy("innocent", "next").and_then(|_| fs::rename("next", "swapped"));
            let _ = symlink(&brain, "link").and_then(|()| fs::rename("link", "swapped"));
        }
    });
    let mut refused = None;
    for _ in 0..20_000 {
        match read(Path::new("swapped")) {
            Ok(text) if text.contains("secret") => return Ok(text),
            Err(Stopped::Refused(why)) if why.contains("os error 13") => refused = Some(why),
            // The innocent file, or nothing there just now.
            Ok(_) | Err(_) => {}
        }
    }
    Err(refused.map_or_else(|| Stopped::Unable("the link was never met".into()), Stopped::Refused))
}
