//! Which system calls a program may make, by seccomp: doors that Landlock does not watch are shut here. What
//! is refused is listed; what the lists do not know yet is unknown to the program too.

use std::collections::BTreeMap;

use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, sock_filter,
};

/// Refusals of one kind: call by call, always or in these cases.
type DeniedSyscalls = BTreeMap<i64, Vec<SeccompRule>>;

/// Calls with this number or a higher one are newer than these lists. Those of the x32 mode have higher ones
/// too.
const FIRST_UNKNOWN_SYSCALL: u32 = 470;

/// Calls newer than the headers: setxattrat(2), removexattrat(2), `open_tree_attr(2)`, `file_setattr(2)`,
/// fchmodat2(2).
const SETXATTRAT: i64 = 463;
const REMOVEXATTRAT: i64 = 466;
const OPEN_TREE_ATTR: i64 = 467;
const FILE_SETATTR: i64 = 469;
const FCHMODAT2: i64 = 452;

/// Calls that a program has no need of and that reach other processes, the kernel's configuration or memory
/// that nobody accounts for.
const EPERM_SYSCALLS: &[i64] = &[
    // Other processes.
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_process_mrelease,
    libc::SYS_kcmp,
    libc::SYS_pidfd_getfd,
    libc::SYS_move_pages,
    libc::SYS_migrate_pages,
    // What is mounted, and other namespaces.
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_move_mount,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_open_tree,
    OPEN_TREE_ATTR,
    libc::SYS_mount_setattr,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_unshare,
    libc::SYS_setns,
    // Files by handle, around their folders, and by other ways that Landlock does not watch.
    libc::SYS_open_by_handle_at,
    libc::SYS_name_to_handle_at,
    FILE_SETATTR,
    libc::SYS_fanotify_init,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_acct,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    // Keyrings, and what runs in the kernel.
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_kexec_load,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_reboot,
    libc::SYS_syslog,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_vhangup,
    // Memory and queues that outlive their maker and that others with the same user reach.
    libc::SYS_shmget,
    libc::SYS_shmat,
    libc::SYS_shmctl,
    libc::SYS_msgget,
    libc::SYS_msgsnd,
    libc::SYS_msgrcv,
    libc::SYS_msgctl,
    libc::SYS_semget,
    libc::SYS_semop,
    libc::SYS_semtimedop,
    libc::SYS_semctl,
    libc::SYS_mq_open,
    libc::SYS_mq_unlink,
];

/// Those that this architecture alone has.
#[cfg(target_arch = "x86_64")]
const EPERM_SYSCALLS_ARCH: &[i64] = &[
    libc::SYS_kexec_file_load,
    libc::SYS_iopl,
    libc::SYS_ioperm,
    libc::SYS_modify_ldt,
    libc::SYS_uselib,
    libc::SYS_ustat,
    libc::SYS_sysfs,
    libc::SYS__sysctl,
];
#[cfg(not(target_arch = "x86_64"))]
const NEVER_HERE: &[i64] = &[];

/// Calls that a program does without where the kernel does not have them. clone3(2) and openat2(2) take their
/// arguments in memory, where they cannot be checked; memory of `memfd_create(2)` is nobody's until it is
/// mapped; inotify(7) tells names and changes in any folder that may be entered, which Landlock does not watch. Most
/// that would watch look from time to time where it is not there.
const ENOSYS_SYSCALLS: &[i64] = &[
    libc::SYS_clone3,
    libc::SYS_openat2,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_memfd_create,
    libc::SYS_memfd_secret,
    libc::SYS_inotify_init1,
    libc::SYS_inotify_add_watch,
];

/// Those that this architecture alone has.
#[cfg(target_arch = "x86_64")]
const ENOSYS_SYSCALLS_ARCH: &[i64] = &[libc::SYS_inotify_init];
#[cfg(not(target_arch = "x86_64"))]
const MISSING_HERE: &[i64] = &[];

/// Calls that change extended attributes, which Landlock does not watch. A program that copies files does
/// without them where the file system has none.
const EOPNOTSUPP_SYSCALLS: &[i64] = &[
    libc::SYS_setxattr,
    libc::SYS_lsetxattr,
    libc::SYS_fsetxattr,
    SETXATTRAT,
    libc::SYS_removexattr,
    libc::SYS_lremovexattr,
    libc::SYS_fremovexattr,
    REMOVEXATTRAT,
];

/// Refuses this thread, and what it becomes or starts, what a program may not do. It sets "no new
/// privileges".
pub(crate) fn enforce(network: bool) -> Result<(), String> {
    filter_programs(network).and_then(|programs| {
        programs
            .iter()
            .try_for_each(|program| seccompiler::apply_filter(program).map_err(|error| error.to_string()))
    })
}

/// The filters. Each has one answer for what it refuses, and refuses programs of other architectures
/// altogether.
fn filter_programs(network: bool) -> Result<Vec<BpfProgram>, String> {
    let refuse = |refusals: Result<DeniedSyscalls, BackendError>, error: i32| -> Result<BpfProgram, String> {
        let arch = TargetArch::try_from(std::env::consts::ARCH).map_err(|error| error.to_string())?;
        let error = SeccompAction::Errno(error.unsigned_abs());
        refusals
            .and_then(|refusals| SeccompFilter::new(refusals, SeccompAction::Allow, error, arch))
            .and_then(BpfProgram::try_from)
            .map_err(|error| error.to_string())
    };
    Ok(vec![
        refuse(denied_syscalls(), libc::EPERM)?,
        refuse(socket_rules(network), libc::EACCES)?,
        refuse(Ok(deny_always(EOPNOTSUPP_SYSCALLS)), libc::EOPNOTSUPP)?,
        refuse(Ok(deny_always(&[ENOSYS_SYSCALLS, ENOSYS_SYSCALLS_ARCH].concat())), libc::ENOSYS)?,
        deny_unknown(),
    ])
}

/// Refuses these calls in every case.
fn deny_always(calls: &[i64]) -> DeniedSyscalls {
    calls.iter().map(|call| (*call, Vec::new())).collect()
}

/// A filter under which calls that these lists do not know yet do not exist. Its opcodes are those of
/// `linux/filter.h`: load the number, return the error if it is high, else allow.
fn deny_unknown() -> BpfProgram {
    let step =
        |code: u32, jt: u8, jf: u8, k: u32| sock_filter { code: u16::try_from(code).unwrap_or(0), jt, jf, k };
    vec![
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        step(libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K, 0, 1, FIRST_UNKNOWN_SYSCALL),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | libc::ENOSYS.unsigned_abs()),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ]
}

/// A condition on an argument.
#[derive(Clone, Copy)]
enum ArgCondition {
    /// It is this, of its lower 32 bits, which are all the kernel reads of an `int`.
    Equal(u8, i32),
    /// It is not.
    NotEqual(u8, i32),
    /// It has all of these bits.
    HasBits(u8, u64),
    /// Its bits under this mask are these.
    MaskedEqual(u8, u64, u64),
    /// It is some pointer.
    NonZero(u8),
}

/// A case in which a call is refused: all of these hold.
fn rule_for(conditions: &[ArgCondition]) -> Result<SeccompRule, BackendError> {
    use SeccompCmpArgLen::{Dword, Qword};
    let unsigned = |value: i32| u64::from(value.cast_unsigned());
    let conditions = conditions.iter().map(|condition| match *condition {
        ArgCondition::Equal(argument, value) => {
            SeccompCondition::new(argument, Dword, SeccompCmpOp::Eq, unsigned(value))
        }
        ArgCondition::NotEqual(argument, value) => {
            SeccompCondition::new(argument, Dword, SeccompCmpOp::Ne, unsigned(value))
        }
        ArgCondition::HasBits(argument, bits) => {
            SeccompCondition::new(argument, Qword, SeccompCmpOp::MaskedEq(bits), bits)
        }
        ArgCondition::MaskedEqual(argument, mask, bits) => {
            SeccompCondition::new(argument, Qword, SeccompCmpOp::MaskedEq(mask), bits)
        }
        ArgCondition::NonZero(argument) => SeccompCondition::new(argument, Qword, SeccompCmpOp::Ne, 0),
    });
    SeccompRule::new(conditions.collect::<Result<_, _>>()?)
}

/// All that is forbidden but sockets.
fn denied_syscalls() -> Result<DeniedSyscalls, BackendError> {
    let mut refusals = deny_always(EPERM_SYSCALLS);
    refusals.append(&mut deny_always(EPERM_SYSCALLS_ARCH));
    let mut refuse = |call: i64, cases: &[&[ArgCondition]]| -> Result<(), BackendError> {
        let cases = cases.iter().map(|conditions| rule_for(conditions)).collect::<Result<Vec<_>, _>>()?;
        refusals.entry(call).or_default().extend(cases);
        Ok(())
    };
    for namespace in [
        libc::CLONE_NEWUSER,
        libc::CLONE_NEWNS,
        libc::CLONE_NEWPID,
        libc::CLONE_NEWNET,
        libc::CLONE_NEWIPC,
        libc::CLONE_NEWUTS,
        libc::CLONE_NEWCGROUP,
    ] {
        refuse(libc::SYS_clone, &[&[ArgCondition::HasBits(0, u64::from(namespace.unsigned_abs()))]])?;
    }
    // Typing into a terminal, and what a console can do besides.
    for request in [libc::TIOCSTI, libc::TIOCLINUX, libc::TIOCSCTTY] {
        let request = i32::try_from(request).unwrap_or_default();
        refuse(libc::SYS_ioctl, &[&[ArgCondition::Equal(1, request)]])?;
    }
    // To ask which personality one has is no change.
    refuse(libc::SYS_personality, &[&[ArgCondition::NotEqual(0, 0), ArgCondition::NotEqual(0, -1)]])?;
    deny_other_process_limits(&mut refuse)?;
    deny_setuid_files(&mut refuse)?;
    Ok(refusals)
}

/// The limits and priorities of others: of all with the same user, the engine among them.
fn deny_other_process_limits(
    refuse: &mut impl FnMut(i64, &[&[ArgCondition]]) -> Result<(), BackendError>,
) -> Result<(), BackendError> {
    for call in [
        libc::SYS_prlimit64,
        libc::SYS_sched_setaffinity,
        libc::SYS_sched_setattr,
        libc::SYS_sched_setparam,
        libc::SYS_sched_setscheduler,
    ] {
        refuse(call, &[&[ArgCondition::NotEqual(0, 0)]])?;
    }
    // Of the third kind, "a user", 0 is all that one has; the other kinds' 0 is oneself.
    let user = i32::try_from(libc::PRIO_USER).unwrap_or(2);
    refuse(libc::SYS_setpriority, &[&[ArgCondition::NotEqual(1, 0)], &[ArgCondition::Equal(0, user)]])?;
    refuse(libc::SYS_ioprio_set, &[&[ArgCondition::NotEqual(1, 0)], &[ArgCondition::Equal(0, 3)]])
}

/// To make a file that runs as its owner: a door for others, where an engine runs as root.
fn deny_setuid_files(
    refuse: &mut impl FnMut(i64, &[&[ArgCondition]]) -> Result<(), BackendError>,
) -> Result<(), BackendError> {
    for bit in [u64::from(libc::S_ISUID), u64::from(libc::S_ISGID)] {
        refuse(libc::SYS_fchmod, &[&[ArgCondition::HasBits(1, bit)]])?;
        refuse(libc::SYS_fchmodat, &[&[ArgCondition::HasBits(2, bit)]])?;
        refuse(FCHMODAT2, &[&[ArgCondition::HasBits(2, bit)]])?;
        refuse(libc::SYS_mknodat, &[&[ArgCondition::HasBits(2, bit)]])?;
        // The mode is read where a file may be made, and may hold anything where not.
        let creates = |flags: u8| {
            [libc::O_CREAT, libc::O_TMPFILE & !libc::O_DIRECTORY]
                .map(|flag| ArgCondition::HasBits(flags, u64::from(flag.unsigned_abs())))
        };
        for made in creates(2) {
            refuse(libc::SYS_openat, &[&[made, ArgCondition::HasBits(3, bit)]])?;
        }
        #[cfg(target_arch = "x86_64")]
        {
            refuse(libc::SYS_chmod, &[&[ArgCondition::HasBits(1, bit)]])?;
            refuse(libc::SYS_creat, &[&[ArgCondition::HasBits(1, bit)]])?;
            refuse(libc::SYS_mknod, &[&[ArgCondition::HasBits(1, bit)]])?;
            for made in creates(1) {
                refuse(libc::SYS_open, &[&[made, ArgCondition::HasBits(2, bit)]])?;
            }
        }
    }
    Ok(())
}

/// Sockets: none without the network; with it those of the internet, and the one by which the C library
/// learns of the machine's addresses. Pairs of them are pipes, unless they are of datagrams: those reach
/// others' sockets.
fn socket_rules(network: bool) -> Result<DeniedSyscalls, BackendError> {
    let mut refusals = DeniedSyscalls::new();
    let kind = |kind: i32| rule_for(&[ArgCondition::MaskedEqual(1, 0xf, u64::from(kind.unsigned_abs()))]);
    refusals.insert(
        libc::SYS_socketpair,
        vec![
            rule_for(&[ArgCondition::NotEqual(0, libc::AF_UNIX)])?,
            kind(libc::SOCK_DGRAM)?,
            kind(libc::SOCK_RAW)?,
        ],
    );
    if network {
        let elsewhere = [
            ArgCondition::NotEqual(0, libc::AF_INET),
            ArgCondition::NotEqual(0, libc::AF_INET6),
            ArgCondition::NotEqual(0, libc::AF_NETLINK),
        ];
        let other_netlink =
            [ArgCondition::Equal(0, libc::AF_NETLINK), ArgCondition::NotEqual(2, libc::NETLINK_ROUTE)];
        refusals.insert(libc::SYS_socket, vec![rule_for(&elsewhere)?, rule_for(&other_netlink)?]);
    } else {
        for call in [libc::SYS_socket, libc::SYS_connect, libc::SYS_bind, libc::SYS_listen] {
            refusals.insert(call, Vec::new());
        }
        refusals.insert(libc::SYS_sendto, vec![rule_for(&[ArgCondition::NonZero(4)])?]);
    }
    Ok(refusals)
}

#[cfg(test)]
#[path = "seccomp_tests.rs"]
mod tests;
