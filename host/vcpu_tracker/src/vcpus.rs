//! The vCPU threads of a VMM, by the names that it gives its threads, or among those that it says.
//!
//! QEMU: `CPU 0/KVM`, `CPU 0/TCG`; Cloud Hypervisor: `vcpu0`; Firecracker: `fc_vcpu 0`. What a process
//! calls its threads is its own affair: it can only mislead who serves its own guest. Everything is read
//! from a root folder that the caller names, so that tests bring processes of their own.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// vCPUs of one guest that are followed at most; those with the lowest numbers.
pub const VCPUS_MAX: usize = 256;
/// Threads of a process that are looked at, at most.
const THREADS_MAX: usize = 2048;

/// A vCPU and its thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Vcpu {
    /// Its number in the guest.
    pub index: u16,
    /// Its thread.
    pub tid: u32,
}

/// A process that stays the same one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// When it began, in the kernel's ticks: another one that gets its number has another time.
    began: u64,
}

/// Why the vCPUs of a process are not known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Missing {
    /// There is no such process (any more), or it cannot be seen.
    NoProcess(u32),
    /// None of its threads is named as a vCPU.
    NoVcpu(u32),
    /// None of the threads that were said is its.
    NoneIts(u32),
}

impl std::fmt::Display for Missing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Missing::NoProcess(pid) => write!(
                f,
                "the front-end's process {pid} cannot be seen: it is in another pid namespace, or /proc is \
                 restricted (hidepid, ProtectProc=)"
            ),
            Missing::NoVcpu(pid) => {
                write!(
                    f,
                    "no thread of the front-end's process {pid} is named as a vCPU: QEMU names them with \
                     `-name NAME,debug-threads=on`, which libvirt gives it"
                )
            }
            Missing::NoneIts(pid) => write!(
                f,
                "none of the threads that it names is one of the front-end's process {pid}: it is another \
                 VMM's, or this one is in another pid namespace"
            ),
        }
    }
}

impl Process {
    /// The process of user `uid` that has that number now.
    ///
    /// # Errors
    /// [`Missing::NoProcess`]; also when it is another user's, so another process than that which is meant.
    pub fn of(root: &Path, pid: u32, uid: u32) -> Result<Process, Missing> {
        // Of one that has changed its user itself, the kernel shows root as the owner.
        let owner = fs::metadata(folder(root, pid)).map(|found| found.uid());
        if !owner.is_ok_and(|owner| owner == uid || owner == 0) {
            return Err(Missing::NoProcess(pid));
        }
        Process::now(root, pid)
    }

    fn now(root: &Path, pid: u32) -> Result<Process, Missing> {
        let stat = fs::read_to_string(folder(root, pid).join("stat")).ok();
        let began = stat.as_deref().and_then(began_of).ok_or(Missing::NoProcess(pid))?;
        Ok(Process { pid, began })
    }

    /// Its vCPUs now, by their numbers.
    ///
    /// # Errors
    /// [`Missing`]; also when the number has become another process's.
    pub fn vcpus(&self, root: &Path) -> Result<Vec<Vcpu>, Missing> {
        let gone = |_| Missing::NoProcess(self.pid);
        let tasks = fs::read_dir(folder(root, self.pid).join("task")).map_err(gone)?;
        let mut found: Vec<Vcpu> = Vec::new();
        for task in tasks.flatten().take(THREADS_MAX) {
            let tid = task.file_name().to_str().and_then(|name| name.parse().ok());
            let name = fs::read_to_string(task.path().join("comm")).ok();
            let index = name.as_deref().and_then(index_of);
            if let (Some(tid), Some(index)) = (tid, index) {
                found.push(Vcpu { index, tid });
            }
        }
        self.check(root)?;
        // Of two of one number the first is believed, always the same.
        found.sort_unstable();
        found.dedup_by_key(|vcpu| vcpu.index);
        found.truncate(VCPUS_MAX);
        if found.is_empty() { Err(Missing::NoVcpu(self.pid)) } else { Ok(found) }
    }

    /// Those of `said` whose threads are its own now: others are not believed.
    ///
    /// # Errors
    /// [`Missing`]; also when the number has become another process's.
    pub fn among(&self, root: &Path, said: &[Vcpu]) -> Result<Vec<Vcpu>, Missing> {
        let tasks = folder(root, self.pid).join("task");
        let is_its = |vcpu: &&Vcpu| tasks.join(vcpu.tid.to_string()).exists();
        let found: Vec<Vcpu> = said.iter().take(VCPUS_MAX).filter(is_its).copied().collect();
        self.check(root)?;
        if found.is_empty() { Err(Missing::NoneIts(self.pid)) } else { Ok(found) }
    }

    /// It may have ended meanwhile, and what was read be another's.
    fn check(&self, root: &Path) -> Result<(), Missing> {
        let is_it = Process::now(root, self.pid)? == *self;
        is_it.then_some(()).ok_or(Missing::NoProcess(self.pid))
    }
}

fn folder(root: &Path, pid: u32) -> PathBuf {
    root.join("proc").join(pid.to_string())
}

/// Field 22 of `stat`, counted behind the name, which may have anything in it but its own end.
fn began_of(stat: &str) -> Option<u64> {
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_whitespace().nth(19)?.parse().ok()
}

/// The number of the vCPU that a thread of this name is.
fn index_of(name: &str) -> Option<u16> {
    let name = name.trim_end_matches('\n');
    let qemu = name.strip_prefix("CPU ").and_then(|rest| {
        rest.strip_suffix("/KVM").or(rest.strip_suffix("/TCG")).or(rest.strip_suffix("/HVF"))
    });
    let number = qemu.or(name.strip_prefix("vcpu")).or(name.strip_prefix("fc_vcpu "))?;
    let is_plain = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    is_plain.then(|| number.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(root: &Path, pid: u32, began: u64, threads: &[(u32, &str)]) {
        let folder = folder(root, pid);
        let zeroes = "0 ".repeat(18);
        fs::create_dir_all(&folder).expect("a folder");
        fs::write(folder.join("stat"), format!("{pid} (a) b) S {zeroes}{began} 0 0\n"))
            .expect("a file");
        for (tid, name) in threads {
            let task = folder.join("task").join(tid.to_string());
            fs::create_dir_all(&task).expect("a folder");
            fs::write(task.join("comm"), format!("{name}\n")).expect("a file");
        }
    }

    #[test]
    fn vcpus_are_found_by_their_names() {
        let root = tempfile::tempdir().expect("a folder");
        let threads = [
            (100, "qemu-system-x86"),
            (101, "CPU 1/KVM"),
            (102, "CPU 0/KVM"),
            (103, "CPU x/KVM"),
            (104, "CPU 2/KVM "),
            (105, "CPU 1/TCG"),
            (106, "CPU 99999/KVM"),
            (107, "CPU +3/KVM"),
            (108, "vcpu4"),
            (109, "fc_vcpu 5"),
        ];
        process(root.path(), 100, 7, &threads);
        let found = Process::now(root.path(), 100).and_then(|process| process.vcpus(root.path()));
        let expected = [(0, 102), (1, 101), (4, 108), (5, 109)];
        assert_eq!(found, Ok(expected.map(|(index, tid)| Vcpu { index, tid }).to_vec()));
    }

    #[test]
    fn another_process_of_its_number_is_not_it() {
        let root = tempfile::tempdir().expect("a folder");
        process(root.path(), 5, 7, &[(6, "CPU 0/KVM")]);
        let first = Process::now(root.path(), 5).expect("it is there");
        let said = [5, 6, 7, 9].map(|tid| Vcpu { index: tid as u16, tid });
        assert_eq!(first.among(root.path(), &said), Ok(vec![Vcpu { index: 6, tid: 6 }]));
        assert_eq!(first.among(root.path(), &said[2..]), Err(Missing::NoneIts(5)));
        assert!(first.vcpus(root.path()).is_ok());
        process(root.path(), 5, 8, &[]);
        assert_eq!(first.vcpus(root.path()), Err(Missing::NoProcess(5)));
        assert_eq!(first.among(root.path(), &said), Err(Missing::NoProcess(5)));
        assert_eq!(Process::now(root.path(), 9), Err(Missing::NoProcess(9)));
        process(root.path(), 9, 7, &[(9, "qemu")]);
        let other = Process::now(root.path(), 9).and_then(|process| process.vcpus(root.path()));
        assert_eq!(other, Err(Missing::NoVcpu(9)));
    }
}
