//! Which process a VM is, and what the kernel itself counts of it.
//!
//! Everything is read below a root folder that the caller names, so that tests bring processes of their own.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::refusal::Refusal;

/// What a descriptor of a VM is a link to.
const VM: &str = "anon_inode:kvm-vm";
/// Descriptors of a process that are looked at, at most.
const DESCRIPTORS_MAX: usize = 65_536;
/// Bytes of a command line that are looked at, at most.
const WORDS_BYTES_MAX: u64 = 1 << 20;

/// A VM and its process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vm {
    /// The process.
    pub pid: u32,
    /// As QEMU's `-name` has it.
    pub name: Option<String>,
    /// The number of the VM's descriptor in that process.
    descriptor: String,
}

impl Vm {
    /// The VM of that process.
    ///
    /// # Errors
    /// There is none, or there are several.
    pub fn of_process(root: &Path, pid: u32) -> Result<Vm, Refusal> {
        let folder = root.join("proc").join(pid.to_string());
        if !folder.exists() {
            return Err(Refusal::NoProcess(pid));
        }
        let found = descriptors(&folder).ok_or(Refusal::Unseen(pid))?;
        match &*found {
            [] => Err(Refusal::NoVm(pid)),
            [descriptor] => {
                let name = name_of(&words(&folder));
                Ok(Vm { pid, name, descriptor: descriptor.clone() })
            }
            several => Err(Refusal::SeveralVms(pid, several.len())),
        }
    }

    /// The VM whose QEMU has that name. Any process may say that it has it: one without a VM is none.
    ///
    /// # Errors
    /// None has, or several have.
    pub fn named(root: &Path, name: &str) -> Result<Vm, Refusal> {
        let found = those(root, |folder| name_of(&words(folder)).as_deref() == Some(name));
        let has_vm = |pid: &u32| {
            let found = descriptors(&root.join("proc").join(pid.to_string()));
            // What cannot be seen may be one.
            found.is_none_or(|found| !found.is_empty())
        };
        let vms: Vec<u32> = found.iter().copied().filter(has_vm).collect();
        match (&*vms, &*found) {
            ([], []) => Err(Refusal::NoName(name.to_string())),
            ([], others) => Err(Refusal::NamesNoVm(name.to_string(), others.to_vec())),
            ([pid], _) => Vm::of_process(root, *pid),
            _ => Err(Refusal::SeveralNames(name.to_string(), vms)),
        }
    }

    /// The VM whose VMM names that socket on its command line.
    ///
    /// # Errors
    /// None does, or several do.
    pub fn at_socket(root: &Path, socket: &str) -> Result<Vm, Refusal> {
        let whole = |path: &Path| fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
        let wanted = whole(Path::new(socket));
        let is_it = |folder: &Path, word: &str| {
            let mut parts = word.split([',', '=', '"', ' ', '{', '}']);
            let is_named = |part: &str| wanted.file_name() == Path::new(part).file_name();
            let here = || fs::read_link(folder.join("cwd")).unwrap_or_default();
            parts.any(|part| is_named(part) && whole(&here().join(part)) == wanted)
        };
        let names_it = |folder: &Path| {
            let has_vm = descriptors(folder).is_some_and(|found| !found.is_empty());
            has_vm && words(folder).iter().any(|word| is_it(folder, word))
        };
        let found = those(root, names_it);
        match &*found {
            [] => Err(Refusal::NoFrontEnd(socket.to_string())),
            [pid] => Vm::of_process(root, *pid),
            _ => Err(Refusal::SeveralFrontEnds(socket.to_string(), found)),
        }
    }

    /// Whether the process is there still, with this VM.
    pub fn is_there(&self, root: &Path) -> bool {
        let link = root.join(format!("proc/{}/fd/{}", self.pid, self.descriptor));
        fs::read_link(link).is_ok_and(|target| target == Path::new(VM))
    }

    /// Where the kernel counts the exits of this VM.
    ///
    /// # Errors
    /// Why that is not known.
    pub fn counter(&self, root: &Path) -> Result<Counter, String> {
        let folder = root.join("sys/kernel/debug/kvm");
        let entries = fs::read_dir(&folder).map_err(|error| {
            format!(
                "{}: {error} (mount -t debugfs debugfs /sys/kernel/debug; not shown under lockdown)",
                folder.display()
            )
        })?;
        let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        // Each is named by the thread that made the VM, and by the descriptor which that thread got.
        let is_its = |name: &String| {
            let Some((thread, descriptor)) = name.split_once('-') else { return false };
            let task = root.join(format!("proc/{}/task/{thread}", self.pid));
            descriptor == self.descriptor && task.exists()
        };
        let found: Vec<String> = names.filter(is_its).collect();
        match &*found {
            [one] => Ok(Counter { path: folder.join(one).join("exits") }),
            _ => Err(format!(
                "{}: no folder of this VM (the thread that made it has ended, or its descriptor has \
                 another number now)",
                folder.display()
            )),
        }
    }
}

/// The kernel's own counter of a VM's exits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counter {
    path: PathBuf,
}

impl Counter {
    /// How many there were.
    ///
    /// # Errors
    /// Why it cannot be read.
    pub fn exits(&self) -> Result<u64, String> {
        let text = fs::read_to_string(&self.path);
        let text = text.map_err(|error| format!("{}: {error}", self.path.display()))?;
        text.trim().parse().map_err(|_| format!("{}: not a number", self.path.display()))
    }
}

/// Numbers of processes that fit, the least first.
fn those(root: &Path, fits: impl Fn(&Path) -> bool) -> Vec<u32> {
    let entries = fs::read_dir(root.join("proc")).into_iter().flatten().flatten();
    let mut found: Vec<u32> = entries
        .filter_map(|entry| Some((entry.file_name().to_str()?.parse().ok()?, entry.path())))
        .filter(|(_, folder)| fits(folder))
        .map(|(pid, _)| pid)
        .collect();
    found.sort_unstable();
    found
}

/// Descriptors of VMs; nothing where that cannot be seen.
fn descriptors(folder: &Path) -> Option<Vec<String>> {
    let entries = fs::read_dir(folder.join("fd")).ok()?;
    let entries = entries.flatten().take(DESCRIPTORS_MAX);
    let is_vm = |path: PathBuf| fs::read_link(path).is_ok_and(|to| to == Path::new(VM));
    let found = entries.filter(|entry| is_vm(entry.path()));
    Some(found.filter_map(|entry| entry.file_name().into_string().ok()).collect())
}

fn words(folder: &Path) -> Vec<String> {
    let mut bytes = Vec::new();
    // It is the process's own memory, and as long as that likes. What was read of one that ends meanwhile is looked at.
    let _ = File::open(folder.join("cmdline"))
        .and_then(|file| file.take(WORDS_BYTES_MAX).read_to_end(&mut bytes));
    bytes.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect()
}

/// QEMU's `-name NAME`, `-name guest=NAME,debug-threads=on`.
fn name_of(words: &[String]) -> Option<String> {
    let at = words.iter().position(|word| word == "-name" || word == "--name")?;
    let value = words.get(at + 1)?;
    // A comma that is part of the name is written twice.
    let mut parts = value.split(',');
    let guest = parts.clone().find_map(|part| part.strip_prefix("guest="));
    let first = parts.next().filter(|first| !first.contains('='));
    guest.or(first).filter(|name| !name.is_empty()).map(str::to_string)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn process(root: &Path, pid: u32, words: &[&str], vms: &[&str]) {
        let folder = root.join("proc").join(pid.to_string());
        fs::create_dir_all(folder.join("fd")).expect("a folder");
        fs::create_dir_all(folder.join("task").join(pid.to_string())).expect("a folder");
        fs::write(folder.join("cmdline"), words.join("\0")).expect("a file");
        symlink("/dev/null", folder.join("fd/0")).expect("a link");
        symlink("/run", folder.join("cwd")).expect("a link");
        for vm in vms {
            symlink(VM, folder.join("fd").join(vm)).expect("a link");
        }
    }

    #[test]
    fn a_vm_is_found_by_process_name_and_socket() {
        let root = tempfile::tempdir().expect("a folder");
        let root = root.path();
        let socket = "path=/run/sidecore/vm1-root.sock";
        process(
            root,
            10,
            &["qemu", "-name", "vm1", "-chardev", &format!("socket,{socket}")],
            &["9"],
        );
        process(root, 11, &["qemu", "-name", "guest=vm2,debug-threads=on"], &["12"]);
        process(root, 12, &["ch", "--disk", "socket=sidecore/vm3.sock,num_queues=1"], &["7"]);
        process(root, 13, &["sh", "-c", socket], &[]);
        process(root, 14, &["qemu", "-name", "two"], &["3", "4"]);
        process(root, 15, &["qemu", "-name", "vm1b"], &["3"]);
        process(root, 16, &["qemu", "-name", "vm1b,process=x"], &["3"]);
        let pid = |found: Result<Vm, Refusal>| found.map(|vm| vm.pid);
        assert_eq!(pid(Vm::of_process(root, 10)), Ok(10));
        assert_eq!(pid(Vm::named(root, "vm2")), Ok(11));
        assert_eq!(pid(Vm::at_socket(root, "/run/sidecore/vm1-root.sock")), Ok(10));
        assert_eq!(pid(Vm::at_socket(root, "/run/sidecore/vm3.sock")), Ok(12));
        let other = "/run/other/vm1-root.sock";
        assert_eq!(pid(Vm::at_socket(root, other)), Err(Refusal::NoFrontEnd(other.to_string())));
        assert_eq!(pid(Vm::of_process(root, 13)), Err(Refusal::NoVm(13)));
        assert_eq!(pid(Vm::of_process(root, 14)), Err(Refusal::SeveralVms(14, 2)));
        assert_eq!(pid(Vm::of_process(root, 99)), Err(Refusal::NoProcess(99)));
        assert_eq!(pid(Vm::named(root, "vm9")), Err(Refusal::NoName("vm9".to_string())));
        let several = Refusal::SeveralNames("vm1b".to_string(), vec![15, 16]);
        assert_eq!(pid(Vm::named(root, "vm1b")), Err(several));
        // Whoever has no VM and says that he has that name is in nobody's way.
        process(root, 17, &["find", "/", "-name", "vm2"], &[]);
        process(root, 18, &["qemu", "-name", "emulated"], &[]);
        assert_eq!(pid(Vm::named(root, "vm2")), Ok(11));
        let without = Refusal::NamesNoVm("emulated".to_string(), vec![18]);
        assert_eq!(pid(Vm::named(root, "emulated")), Err(without));
    }

    #[test]
    fn no_more_of_a_command_line_is_read_than_is_looked_at() {
        let root = tempfile::tempdir().expect("a folder");
        let folder = root.path().join("proc/10");
        fs::create_dir_all(&folder).expect("a folder");
        // A hole of 1 TiB, as memory that was never touched.
        let line = File::create(folder.join("cmdline")).expect("a file");
        line.set_len(1 << 40).expect("a file system with holes");
        assert_eq!(words(&folder).len() as u64, WORDS_BYTES_MAX + 1);
    }

    #[test]
    fn the_kernel_s_counter_is_that_of_its_thread_and_descriptor() {
        let root = tempfile::tempdir().expect("a folder");
        let root = root.path();
        process(root, 10, &["qemu"], &["9"]);
        let vm = Vm::of_process(root, 10).expect("one");
        let why = vm.counter(root).expect_err("no debugfs");
        assert!(why.contains("mount -t debugfs"), "{why}");
        for (name, exits) in [("10-9", "123\n"), ("10-8", "1\n"), ("11-9", "2\n"), ("pages", "")] {
            let folder = root.join("sys/kernel/debug/kvm").join(name);
            fs::create_dir_all(&folder).expect("a folder");
            fs::write(folder.join("exits"), exits).expect("a file");
        }
        assert_eq!(vm.counter(root).and_then(|counter| counter.exits()), Ok(123));
        assert!(vm.is_there(root));
        fs::remove_file(root.join("proc/10/fd/9")).expect("it was there");
        assert!(!vm.is_there(root));
    }
}
