//! Who holds a lock that was refused: a process that lives, or requests of one that has ended.
//!
//! The kernel names the process that *made* a lock (`/proc/locks`), not those that hold it, and for
//! locks of descriptions none at all. So what is found there is checked: does that process live, and
//! has it a descriptor with this lock (`/proc/PID/fdinfo`)?
//!
//! Called by `lock`, and only when a lock was refused. Bounded by the size of `/proc`; looks at other
//! processes' descriptors only when another program than a sidecore holds a byte lock.

use std::fmt;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FileType, StatxFlags, fstat, major, makedev, minor, statx};

use super::lock::{CACHED_BYTE, LAST_BYTE, OWNERS_BYTE};

/// How often the table of locks is read when it shows nobody. It comes in pieces, and a lock that ends
/// between two of them hides another.
const LOOKS: u32 = 3;

/// Who holds a file that is locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// A process that lives. It will not let go by itself: refuse the disk.
    Living(u32),
    /// One that took the lock has ended, and the only daemon that cannot be looked into may have taken over from it: or
    /// it is as below. Try again.
    Heir {
        /// Who took the lock.
        maker: u32,
        /// That daemon.
        pid: u32,
    },
    /// One that this process may not look into has locked parts of it, as QEMU does and no sidecore; or one that did so
    /// has ended. Say so, and try again.
    Hidden,
    /// Nobody that lives and can be seen: one that has ended or is ending, whose last requests are
    /// still with the disk; one in another pid namespace or on another host; or udev, which looks at
    /// a device for a moment. Try again.
    Ended(Option<u32>),
}

impl Holder {
    /// Whether it is the process that asks.
    pub fn is_this_process(self) -> bool {
        self == Holder::Living(std::process::id())
    }
}

/// How what is said of a process that lives ends: what to do about it.
pub const STOP_IT: &str = "; stop that process or give another image";
/// The same of another sidecore, from which the guest may be about to come.
pub const LET_IT_MOVE: &str = "; for a guest that moves here from that daemon say `migratable` of the disk at both, \
                               otherwise stop that process or give another image";

impl fmt::Display for Holder {
    /// As an operator reads it, after "is in use: ".
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Holder::Living(pid) if pid == std::process::id() => {
                f.write_str("this daemon serves it already, under this or another name")
            }
            Holder::Living(pid) => {
                let name = command_name(pid);
                let is_sidecore = name.is_some() && name == command_name(std::process::id());
                let todo = if is_sidecore { LET_IT_MOVE } else { STOP_IT };
                let name = name.unwrap_or_else(|| "of unknown name".into());
                write!(f, "process {pid} ({name}) holds it{todo}")
            }
            Holder::Heir { maker, pid } => {
                let name = command_name(pid).unwrap_or_else(|| "of unknown name".into());
                write!(
                    f,
                    "process {pid} ({name}) holds it if that has taken over from process {maker}, which took the lock and \
                     has ended; otherwise requests of process {maker} are still with the disk; it is tried again"
                )
            }
            Holder::Hidden => f.write_str(
                "a process that may not be looked into from here has locked parts of it, as QEMU does, or one that has \
                 ended had; `lsof` of the image names it to root: stop that one or give another image",
            ),
            Holder::Ended(Some(pid)) => write!(
                f,
                "requests of process {pid}, which has ended, are still with the disk, or a process \
                 that it started, or that took over from it, holds it; it is tried again"
            ),
            Holder::Ended(None) => f.write_str(
                "requests of a process that has ended are still with the disk, or a process that \
                 cannot be seen from here (on another host, in another container) holds it; it is \
                 tried again",
            ),
        }
    }
}

/// The two kinds of locks, which do not see each other; and those of the owner's byte, which are of the second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Flock,
    Bytes,
    Owner,
}

/// A lock as `/proc/locks` and `fdinfo` show it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Lock {
    kind: Kind,
    exclusive: bool,
    /// Who made it; `None` for a lock of a description.
    pid: Option<u32>,
    /// `major:minor:inode`, the first two in hexadecimal.
    file: String,
    /// The second lock of a sidecore.
    is_ours: bool,
    /// The byte that is locked, if it is only one.
    byte: Option<u64>,
}

/// The process that lives and has a `flock` on the file of `fd`, if one can be seen. No lock is asked for.
pub fn lock_holder(fd: BorrowedFd<'_>) -> Option<u32> {
    match holder_of(fd, Kind::Flock) {
        Holder::Living(pid) => Some(pid),
        Holder::Ended(_) | Holder::Heir { .. } | Holder::Hidden => None,
    }
}

/// Whether the kernel's table has a `flock` of the file of `fd` that one of ours, shared or exclusive, would collide
/// with.
pub(super) fn has_flock_against(fd: BorrowedFd<'_>, exclusive: bool) -> bool {
    let Some(file) = name_of(fd) else { return false };
    let table = fs::read_to_string("/proc/locks").unwrap_or_default();
    let mut locks = table.lines().filter_map(parse);
    locks.any(|lock| {
        let collides = lock.kind == Kind::Flock && (lock.exclusive || exclusive);
        collides && lock.file == file && !lock.pid.is_some_and(|pid| looks_only(pid, &lock))
    })
}

/// Whether that process can be seen to have an exclusive lock of bytes of the file of `fd`.
pub(super) fn is_seen_with_bytes(fd: BorrowedFd<'_>, pid: u32) -> bool {
    let Some(file) = name_of(fd) else { return false };
    let is_one = |lock: &Lock| lock.kind == Kind::Bytes && lock.exclusive && lock.file == file;
    has(pid, |_| true, is_one) == Some(true)
}

/// Who has a shared lock of just that byte of the file of `fd`, by a description; nothing, where nobody has. Another process
/// that lives and is seen with it is named: whoever may read the file can have it as well.
pub(super) fn marker_of(fd: BorrowedFd<'_>, byte: u64) -> Option<Holder> {
    let file = name_of(fd)?;
    let is_mark = |lock: &Lock| {
        let is_it = lock.kind == Kind::Bytes && !lock.exclusive && lock.byte == Some(byte);
        is_it && lock.file == file && lock.pid.is_none()
    };
    // It comes in pieces, and a lock that ends between two of them hides another.
    let is_there = (0..LOOKS).any(|_| {
        let table = fs::read_to_string("/proc/locks").unwrap_or_default();
        table.lines().filter_map(parse).any(|lock| is_mark(&lock))
    });
    is_there.then(|| {
        let has_it = |pid: &u32| has(*pid, |_| true, is_mark) == Some(true) && lives(*pid);
        // This one closes what it has.
        let mut others = pids().filter(|pid| *pid != std::process::id());
        others.find(has_it).map_or(Holder::Ended(None), Holder::Living)
    })
}

/// Who keeps `fd` from a lock of `kind`.
pub(super) fn holder_of(fd: BorrowedFd<'_>, kind: Kind) -> Holder {
    let nobody = Holder::Ended(None);
    let Some(file) = name_of(fd) else { return nobody };
    let mut looks = (0..LOOKS).map(|_| look(&file, kind));
    looks.find(|holder| *holder != nobody).unwrap_or(nobody)
}

fn look(file: &str, kind: Kind) -> Holder {
    let table = fs::read_to_string("/proc/locks").unwrap_or_default();
    let is_one = |lock: &Lock| lock.kind == kind && lock.file == file;
    holder_in(&table, kind, is_one, |pid| has(pid, |_| true, is_one))
}

/// Who keeps a lock of `kind` that `is_one` in that table, where it can be seen of processes whether each `has_it`.
fn holder_in(
    table: &str,
    kind: Kind,
    is_one: impl Fn(&Lock) -> bool,
    has_it: impl Fn(u32) -> Option<bool>,
) -> Holder {
    let mut ended = None;
    let mut foreign = false;
    for lock in table.lines().filter_map(parse) {
        if !is_one(&lock) {
            continue;
        }
        let Some(pid) = lock.pid else {
            foreign |= !lock.is_ours;
            continue;
        };
        ended = Some(pid);
        if lives(pid) && has_it(pid) != Some(false) && !looks_only(pid, &lock) {
            return Holder::Living(pid);
        }
    }
    // A sidecore that lives would have refused its first lock, and was not asked for the second.
    let holds = |pid: &u32| has_it(*pid) == Some(true) && lives(*pid);
    let living = match (foreign, ended) {
        (true, _) => pids().find(holds),
        // It may have handed its descriptions over to a successor, which is of the same name.
        (false, Some(_)) => {
            let own = command_name(std::process::id());
            pids().filter(|pid| command_name(*pid) == own).find(holds)
        }
        (false, None) => None,
    };
    match (living, ended) {
        (Some(pid), _) => Holder::Living(pid),
        (None, Some(maker)) => heir_of(maker, has_it).unwrap_or(Holder::Ended(ended)),
        // A `flock` without a maker is of another pid namespace, as a sidecore's in a container.
        (None, None)
            if foreign && kind == Kind::Bytes && pids().any(|pid| has_it(pid).is_none()) =>
        {
            Holder::Hidden
        }
        (None, None) => Holder::Ended(None),
    }
}

/// The daemon that may have taken over from one that took a lock and has ended: the only one that lives and shows nobody
/// which locks it `has`.
fn heir_of(maker: u32, has_it: impl Fn(u32) -> Option<bool>) -> Option<Holder> {
    let (own, ours) = (std::process::id(), command_name(std::process::id()));
    let may_be = |pid: &u32| {
        *pid != own && command_name(*pid) == ours && is_daemon(*pid) && has_it(*pid).is_none()
    };
    let mut heirs = pids().filter(may_be);
    let heir = heirs.next().filter(|pid| lives(*pid));
    heir.filter(|_| heirs.next().is_none()).map(|pid| Holder::Heir { maker, pid })
}

/// Whether a process answers operators, as a daemon does by a thread of this name, and its helpers do not.
fn is_daemon(pid: u32) -> bool {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let mut names = tasks.filter_map(|task| fs::read_to_string(task.path().join("comm")).ok());
    names.any(|name| name.trim_end() == "api")
}

/// Who has claimed the block device of number `device` under another name than that of `fd`, on which
/// this process has a lock.
pub(super) fn holder_of_device(fd: BorrowedFd<'_>, device: u64) -> Holder {
    let own = name_of(fd).unwrap_or_default();
    let is_it = |path: &Path| {
        // As it is known here: nothing is asked of a remote file system.
        let facts = statx(CWD, path, AtFlags::STATX_DONT_SYNC, StatxFlags::TYPE);
        facts.is_ok_and(|facts| {
            FileType::from_raw_mode(facts.stx_mode.into()) == FileType::BlockDevice
                && makedev(facts.stx_rdev_major, facts.stx_rdev_minor) == device
        })
    };
    let locks = |lock: &Lock| lock.kind == Kind::Flock && lock.exclusive && lock.file != own;
    let holds = |pid: &u32| has(*pid, is_it, locks) == Some(true) && lives(*pid);
    pids().find(holds).map_or(Holder::Ended(None), Holder::Living)
}

/// udev takes a shared `flock` on a device that somebody has just closed, and lets it go.
fn looks_only(pid: u32, lock: &Lock) -> bool {
    !lock.exclusive && command_name(pid).is_some_and(|name| name.contains("udev"))
}

/// Every process that can be seen.
fn pids() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Whether a descriptor of process `pid` is what `is_it` says of its link in `/proc`, and has a lock
/// that `locks` wants; `None` when that cannot be seen.
fn has(pid: u32, is_it: impl Fn(&Path) -> bool, locks: impl Fn(&Lock) -> bool) -> Option<bool> {
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).ok()?;
    let mut hidden = false;
    for descriptor in descriptors.flatten() {
        let link = descriptor.path();
        let to = fs::read_link(&link);
        // One that has more rights than this process, or any other when landlock confines this one.
        hidden |= to.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied);
        // Sockets, pipes and the like are quick to tell.
        if !to.is_ok_and(|to| to.is_absolute()) || !is_it(&link) {
            continue;
        }
        let number = descriptor.file_name();
        let Some(number) = number.to_str() else { continue };
        let text = fs::read_to_string(format!("/proc/{pid}/fdinfo/{number}")).unwrap_or_default();
        if text.lines().filter_map(|line| parse(line.strip_prefix("lock:")?)).any(|l| locks(&l)) {
            return Some(true);
        }
    }
    (!hidden).then_some(false)
}

/// The file as the kernel names it in its table of locks: by the device of its mount, which is not
/// always what `stat` says (btrfs).
fn name_of(fd: BorrowedFd<'_>) -> Option<String> {
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_raw_fd())).ok()?;
    let field = |name: &str| {
        info.lines().find_map(|line| line.strip_prefix(name)).map(|value| value.trim().to_owned())
    };
    let stat = fstat(fd).ok()?;
    let inode = field("ino:").unwrap_or_else(|| stat.st_ino.to_string());
    let mount = field("mnt_id:").and_then(|id| device_of_mount(&id));
    let (major, minor) = mount.unwrap_or((major(stat.st_dev), minor(stat.st_dev)));
    Some(format!("{major:02x}:{minor:02x}:{inode}"))
}

fn device_of_mount(id: &str) -> Option<(u32, u32)> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let mut fields = mounts
        .lines()
        .map(str::split_whitespace)
        .find_map(|mut fields| (fields.next() == Some(id)).then_some(fields))?;
    let (major, minor) = fields.nth(1)?.split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// A line of the table: `1: FLOCK  ADVISORY  WRITE 21510 fe:00:10354689 0 EOF`. Of who waits for a
/// lock (`1: -> FLOCK ..`) nothing is said.
fn parse(line: &str) -> Option<Lock> {
    let mut fields = line.split_whitespace().skip(1);
    let mut kind = match fields.next()? {
        "FLOCK" => Kind::Flock,
        "OFDLCK" | "POSIX" => Kind::Bytes,
        _ => return None,
    };
    let exclusive = match fields.nth(1)? {
        "WRITE" => true,
        "READ" => false,
        _ => return None,
    };
    // -1 for a lock of a description, 0 for a process of another namespace.
    let pid = fields.next()?.parse().ok().filter(|pid| *pid != 0);
    let file = fields.next()?.to_owned();
    let mut bound = || fields.next().and_then(|bound| bound.parse::<i64>().ok());
    let (first, last) = (bound(), bound());
    let is_ours = match (first, last) {
        (Some(0), Some(last)) => last == LAST_BYTE || last == CACHED_BYTE - 1,
        (first, last) => first == Some(CACHED_BYTE) && last == first,
    };
    // Its end is the end of all there can be.
    if first == Some(OWNERS_BYTE) && kind == Kind::Bytes {
        kind = Kind::Owner;
    }
    let byte = first.filter(|_| first == last).and_then(|byte| u64::try_from(byte).ok());
    Some(Lock { kind, exclusive, pid, file, is_ours, byte })
}

/// Whether a process runs and was not killed. One with a thread that was (`kill -9` goes to all of
/// them, one by one) is ending.
fn lives(pid: u32) -> bool {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return false };
    let mut lives = false;
    for task in tasks.flatten() {
        let read = |name| fs::read_to_string(task.path().join(name)).unwrap_or_default();
        if is_killed(&read("status")) {
            return false;
        }
        lives |= runs(&read("stat"));
    }
    lives
}

/// Whether the `stat` of a thread is that of one that has not begun to end.
fn runs(stat: &str) -> bool {
    /// `PF_EXITING`, `PF_POSTCOREDUMP`, `PF_SIGNALED` (linux/sched.h). Of a process that was killed
    /// and waits for its io_uring only the last is set.
    const ENDING: u64 = 0x4 | 0x8 | 0x400;
    // The name in parentheses may hold anything; what follows its end is fields 3, 4, ...
    let Some((_, fields)) = stat.rsplit_once(')') else { return false };
    let mut fields = fields.split_whitespace();
    let state = fields.next().unwrap_or("X");
    let flags: u64 = fields.nth(5).and_then(|flags| flags.parse().ok()).unwrap_or(ENDING);
    !matches!(state, "Z" | "X" | "x") && flags & ENDING == 0
}

/// Whether the `status` of a thread shows a SIGKILL that waits for it, or that it dumps core.
fn is_killed(status: &str) -> bool {
    const SIGKILL: u64 = 1 << (9 - 1);
    let field = |name| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let waits = |name| {
        let mask = field(name).and_then(|mask| u64::from_str_radix(mask, 16).ok());
        mask.is_some_and(|mask| mask & SIGKILL != 0)
    };
    waits("SigPnd:") || waits("ShdPnd:") || field("CoreDumping:") == Some("1")
}

fn command_name(pid: u32) -> Option<String> {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    // It is any program's own choice: nothing of it must reach a terminal as a command.
    Some(name.trim_end().escape_debug().to_string())
}

#[cfg(test)]
mod tests;
