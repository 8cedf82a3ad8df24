//! More than a program's share, and longer than its time.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use leash::Limits;

use super::attempt;
use crate::{Attempt, By, Control, Stopped, raw};

/// How many processes or threads are too many.
const MANY: usize = 400;

/// How much memory, in MiB, is too much, and how much is allowed.
const HUGE: usize = 512;
const MEMORY: u64 = 160 << 20;

/// How large a file may be.
const FILE: u64 = 4 << 20;

const COSTLY: Control = Control::NotTried("it would cost the machine what the leash saves it");

/// See the module.
pub(super) const ALL: &[Attempt] = &[
    attempt("many-processes", "start processes without end", By::Limit, |_| {
        let mut children = Vec::new();
        for _ in 0..MANY {
            children.push(Command::new("sleep").arg("30").spawn()?);
        }
        for child in &mut children {
            child.kill()?;
            child.wait()?;
        }
        Ok(format!("{MANY} processes"))
    })
    .limits(few),
    attempt("fork-bomb", "start processes that start processes", By::Limit, |_| {
        raw::perl("fork() while 1;", &[] as &[&str])
    })
    .limits(few)
    .control(COSTLY),
    attempt("many-threads", "start threads without end", By::Limit, |_| {
        for _ in 0..MANY {
            std::thread::Builder::new().stack_size(64 << 10).spawn(std::thread::park)?;
        }
        pause(Duration::from_millis(500));
        Ok(format!("{MANY} threads"))
    })
    .limits(few),
    attempt("large-file", "write a file that is too large", By::Limit, |_| fill("large", 64))
        .limits(small_files),
    attempt("many-files", "fill the disk with files that are not", By::Limit, |_| {
        for number in 0..100_000 {
            fs::write(format!("file-{number}"), vec![1; 1 << 20])?;
            if number == 4000 {
                return Ok("4000 MiB".into());
            }
        }
        Ok("all".into())
    })
    .limits(little_disk)
    .control(COSTLY),
    attempt("sparse-file", "make a file of a petabyte without content", By::Limit, |_| {
        File::create("sparse")?.set_len(1 << 50)?;
        Ok("made".into())
    })
    .limits(small_files)
    .control(Control::NotTried("not every file system can hold it")),
    attempt("heap", "take more memory than is allowed", By::Limit, |_| {
        let mut blocks = Vec::new();
        for _ in 0..HUGE {
            let mut block = Vec::new();
            block.try_reserve_exact(1 << 20).map_err(std::io::Error::other)?;
            block.resize(1 << 20, 1_u8);
            blocks.push(block);
        }
        Ok(format!("{} MiB", std::hint::black_box(blocks).len()))
    })
    .limits(little_memory),
    attempt("heap-of-many", "take it by several processes, each of which takes less", By::Limit, |_| {
        raw::perl(
            "for (1 .. 8) { unless (fork()) { my $x = 'x' x (64 << 20); sleep 20; exit 0 } }
             select(undef, undef, undef, 2); print '512 MiB'; kill 'TERM', 0;",
            &[] as &[&str],
        )
    })
    .limits(little_memory)
    .control(COSTLY),
    attempt("shared-mapping", "take it as memory that is shared", By::Limit, |_| {
        raw::script(Command::new("python3").args([
            "-c",
            "import mmap,time\nm = mmap.mmap(-1, 512 << 20)\nfor i in range(0, 512 << 20, 4096): m[i] = 1\n\
             time.sleep(1)\nprint('512 MiB')",
        ]))
    })
    .limits(little_memory),
    attempt("anonymous-file", "take it as a file in memory", By::Calls, |_| {
        raw::call(libc::SYS_memfd_create, &["breakout".into(), 0.into()])
    })
    .limits(little_memory),
    attempt("endless-output", "write output without end", By::Limit, |_| {
        let mut output = std::io::stdout().lock();
        loop {
            output.write_all(&[b'x'; 4096])?;
        }
    })
    .limits(little_time)
    .control(COSTLY),
    attempt("endless-work", "compute without end", By::Limit, |_| {
        loop {
            std::hint::black_box(1);
        }
    })
    .limits(little_time)
    .control(COSTLY),
    attempt("deaf", "ignore all signals and sleep", By::Limit, |_| {
        raw::perl("$SIG{$_} = 'IGNORE' for keys %SIG; sleep 3600; print 'slept';", &[] as &[&str])
    })
    .limits(little_time)
    .control(COSTLY),
    attempt("daemon", "leave a process behind by two forks and a session of its own", By::Helper, |_| {
        outlive("$SIG{$_} = 'IGNORE' for qw(HUP TERM INT); POSIX::setsid(); exit 0 if fork();")
    }),
    attempt("nohup", "leave a process behind in the background", By::Helper, |_| outlive("")),
    attempt("stopped", "leave a stopped process behind", By::Helper, |_| outlive("kill 'STOP', $$;"))
        .control(Control::NotTried("it would stay")),
    attempt("many-daemons", "leave processes behind that start each other anew", By::Helper, |_| {
        outlive("for (1 .. 5) { POSIX::setsid(); exit 0 if fork(); fork(); }")
    })
    .control(Control::NotTried("they would stay")),
];

fn few(limits: &mut Limits) {
    limits.processes = 48;
    limits.time = Some(Duration::from_secs(10));
}

fn little_time(limits: &mut Limits) {
    limits.time = Some(Duration::from_secs(1));
}

fn little_memory(limits: &mut Limits) {
    limits.memory = MEMORY;
}

fn small_files(limits: &mut Limits) {
    limits.file_size = FILE;
}

/// What the suite finds free, less a little: see [`crate::stage`].
fn little_disk(limits: &mut Limits) {
    limits.disk_left = u64::MAX;
}

fn fill(name: &str, mebibytes: usize) -> Result<String, Stopped> {
    let mut file = File::create(name)?;
    for _ in 0..mebibytes {
        file.write_all(&vec![1; 1 << 20])?;
    }
    Ok(format!("{mebibytes} MiB"))
}

/// Leaves a process behind whose command line has the folder's name in it, by which the suite knows it.
fn outlive(how: &str) -> Result<String, Stopped> {
    let mark = std::env::current_dir()?;
    let script = format!("use POSIX; {how} sleep 600 while 1;");
    Command::new("perl")
        .args(["-e", &script, "--", "left-behind"])
        .arg(mark)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()?;
    pause(Duration::from_millis(300));
    Ok("left behind".into())
}

fn pause(time: Duration) {
    std::thread::park_timeout(time);
}
