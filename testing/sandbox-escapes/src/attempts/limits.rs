//! Attempts to exceed resource limits, and to leave processes behind.

use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use sandbox::Limits;

use super::attempt;
use crate::{Attempt, AttemptError, Control, LimitKind, Mechanism, Target, raw_syscall};

/// A number of processes or threads that exceeds the limit.
const EXCESS_PROCESSES: usize = 400;

/// The memory that attempts allocate by default, in MiB, and the limit that it exceeds.
const EXCESS_MEMORY_MIB: usize = 512;
const MEMORY_LIMIT_BYTES: u64 = 160 << 20;

/// The size of file that attempts write unless `file=` is given, in MiB, and the limit that it exceeds.
const EXCESS_FILE_MIB: usize = 64;
const FILE_SIZE_LIMIT_BYTES: u64 = 4 << 20;

/// The number of files of 1 MiB that an attempt writes unless `files=` is given.
const EXCESS_FILE_COUNT: usize = 4000;

const TOO_COSTLY: Control = Control::NotTried("it would cost the machine what the sandbox saves it");

/// The attempts of this group.
pub(super) const ALL: &[Attempt] = &[
    attempt("many-processes", "start processes without end", Mechanism::Limit(LimitKind::Processes), |_| {
        let mut children = Vec::new();
        for _ in 0..EXCESS_PROCESSES {
            children.push(Command::new("sleep").arg("30").spawn()?);
        }
        for child in &mut children {
            child.kill()?;
            child.wait()?;
        }
        Ok(format!("{EXCESS_PROCESSES} processes"))
    })
    .with_limits(limit_processes),
    attempt(
        "fork-bomb",
        "start processes that start processes",
        Mechanism::Limit(LimitKind::Processes),
        |_| raw_syscall::run_perl("fork() while 1;", &[] as &[&str]),
    )
    .with_limits(limit_processes)
    .with_control(TOO_COSTLY),
    attempt("many-threads", "start threads without end", Mechanism::Limit(LimitKind::Processes), |_| {
        for _ in 0..EXCESS_PROCESSES {
            std::thread::Builder::new().stack_size(64 << 10).spawn(std::thread::park)?;
        }
        sleep(Duration::from_millis(500));
        Ok(format!("{EXCESS_PROCESSES} threads"))
    })
    .with_limits(limit_processes),
    attempt(
        "large-file",
        "write a file that is too large",
        Mechanism::Limit(LimitKind::FileSize),
        write_large_file,
    )
    .with_limits(limit_file_size),
    attempt(
        "many-files",
        "fill the disk with files that are not",
        Mechanism::Limit(LimitKind::Disk),
        |target| {
            let files = target.mebibytes("files", EXCESS_FILE_COUNT)?;
            for number in 0..files {
                fs::write(format!("file-{number}"), vec![1; 1 << 20])?;
            }
            Ok(format!("{files} MiB"))
        },
    )
    .with_limits(limit_disk)
    .with_control(TOO_COSTLY),
    attempt(
        "sparse-file",
        "make a file that is too large without writing to it",
        Mechanism::Limit(LimitKind::FileSize),
        |target| {
            let mebibytes = target.mebibytes("file", EXCESS_FILE_MIB)?;
            File::create("sparse")?.set_len(u64::try_from(mebibytes).unwrap_or(u64::MAX) << 20)?;
            Ok(format!("{mebibytes} MiB"))
        },
    )
    .with_limits(limit_file_size),
    attempt("heap", "take more memory than is allowed", Mechanism::Limit(LimitKind::Memory), allocate_heap)
        .with_limits(limit_memory),
    attempt(
        "heap-of-many",
        "take it by several processes, each of which takes less",
        Mechanism::Limit(LimitKind::TotalMemory),
        allocate_heap_in_many,
    )
    .with_limits(limit_memory)
    .with_control(TOO_COSTLY),
    attempt(
        "shared-mapping",
        "take it as memory that is shared",
        Mechanism::Limit(LimitKind::TotalMemory),
        |target| {
            let mebibytes = target.mebibytes("shared", EXCESS_MEMORY_MIB)?;
            raw_syscall::run_script(Command::new("python3").args([
                "-c",
                "import mmap,sys,time\nsize = int(sys.argv[1]) << 20\nm = mmap.mmap(-1, size)\n\
             for i in range(0, size, 4096): m[i] = 1\ntime.sleep(1)\nprint(sys.argv[1], 'MiB')",
                &mebibytes.to_string(),
            ]))
        },
    )
    .with_limits(limit_memory),
    attempt("anonymous-file", "take it as a file in memory", Mechanism::Seccomp, |_| {
        raw_syscall::syscall(libc::SYS_memfd_create, &["breakout".into(), 0.into()])
    })
    .with_limits(limit_memory),
    attempt("endless-output", "write output without end", Mechanism::Limit(LimitKind::Output), |_| {
        let mut output = std::io::stdout().lock();
        loop {
            output.write_all(&[b'x'; 4096])?;
        }
    })
    .with_limits(limit_time)
    .with_control(TOO_COSTLY),
    attempt("endless-work", "compute without end", Mechanism::Limit(LimitKind::Time), |_| {
        loop {
            std::hint::black_box(1);
        }
    })
    .with_limits(limit_time)
    .with_control(TOO_COSTLY),
    attempt("deaf", "ignore all signals and sleep", Mechanism::Limit(LimitKind::Time), |_| {
        raw_syscall::run_perl("$SIG{$_} = 'IGNORE' for keys %SIG; sleep 3600; print 'slept';", &[] as &[&str])
    })
    .with_limits(limit_time)
    .with_control(TOO_COSTLY),
    attempt(
        "daemon",
        "leave a process behind by two forks and a session of its own",
        Mechanism::HelperCleanup,
        |_| {
            leave_process_behind(
                "$SIG{$_} = 'IGNORE' for qw(HUP TERM INT); POSIX::setsid(); exit 0 if fork();",
            )
        },
    ),
    attempt("nohup", "leave a process behind in the background", Mechanism::HelperCleanup, |_| {
        leave_process_behind("")
    }),
    attempt("stopped", "leave a stopped process behind", Mechanism::HelperCleanup, |_| {
        leave_process_behind("kill 'STOP', $$;")
    })
    .with_control(Control::NotTried("it would stay")),
    attempt(
        "many-daemons",
        "leave processes behind that start each other anew",
        Mechanism::HelperCleanup,
        |_| leave_process_behind("for (1 .. 5) { POSIX::setsid(); exit 0 if fork(); fork(); }"),
    )
    .with_control(Control::NotTried("they would stay")),
];

fn limit_processes(limits: &mut Limits) {
    limits.processes = 48;
    limits.time = Some(Duration::from_secs(10));
}

fn limit_time(limits: &mut Limits) {
    limits.time = Some(Duration::from_secs(1));
}

fn limit_memory(limits: &mut Limits) {
    limits.memory = MEMORY_LIMIT_BYTES;
}

fn limit_file_size(limits: &mut Limits) {
    limits.file_size = FILE_SIZE_LIMIT_BYTES;
}

/// Stands for a little less than the free space: [`crate::environment`] replaces the value.
fn limit_disk(limits: &mut Limits) {
    limits.disk_left = u64::MAX;
}

/// Writes only the last MiB of a large file. The hole before it uses no disk space.
fn write_large_file(target: &Target) -> Result<String, AttemptError> {
    let mebibytes = target.mebibytes("file", EXCESS_FILE_MIB)?;
    let mut file = File::create("large")?;
    file.seek(SeekFrom::Start(u64::try_from(mebibytes.saturating_sub(1)).unwrap_or(u64::MAX) << 20))?;
    file.write_all(&vec![1; 1 << 20])?;
    Ok(format!("{mebibytes} MiB"))
}

/// Reserves all the memory before it writes to any of it, so that under a limit the attempt fails before it uses
/// much memory.
fn allocate_heap(target: &Target) -> Result<String, AttemptError> {
    let mebibytes = target.mebibytes("memory", EXCESS_MEMORY_MIB)?;
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

/// Eight processes allocate an eighth each, and keep it until all have theirs. The attempt was refused if any of
/// them was killed.
fn allocate_heap_in_many(target: &Target) -> Result<String, AttemptError> {
    let each = target.mebibytes("all", EXCESS_MEMORY_MIB)? / 8;
    raw_syscall::run_perl(
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

/// Leaves a process behind. Its command line contains the current folder, by which the suite finds it.
fn leave_process_behind(how: &str) -> Result<String, AttemptError> {
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
    sleep(Duration::from_millis(300));
    Ok("left behind".into())
}

fn sleep(time: Duration) {
    std::thread::park_timeout(time);
}
