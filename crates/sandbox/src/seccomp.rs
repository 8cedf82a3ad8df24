//! The seccomp filters of a program. They close the ways out of the sandbox that Landlock does not cover. Denied
//! calls are listed here; calls that are newer than the lists fail as if the kernel lacked them.

use std::collections::BTreeMap;

use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, sock_filter,
};

/// The calls that one filter denies, by number: in the listed cases, or always if there are none.
type DeniedSyscalls = BTreeMap<i64, Vec<SeccompRule>>;

/// Calls with this number or a higher one are newer than these lists. The calls of the x32 ABI have higher numbers
/// too.
const FIRST_UNKNOWN_SYSCALL: u32 = 470;

/// Calls that are newer than the headers: setxattrat(2), removexattrat(2), `open_tree_attr(2)`,
/// `file_setattr(2)`, fchmodat2(2).
const SETXATTRAT: i64 = 463;
const REMOVEXATTRAT: i64 = 466;
const OPEN_TREE_ATTR: i64 = 467;
const FILE_SETATTR: i64 = 469;
const FCHMODAT2: i64 = 452;

/// Calls that programs do not need, and that affect other processes, the kernel's configuration or memory that is
/// not accounted for.
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
    // Mounts and namespaces.
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
    // Access to files by handle, which bypasses their folders, and in other ways that Landlock does not restrict.
    libc::SYS_open_by_handle_at,
    libc::SYS_name_to_handle_at,
    FILE_SETATTR,
    libc::SYS_fanotify_init,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_acct,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    // Keyrings, code in the kernel, and settings of the whole machine.
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
    // Memory and queues that outlive their creator and are accessible to other processes of the same user.
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

/// More calls of the same kind that exist only on this architecture.
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
const EPERM_SYSCALLS_ARCH: &[i64] = &[];

/// Calls that programs replace by others if the kernel lacks them. clone3(2) and openat2(2) take their arguments
/// in memory, where a filter cannot check them. Memory of `memfd_create(2)` counts for no process until it is
/// mapped. inotify(7) reveals names and changes in any folder that may be entered, which Landlock does not
/// restrict; without it, most programs poll.
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

/// More calls of the same kind that exist only on this architecture.
#[cfg(target_arch = "x86_64")]
const ENOSYS_SYSCALLS_ARCH: &[i64] = &[libc::SYS_inotify_init];
#[cfg(not(target_arch = "x86_64"))]
const ENOSYS_SYSCALLS_ARCH: &[i64] = &[];

/// Calls that change extended attributes, which Landlock does not restrict. Programs that copy files do without
/// them if the file system does not support them.
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

/// Applies the filters to this thread, the program that it executes, and its descendants. It also sets "no new
/// privileges".
pub(crate) fn enforce(network: bool) -> Result<(), String> {
    filter_programs(network).and_then(|programs| {
        programs
            .iter()
            .try_for_each(|program| seccompiler::apply_filter(program).map_err(|error| error.to_string()))
    })
}

/// Builds the filters. Each returns one error number for the calls that it denies, and allows no call of another
/// architecture.
fn filter_programs(network: bool) -> Result<Vec<BpfProgram>, String> {
    let deny = |denied: Result<DeniedSyscalls, BackendError>, errno: i32| -> Result<BpfProgram, String> {
        let arch = TargetArch::try_from(std::env::consts::ARCH).map_err(|error| error.to_string())?;
        let action = SeccompAction::Errno(errno.unsigned_abs());
        denied
            .and_then(|denied| SeccompFilter::new(denied, SeccompAction::Allow, action, arch))
            .and_then(BpfProgram::try_from)
            .map_err(|error| error.to_string())
    };
    Ok(vec![
        deny(denied_syscalls(), libc::EPERM)?,
        deny(socket_rules(network), libc::EACCES)?,
        deny(Ok(deny_always(EOPNOTSUPP_SYSCALLS)), libc::EOPNOTSUPP)?,
        deny(Ok(deny_always(&[ENOSYS_SYSCALLS, ENOSYS_SYSCALLS_ARCH].concat())), libc::ENOSYS)?,
        deny_unknown(),
    ])
}

/// Denies these calls whatever their arguments are.
fn deny_always(calls: &[i64]) -> DeniedSyscalls {
    calls.iter().map(|call| (*call, Vec::new())).collect()
}

/// Builds a filter that fails calls newer than these lists with `ENOSYS`. Its opcodes are those of
/// `linux/filter.h`: load the number, return the error if it is too high, otherwise allow.
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

/// A condition on an argument. The first field is the argument's index.
#[derive(Clone, Copy)]
enum ArgCondition {
    /// Its lower 32 bits, which are all that the kernel reads of an `int`, have this value.
    Equal(u8, i32),
    /// Its lower 32 bits have another value.
    NotEqual(u8, i32),
    /// It has all of these bits.
    HasBits(u8, u64),
    /// Under the mask (the second field), its bits are those of the third field.
    MaskedEqual(u8, u64, u64),
    /// It is a pointer other than null.
    NonZero(u8),
}

/// Builds a rule that denies a call if all of these conditions hold.
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

/// The calls denied with `EPERM`.
fn denied_syscalls() -> Result<DeniedSyscalls, BackendError> {
    let mut denied = deny_always(EPERM_SYSCALLS);
    denied.append(&mut deny_always(EPERM_SYSCALLS_ARCH));
    let mut deny = |call: i64, cases: &[&[ArgCondition]]| -> Result<(), BackendError> {
        let rules = cases.iter().map(|conditions| rule_for(conditions)).collect::<Result<Vec<_>, _>>()?;
        denied.entry(call).or_default().extend(rules);
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
        deny(libc::SYS_clone, &[&[ArgCondition::HasBits(0, u64::from(namespace.unsigned_abs()))]])?;
    }
    // Input into a terminal, control of a console, and taking a controlling terminal.
    for request in [libc::TIOCSTI, libc::TIOCLINUX, libc::TIOCSCTTY] {
        let request = i32::try_from(request).unwrap_or_default();
        deny(libc::SYS_ioctl, &[&[ArgCondition::Equal(1, request)]])?;
    }
    // 0 is the default personality, and -1 only queries the current one.
    deny(libc::SYS_personality, &[&[ArgCondition::NotEqual(0, 0), ArgCondition::NotEqual(0, -1)]])?;
    deny_other_process_limits(&mut deny)?;
    deny_setuid_files(&mut deny)?;
    Ok(denied)
}

/// Denies changing the limits and priorities of other processes of the same user, such as the engine.
fn deny_other_process_limits(
    deny: &mut impl FnMut(i64, &[&[ArgCondition]]) -> Result<(), BackendError>,
) -> Result<(), BackendError> {
    for call in [
        libc::SYS_prlimit64,
        libc::SYS_sched_setaffinity,
        libc::SYS_sched_setattr,
        libc::SYS_sched_setparam,
        libc::SYS_sched_setscheduler,
    ] {
        deny(call, &[&[ArgCondition::NotEqual(0, 0)]])?;
    }
    // The id 0 means the caller's own process or group, but for the kind "user" all processes of its user.
    let user = i32::try_from(libc::PRIO_USER).unwrap_or(2);
    deny(libc::SYS_setpriority, &[&[ArgCondition::NotEqual(1, 0)], &[ArgCondition::Equal(0, user)]])?;
    deny(libc::SYS_ioprio_set, &[&[ArgCondition::NotEqual(1, 0)], &[ArgCondition::Equal(0, 3)]])
}

/// Denies making set-user-id and set-group-id files: if the engine runs as root, other users could run them as
/// root.
fn deny_setuid_files(
    deny: &mut impl FnMut(i64, &[&[ArgCondition]]) -> Result<(), BackendError>,
) -> Result<(), BackendError> {
    for bit in [u64::from(libc::S_ISUID), u64::from(libc::S_ISGID)] {
        deny(libc::SYS_fchmod, &[&[ArgCondition::HasBits(1, bit)]])?;
        deny(libc::SYS_fchmodat, &[&[ArgCondition::HasBits(2, bit)]])?;
        deny(FCHMODAT2, &[&[ArgCondition::HasBits(2, bit)]])?;
        deny(libc::SYS_mknodat, &[&[ArgCondition::HasBits(2, bit)]])?;
        // The kernel reads the mode only if the call may create a file; otherwise the argument may be anything.
        let creates = |flags: u8| {
            [libc::O_CREAT, libc::O_TMPFILE & !libc::O_DIRECTORY]
                .map(|flag| ArgCondition::HasBits(flags, u64::from(flag.unsigned_abs())))
        };
        for creating in creates(2) {
            deny(libc::SYS_openat, &[&[creating, ArgCondition::HasBits(3, bit)]])?;
        }
        #[cfg(target_arch = "x86_64")]
        {
            deny(libc::SYS_chmod, &[&[ArgCondition::HasBits(1, bit)]])?;
            deny(libc::SYS_creat, &[&[ArgCondition::HasBits(1, bit)]])?;
            deny(libc::SYS_mknod, &[&[ArgCondition::HasBits(1, bit)]])?;
            for creating in creates(1) {
                deny(libc::SYS_open, &[&[creating, ArgCondition::HasBits(2, bit)]])?;
            }
        }
    }
    Ok(())
}

/// The calls on sockets that are denied with `EACCES`. Without the network all sockets are denied. With it, IPv4
/// and IPv6 are allowed, and the routing socket through which the C library lists the machine's addresses. Socket
/// pairs serve as pipes and are always allowed, except for datagram pairs, which can send to other sockets.
fn socket_rules(network: bool) -> Result<DeniedSyscalls, BackendError> {
    let mut denied = DeniedSyscalls::new();
    let kind = |kind: i32| rule_for(&[ArgCondition::MaskedEqual(1, 0xf, u64::from(kind.unsigned_abs()))]);
    denied.insert(
        libc::SYS_socketpair,
        vec![
            rule_for(&[ArgCondition::NotEqual(0, libc::AF_UNIX)])?,
            kind(libc::SOCK_DGRAM)?,
            kind(libc::SOCK_RAW)?,
        ],
    );
    if network {
        let other_family = [
            ArgCondition::NotEqual(0, libc::AF_INET),
            ArgCondition::NotEqual(0, libc::AF_INET6),
            ArgCondition::NotEqual(0, libc::AF_NETLINK),
        ];
        let other_netlink =
            [ArgCondition::Equal(0, libc::AF_NETLINK), ArgCondition::NotEqual(2, libc::NETLINK_ROUTE)];
        denied.insert(libc::SYS_socket, vec![rule_for(&other_family)?, rule_for(&other_netlink)?]);
    } else {
        for call in [libc::SYS_socket, libc::SYS_connect, libc::SYS_bind, libc::SYS_listen] {
            denied.insert(call, Vec::new());
        }
        denied.insert(libc::SYS_sendto, vec![rule_for(&[ArgCondition::NonZero(4)])?]);
    }
    Ok(denied)
}

#[cfg(test)]
#[path = "../tests/unit/seccomp.rs"]
mod tests;
