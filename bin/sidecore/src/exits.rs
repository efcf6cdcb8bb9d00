//! `sidecore exits`: where a guest's exits come from, for a while.
//!
//! Here: whom the words mean, the time, and the files. What is counted, and how, is the library's (`exits`); how it
//! looks is [`text`], and [`flame`].

mod flame;
mod text;

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::time::Duration;

use config::api::{ApiError, DiskView, ErrorKind, NicView};
use config::routes::Method;
use exits::{About, Counted, Counter, Refusal, Report, Symbols, TEXT_BYTES_MAX, Tally, Vm, Watch};
use rustix::time::{ClockId, clock_gettime};
use serde::de::DeserializeOwned;

use crate::cli::ExitsArgs;
use crate::client::{Client, path_of};
use crate::failure::Failure;
use crate::output::Output;
use crate::overview::pause;

/// Where this machine's files are.
const ROOT: &str = "/";
/// A daemon is waited for so long where a VM has the name already, and it could only say that a device has it as well.
const SOON: Duration = Duration::from_secs(2);
/// Between two looks whether the VM is there still.
const LOOK: Duration = Duration::from_millis(100);

/// `exits`
pub(crate) fn run(args: &ExitsArgs, client: &Client, output: &Output) -> Result<(), Failure> {
    let symbols = symbols(args)?;
    let vm = find(&args.vm, client)?;
    let picture = args.flame.as_deref().map(Picture::begin).transpose()?;
    let report = count(&vm, args.time, &symbols).map_err(refused)?;
    picture.map(|picture| picture.end(&flame::drawn(&report))).transpose()?;
    output.show(&report, |report| text::whole(report, output.room))
}

fn refused(refusal: Refusal) -> Failure {
    let hint = refusal.hint();
    Failure::host(refusal.to_string(), hint)
}

/// A file for a flame graph. It is made before anything is counted, which would be in vain otherwise, and is gone if
/// nothing comes of it.
struct Picture<'a> {
    path: &'a Path,
    file: File,
    is_whole: bool,
}

impl Picture<'_> {
    fn begin(path: &Path) -> Result<Picture<'_>, Failure> {
        let file = File::create_new(path).map_err(|error| not_written(path, &error))?;
        Ok(Picture { path, file, is_whole: false })
    }

    fn end(mut self, text: &str) -> Result<(), Failure> {
        self.file.write_all(text.as_bytes()).map_err(|error| not_written(self.path, &error))?;
        self.is_whole = true;
        Ok(())
    }
}

impl Drop for Picture<'_> {
    fn drop(&mut self) {
        if !self.is_whole {
            let _ = std::fs::remove_file(self.path);
        }
    }
}

fn not_written(path: &Path, error: &std::io::Error) -> Failure {
    Failure::usage(format!("{}: {error}", path.display()), "name another file for the flame graph")
}

/// A number is a process; a name is QEMU's, or else a disk's or a NIC's.
fn find(who: &str, client: &Client) -> Result<Vm, Failure> {
    let root = Path::new(ROOT);
    if let Ok(pid) = who.parse() {
        return Vm::of_process(root, pid).map_err(refused);
    }
    let named = Vm::named(root, who);
    let device = socket_of(who, client, named.is_ok().then_some(SOON));
    match (named, device) {
        (Err(no_name @ (Refusal::NoName(_) | Refusal::NamesNoVm(..))), device) => match device {
            Ok(socket) => Vm::at_socket(root, &socket).map_err(refused),
            Err(failure) => Err(neither(&no_name, failure)),
        },
        (Ok(vm), Ok(socket)) => one_of(who, vm, Vm::at_socket(root, &socket)),
        (named, _) => named.map_err(refused),
    }
}

/// The VM of that name, if its guest also has the device of that name, or none has. Any user's VM may have any name.
fn one_of(who: &str, named: Vm, user: Result<Vm, Refusal>) -> Result<Vm, Failure> {
    match user {
        Ok(user) if user.pid != named.pid => {
            let (pid, other) = (named.pid, user.pid);
            let error = format!(
                "{who} is what process {pid} calls its VM, and the disk or NIC {who} is the guest's of process {other}"
            );
            Err(Failure::host(
                error,
                format!("give the number of the one that you mean: {other} or {pid}"),
            ))
        }
        _ => Ok(named),
    }
}

/// No VM has that name, and the daemon did not say whose device it is.
fn neither(no_name: &Refusal, failure: Failure) -> Failure {
    match failure {
        Failure::Unreachable { error, hint } => {
            Failure::Unreachable { error: format!("{no_name}, and {error}"), hint }
        }
        Failure::Silent { error, hint } => {
            Failure::Silent { error: format!("{no_name}, and {error}"), hint }
        }
        Failure::Refused(ApiError { kind: ErrorKind::NotFound, .. }) => {
            Failure::host(format!("{no_name}, nor is there such a disk or NIC"), no_name.hint())
        }
        other => other,
    }
}

/// The socket of the device of that name. With `within` no answer is waited for longer.
fn socket_of(id: &str, client: &Client, within: Option<Duration>) -> Result<String, Failure> {
    let disk = ask::<DiskView>(client, &path_of("disks", id, ""), within);
    let access = match disk {
        Ok(disk) => disk.access,
        // Who says nothing of disks says nothing of NICs, after as long again.
        Err(silent @ Failure::Silent { .. }) => return Err(silent),
        Err(_) => ask::<NicView>(client, &path_of("nics", id, ""), within)?.access,
    };
    access.socket.ok_or_else(|| {
        let hint = "ask on the machine whose guest has it";
        Failure::host(format!("{id} is a device of other machines' guests"), hint)
    })
}

fn ask<T: DeserializeOwned>(
    client: &Client,
    path: &str,
    within: Option<Duration>,
) -> Result<T, Failure> {
    match within {
        Some(within) => client.ask_soon(Method::Get, path, within),
        None => client.ask(Method::Get, path),
    }
}

fn symbols(args: &ExitsArgs) -> Result<Symbols, Failure> {
    let (file, base) = match (&args.kallsyms, &args.map, args.base) {
        (Some(file), ..) => (file, None),
        (None, Some(file), base) => (file, base),
        (None, None, _) => return Ok(Symbols::default()),
    };
    let text = read(file).map_err(|error| {
        Failure::usage(format!("{}: {error}", file.display()), "name another file")
    })?;
    let symbols = match base {
        None => Symbols::kallsyms(&text),
        Some(base) => Symbols::map(&text, base),
    };
    symbols.map_err(|why| Failure::usage(format!("{}: {why}", file.display()), ""))
}

/// No more than is understood, and a byte, by which it is known that there is more.
fn read(file: &Path) -> std::io::Result<Vec<u8>> {
    let mut text = Vec::new();
    let most = TEXT_BYTES_MAX as u64 + 1;
    if file == Path::new("-") {
        std::io::stdin().take(most).read_to_end(&mut text)?;
    } else {
        File::open(file)?.take(most).read_to_end(&mut text)?;
    }
    Ok(text)
}

fn count(vm: &Vm, time: Duration, symbols: &Symbols) -> Result<Report, Refusal> {
    let root = Path::new(ROOT);
    let counter = vm.counter(root);
    let mut watch = Watch::attach(root, vm.pid)?;
    let mut notes = watch.missing().to_vec();
    let look = || counter.as_ref().map_err(Clone::clone).and_then(Counter::exits);
    let first = look();
    watch.arm(now_ns())?;
    let second = look();
    if !wait(vm, time) {
        notes.push("The VM has ended meanwhile".to_string());
    }
    let third = look();
    watch.disarm()?;
    let end_ns = now_ns();
    let fourth = look();
    let tally = Tally::of(&watch.read(end_ns)?);
    let counted = (|| Ok(Counted { at_start: [first?, second?], at_end: [third?, fourth?] }))();
    let about = About { process: vm.pid, name: vm.name.clone(), notes };
    Ok(Report::of(&tally, symbols, counted, about))
}

/// Whether the VM was there all the time; ends when it does.
fn wait(vm: &Vm, time: Duration) -> bool {
    let end_ns = now_ns().saturating_add(time.as_nanos() as u64);
    loop {
        let left = Duration::from_nanos(end_ns.saturating_sub(now_ns()));
        if left.is_zero() {
            return true;
        }
        pause(left.min(LOOK));
        if !vm.is_there(Path::new(ROOT)) {
            return false;
        }
    }
}

/// The clock of programs in the kernel.
fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_that_hangs_is_asked_once_and_not_waited_for_as_long_as_usual() {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("api.sock");
        let listener = std::os::unix::net::UnixListener::bind(&socket).expect("a listener");
        let client = Client::new(socket.display().to_string());
        let silent = socket_of("vm1", &client, Some(Duration::from_millis(20)));
        let Err(Failure::Silent { error, .. }) = silent else { panic!("{silent:?}") };
        assert!(error.ends_with("gave no answer to GET /v1/disks/vm1 within 20ms"), "{error}");
        listener.set_nonblocking(true).expect("it is told");
        let asked = std::iter::from_fn(|| listener.accept().ok()).count();
        assert_eq!(asked, 1, "NICs were not asked for");
    }

    #[test]
    fn a_vm_of_a_devices_name_is_not_taken_for_the_one_that_has_the_device() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path();
        let vm = |pid: u32| {
            let descriptors = root.join(format!("proc/{pid}/fd"));
            std::fs::create_dir_all(&descriptors).expect("a folder");
            std::os::unix::fs::symlink("anon_inode:kvm-vm", descriptors.join("9")).expect("a link");
            Vm::of_process(root, pid).expect("a VM")
        };
        let (one, other) = (vm(10), vm(11));
        let none = Refusal::NoFrontEnd("/s".to_string());
        for user in [Ok(one.clone()), Err(none)] {
            assert_eq!(one_of("vm1", one.clone(), user).map_err(|why| why.text()), Ok(one.clone()));
        }
        let refused = one_of("vm1", one, Ok(other)).expect_err("two").parts();
        assert_eq!(
            refused.0,
            "vm1 is what process 10 calls its VM, and the disk or NIC vm1 is the guest's of process 11"
        );
        assert_eq!(refused.1, "give the number of the one that you mean: 11 or 10");
    }
}
