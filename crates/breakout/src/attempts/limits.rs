//! More than a program's share, and longer than its time.

use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use leash::Limits;

use super::attempt;
use crate::{Attempt, Bound, By, Control, Stopped, Target, raw};

/// How many processes or threads are too many.
const MANY: usize = 400;

/// How much memory, in MiB, is too much where nothing else is said, and how much is allowed.
const HUGE: usize = 512;
const MEMORY: u64 = 160 << 20;

/// How large a file, in MiB, is too large where `file=` does not say, and how large one may be.
const LARGE: usize = 64;
const FILE: u64 = 4 << 20;

/// How many files of a MiB are too many where `files=` does not say.
const FILES: usize = 4000;

const COSTLY: Control = Control::NotTried("it would cost the machine what the leash saves it");

/// See the module.
pub(super) const ALL: &[Attempt] = &[
    attempt("many-processes", "start processes without end", By::Limit(Bound::Processes), |_| {
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
    attempt("fork-bomb", "start processes that start processes", By::Limit(Bound::Processes), |_| {
        raw::perl("fork() while 1;", &[] as &[&str])
    })
    .limits(few)
    .control(COSTLY),
    attempt("many-threads", "start threads without end", By::Limit(Bound::Processes), |_| {
        for _ in 0..MANY {
            std::thread::Builder::new().stack_size(64 << 10).spawn(std::thread::park)?;
        }
        pause(Duration::from_millis(500));
        Ok(format!("{MANY} threads"))
    })
    .limits(few),
    attempt("large-file", "write a file that is too large", By::Limit(Bound::FileSize), large_file)
        .limits(small_files),
    attempt("many-files", "fill the disk with files that are not", By::Limit(Bound::Disk), |target| {
        let files = target.mebibytes("files", FILES)?;
        for number in 0..files {
            fs::write(format!("file-{number}"), vec![1; 1 << 20])?;
        }
        Ok(format!("{files} MiB"))
    })
    .limits(little_disk)
    .control(COSTLY),
    attempt(
        "sparse-file",
        "make a file that is too large without writing to it",
        By::Limit(Bound::FileSize),
        |target| {
            let mebibytes = target.mebibytes("file", LARGE)?;
            File::create("sparse")?.set_len(u64::try_from(mebibytes).unwrap_or(u64::MAX) << 20)?;
            Ok(format!("{mebibytes} MiB"))
        },
    )
    .limits(small_files),
    attempt("heap", "take more memory than is allowed", By::Limit(Bound::Memory), heap).limits(little_memory),
    attempt(
        "heap-of-many",
        "take it by several processes, each of which takes less",
        By::Limit(Bound::MemoryOfAll),
        heap_of_many,
    )
    .limits(little_memory)
    .control(COSTLY),
    attempt("shared-mapping", "take it as memory that is shared", By::Limit(Bound::MemoryOfAll), |target| {
        let mebibytes = target.mebibytes("shared", HUGE)?;
        raw::script(Command::new("python3").args([
            "-c",
            "import mmap,sys,time\nsize = int(sys.argv[1]) << 20\nm = mmap.mmap(-1, size)\n\
             for i in range(0, size, 4096): m[i] = 1\ntime.sleep(1)\nprint(sys.argv[1], 'MiB')",
            &mebibytes.to_string(),
        ]))
    })
    .limits(little_memory),
    attempt("anonymous-file", "take it as a file in memory", By::Calls, |_| {
        raw::call(libc::SYS_memfd_create, &["breakout".into(), 0.into()])
    })
    .limits(little_memory),
    attempt("endless-output", "write output without end", By::Limit(Bound::Output), |_| {
        let mut output = std::io::stdout().lock();
        loop {
            output.write_all(&[b'x'; 4096])?;
        }
    })
    .limits(little_time)
    .control(COSTLY),
    attempt("endless-work", "compute without end", By::Limit(Bound::Time), |_| {
        loop {
            std::hint::black_box(1);
        }
    })
    .limits(little_time)
    .control(COSTLY),
    attempt("deaf", "ignore all signals and sleep", By::Limit(Bound::Time), |_| {
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

/// Writes the last MiB of a large file: what lies before it takes no room.
fn large_file(target: &Target) -> Result<String, Stopped> {
    let mebibytes = target.mebibytes("file", LARGE)?;
    let mut file = File::create("large")?;
    file.seek(SeekFrom::Start(u64::try_from(mebibytes.saturating_sub(1)).unwrap_or(u64::MAX) << 20))?;
    file.write_all(&vec![1; 1 << 20])?;
    Ok(format!("{mebibytes} MiB"))
}

/// Takes all of it before it writes to any, so that nobody needs as much who has a limit.
fn heap(target: &Target) -> Result<String, Stopped> {
    let mebibytes = target.mebibytes("memory", HUGE)?;
    let mut blocks = Vec::new();
    for _ in 0..mebibytes {
        let mut block: Vec<u8> = Vec::new();
        block.try_reserve_exact(1 << 20).map_err(std::io::Error::other)?;
        blocks.push(block);
    }
    for block in &mut blocks {
        block.resize(1 << 20, 1);
    }
    Ok(format!("{} MiB", std::hint::black_box(blocks).len()))
}

/// Eight take an eighth each and keep it until all have theirs. Who is ended instead is counted.
fn heap_of_many(target: &Target) -> Result<String, Stopped> {
    let each = target.mebibytes("all", HUGE)? / 8;
    raw::perl(
        r#"
        my $size = $ARGV[0] << 20;
        pipe(my $taken, my $tells); pipe(my $waits, my $go);
        for (1 .. 8) {
            next if fork();
            close $go;
            my $x = 'x' x $size;
            syswrite($tells, '.'); close $tells;
            sysread($waits, my $end, 1);
            exit 0;
        }
        close $tells; close $waits;
        1 while sysread($taken, my $dot, 1);
        close $go;
        my $ended = 0;
        wait(), $? and $ended++ for 1 .. 8;
        if ($ended) { print "$ended of 8 were ended"; exit 10 }
        print "8 times $ARGV[0] MiB";"#,
        &[each.to_string()],
    )
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
