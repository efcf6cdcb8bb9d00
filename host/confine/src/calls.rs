//! The system calls that each kind of thread makes, and those that nobody but an attacker makes.
//!
//! Found by running every test of the daemon under `strace -f`, and kept by running them with
//! `SIDECORE_CONFINE=strict`, in which a call that is missing here kills the daemon. A call that is
//! not on a list is refused with EPERM, which is what the C library and ours are told then.

use libc::c_long;

use crate::Kind;

/// A call that is allowed with some values of one argument only; its lower 32 bits are compared.
pub(crate) struct Check {
    pub(crate) call: c_long,
    pub(crate) argument: u8,
    /// The bits that are compared; all of them without.
    pub(crate) mask: Option<u64>,
    pub(crate) values: Vec<u64>,
}

/// They end the process, whoever makes them: other programs, other processes' memory, mounts, code in
/// the kernel, identities, clocks.
pub(crate) const FATAL: &[c_long] = &[
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_reboot,
    libc::SYS_kexec_load,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_setuid,
    libc::SYS_setgid,
    libc::SYS_setreuid,
    libc::SYS_setregid,
    libc::SYS_setresuid,
    libc::SYS_setresgid,
    libc::SYS_setfsuid,
    libc::SYS_setfsgid,
    libc::SYS_setgroups,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    libc::SYS_userfaultfd,
    libc::SYS_perf_event_open,
    libc::SYS_open_by_handle_at,
    libc::SYS_quotactl,
    libc::SYS_acct,
    libc::SYS_syslog,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_iopl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ioperm,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_modify_ldt,
];

/// Of these, what starting an heir takes: its program, and in it what sees which vCPUs run.
pub(crate) const OF_A_START: &[c_long] = &[libc::SYS_execve, libc::SYS_perf_event_open];

/// Refused to all threads but control and openers, and no sign of a call that is missing: when the C library gives
/// memory back, it asks `/proc` whether it may, and does without.
pub(crate) const TRIED: &[c_long] = &[libc::SYS_openat];

/// What it takes to be a thread: memory, locks, signals, an end; and a line into the log.
const LIFE: &[c_long] = &[
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_close,
    libc::SYS_futex,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_brk,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_restart_syscall,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_getrandom,
    libc::SYS_rseq,
    libc::SYS_set_robust_list,
    libc::SYS_exit,
    libc::SYS_exit_group,
    // The way back from a lost page (`guest_memory::recover_from_sigbus`), when the kernel grants no
    // private memory.
    libc::SYS_memfd_create,
    libc::SYS_ftruncate,
];

/// A disk's sync.
const PARTING: &[c_long] = &[libc::SYS_fdatasync, libc::SYS_fsync];

/// Names, images, and what `/proc` says of who has one.
const OPENER: &[c_long] = &[
    libc::SYS_openat,
    libc::SYS_openat2,
    libc::SYS_statx,
    libc::SYS_newfstatat,
    libc::SYS_fstat,
    libc::SYS_fstatfs,
    libc::SYS_getxattr,
    libc::SYS_statfs,
    libc::SYS_lseek,
    libc::SYS_getdents64,
    libc::SYS_getcwd,
    libc::SYS_readlinkat,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    // An image that was made in vain.
    libc::SYS_renameat2,
    libc::SYS_unlinkat,
    libc::SYS_fcntl,
    libc::SYS_flock,
    libc::SYS_fallocate,
    libc::SYS_fadvise64,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    // Of a folder that cannot be read.
    libc::SYS_syncfs,
    libc::SYS_pread64,
    // The label of an image.
    libc::SYS_fgetxattr,
    libc::SYS_fsetxattr,
    libc::SYS_dup,
    libc::SYS_eventfd2,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_register,
    libc::SYS_geteuid,
    libc::SYS_uname,
];

/// The forms of these that C libraries on x86-64 still use.
#[cfg(target_arch = "x86_64")]
const OPENER_OLD: &[c_long] =
    &[libc::SYS_open, libc::SYS_stat, libc::SYS_lstat, libc::SYS_access, libc::SYS_readlink];
#[cfg(not(target_arch = "x86_64"))]
const OPENER_OLD: &[c_long] = &[];

/// Where there are older forms of the same calls.
#[cfg(target_arch = "x86_64")]
const LIFE_OLD: &[c_long] = &[libc::SYS_gettimeofday, libc::SYS_time];
#[cfg(not(target_arch = "x86_64"))]
const LIFE_OLD: &[c_long] = &[libc::SYS_gettimeofday];

/// Waiting for descriptors.
const WAIT: &[c_long] = &[
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_ppoll,
    libc::SYS_eventfd2,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_epoll_wait,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_poll,
];

/// The alarm, which ends a write to a front-end's eventfd that waits.
const ALARM: &[c_long] = &[libc::SYS_timer_create, libc::SYS_timer_settime, libc::SYS_timer_delete];

/// Rings, images, frames.
const SIDECORE: &[c_long] = &[
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_register,
    libc::SYS_sched_setaffinity,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_preadv,
    libc::SYS_preadv2,
    libc::SYS_pwritev,
    libc::SYS_pwritev2,
    libc::SYS_fallocate,
    libc::SYS_fdatasync,
    libc::SYS_readv,
    libc::SYS_recvfrom,
    libc::SYS_sendmsg,
    libc::SYS_sendmmsg,
    libc::SYS_recvmmsg,
    libc::SYS_getsockopt,
];

/// HTTP on a Unix socket that control has opened.
const API: &[c_long] = &[
    libc::SYS_accept4,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_sendmsg,
    libc::SYS_shutdown,
    libc::SYS_getsockopt,
    libc::SYS_fcntl,
];

/// Control: files, sockets, descriptors of others, threads. Also processes of its own, and descriptors
/// sent and received: for an upgrade.
const CONTROL: &[c_long] = &[
    libc::SYS_openat,
    libc::SYS_openat2,
    libc::SYS_statx,
    libc::SYS_newfstatat,
    libc::SYS_fstat,
    libc::SYS_fstatfs,
    libc::SYS_statfs,
    // The label of an image.
    libc::SYS_fgetxattr,
    libc::SYS_fsetxattr,
    libc::SYS_lseek,
    libc::SYS_getdents64,
    libc::SYS_getcwd,
    libc::SYS_readlinkat,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_mkdirat,
    libc::SYS_unlinkat,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    // An ACL of a socket.
    libc::SYS_getxattr,
    libc::SYS_removexattr,
    libc::SYS_umask,
    libc::SYS_fsync,
    libc::SYS_fadvise64,
    libc::SYS_flock,
    libc::SYS_fcntl,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_pipe2,
    libc::SYS_mincore,
    libc::SYS_get_mempolicy,
    libc::SYS_socketpair,
    libc::SYS_bind,
    libc::SYS_listen,
    libc::SYS_accept4,
    libc::SYS_connect,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_sendto,
    libc::SYS_setsockopt,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_shutdown,
    libc::SYS_pidfd_open,
    libc::SYS_pidfd_send_signal,
    libc::SYS_waitid,
    libc::SYS_wait4,
    libc::SYS_kill,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_getppid,
    libc::SYS_uname,
    libc::SYS_prlimit64,
    libc::SYS_sysinfo,
    // What a closer, a thread made later, does to itself first.
    libc::SYS_capget,
    // Whether a socket can be given to a group.
    libc::SYS_getgroups,
    libc::SYS_capset,
    libc::SYS_seccomp,
    // Answered ENOSYS by a filter of its own, so that `clone` is called instead.
    libc::SYS_clone3,
];

/// The forms of these that C libraries on x86-64 still use.
#[cfg(target_arch = "x86_64")]
const CONTROL_OLD: &[c_long] = &[
    libc::SYS_open,
    libc::SYS_stat,
    libc::SYS_lstat,
    libc::SYS_access,
    libc::SYS_readlink,
    libc::SYS_mkdir,
    libc::SYS_rmdir,
    libc::SYS_unlink,
    libc::SYS_rename,
    libc::SYS_chmod,
    libc::SYS_dup2,
    libc::SYS_getrlimit,
];
#[cfg(not(target_arch = "x86_64"))]
const CONTROL_OLD: &[c_long] = &[];

/// Calls that are allowed whatever their arguments; XDP's program is loaded by `bpf`, for who may.
pub(crate) fn of(kind: Kind, networks: bool, programs: bool) -> Vec<c_long> {
    let own: &[&[c_long]] = match kind {
        Kind::Sidecore => &[WAIT, ALARM, SIDECORE],
        Kind::Api => &[WAIT, API],
        Kind::Closer => &[ALARM],
        Kind::Parting => &[PARTING],
        Kind::Greeter => &[],
        Kind::Opener => &[OPENER, OPENER_OLD],
        Kind::Control => &[WAIT, ALARM, SIDECORE, CONTROL, CONTROL_OLD],
    };
    let bpf = (kind == Kind::Control && networks && programs).then_some(libc::SYS_bpf);
    [LIFE, LIFE_OLD].iter().chain(own).flat_map(|list| list.iter().copied()).chain(bpf).collect()
}

/// Calls that are allowed with some arguments only. `pid` is this process's.
pub(crate) fn checked(kind: Kind, (networks, speaks_ip): (bool, bool), pid: u32) -> Vec<Check> {
    let check = |call, argument, values: &[u64]| Check {
        call,
        argument,
        mask: None,
        values: values.to_vec(),
    };
    // Memory is never code: PROT_EXEC is not set.
    let plain = |call| Check { mask: Some(libc::PROT_EXEC as u64), ..check(call, 2, &[0]) };
    let mut all = vec![
        plain(libc::SYS_mmap),
        plain(libc::SYS_mprotect),
        // Signals to our own threads: an abort.
        check(libc::SYS_tgkill, 0, &[pid.into()]),
        check(libc::SYS_prctl, 0, PRCTL),
    ];
    // Kernels before 5.11 run the whole list: nothing that sidecores call often is below.
    match kind {
        Kind::Control => {
            let threads = (libc::CLONE_VM | libc::CLONE_THREAD | libc::CLONE_SIGHAND) as u64;
            let namespaces = 0x7e02_0000 | libc::CLONE_NEWNS as u64;
            let clone =
                Check { mask: Some(threads | namespaces), ..check(libc::SYS_clone, 0, &[threads]) };
            all.extend([clone, check(libc::SYS_ioctl, 1, CONTROL_IOCTLS)]);
            let of_networks = if networks { OF_NETWORKS } else { &[] };
            let of_links = if speaks_ip { OF_LINKS } else { &[] };
            // Of what is open alone: a name could lead elsewhere.
            all.push(check(libc::SYS_fchownat, 4, &[libc::AT_EMPTY_PATH as u64]));
            let families = [FAMILIES, of_networks, of_links].concat();
            all.push(check(libc::SYS_socket, 0, &families));
        }
        Kind::Sidecore => {
            all.push(check(libc::SYS_fcntl, 1, CLOSING));
            all.push(check(libc::SYS_ioctl, 1, SIDECORE_IOCTLS));
        }
        Kind::Opener => {
            all.push(check(libc::SYS_ioctl, 1, BLOCK_IOCTLS));
            // How long a file may be: asked, and not set.
            all.push(check(libc::SYS_prlimit64, 2, &[0]));
        }
        Kind::Api => all.push(check(libc::SYS_ioctl, 1, &[libc::FIONBIO])),
        Kind::Closer | Kind::Parting | Kind::Greeter => {
            all.push(check(libc::SYS_fcntl, 1, CLOSING));
        }
    }
    if kind != Kind::Control {
        // A signal may be told of by any thread; what is sent has no address. Control sends anything.
        all.push(check(libc::SYS_sendto, 4, &[0]));
    }
    all
}

/// Before each close of a debug build: whether it is open.
const CLOSING: &[u64] = &[libc::F_GETFD as u64];

/// Names of threads and mappings; what `seccomp` asks for; what is asked before it.
const PRCTL: &[u64] = &[
    libc::PR_SET_NAME as u64,
    libc::PR_GET_NAME as u64,
    libc::PR_SET_VMA as u64,
    libc::PR_SET_NO_NEW_PRIVS as u64,
    libc::PR_GET_NO_NEW_PRIVS as u64,
    libc::PR_CAP_AMBIENT as u64,
    // PR_GET_AUXV, Linux 6.4: how rustix learns the size of a page.
    0x4155_5856,
];

/// Unix sockets, and the one that tells of interfaces.
const FAMILIES: &[u64] = &[libc::AF_UNIX as u64, libc::AF_NETLINK as u64];
const OF_NETWORKS: &[u64] = &[libc::AF_PACKET as u64, libc::AF_XDP as u64];
const OF_LINKS: &[u64] = &[libc::AF_INET as u64, libc::AF_INET6 as u64];

/// An interface's name: whether it is still there.
const SIDECORE_IOCTLS: &[u64] = &[libc::SIOCGIFNAME, libc::TUNSETOFFLOAD];

/// BLKSSZGET, BLKPBSZGET, BLKGETSIZE64: what a block device is like.
const BLOCK_IOCTLS: &[u64] = &[0x1268, 0x127b, 0x8008_1272];

/// Of sockets, block devices, taps and interfaces.
const CONTROL_IOCTLS: &[u64] = &[
    libc::FIONBIO,
    // Whether the log is a terminal.
    libc::TCGETS,
    // BLKSSZGET, BLKPBSZGET, BLKGETSIZE64: what a block device is like.
    0x1268,
    0x127b,
    0x8008_1272,
    libc::TUNSETIFF,
    // Of which tap a descriptor is that another process had.
    libc::TUNGETIFF,
    libc::TUNSETOFFLOAD,
    libc::TUNSETPERSIST,
    libc::TUNSETVNETHDRSZ,
    libc::TUNSETVNETLE,
    libc::SIOCGIFNAME,
    libc::SIOCGIFINDEX,
    libc::SIOCGIFFLAGS,
    libc::SIOCSIFFLAGS,
    libc::SIOCGIFMTU,
    libc::SIOCSIFMTU,
    libc::SIOCETHTOOL,
];
