//! A daemon that is told where a guest's VMM has its QMP: its vCPUs are the threads that it says, and where it says
//! nothing, threads with their names (docs/decisions/0016-runstate.md). What is made of an answer is tested in
//! `runstate`.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Result, ensure};
use testing::daemon::{Config, Daemon, await_that};
use testing::net_frontend::{Nic, NicSpec};
use testing::scratch::Scratch;
use tests::crowd::nic;
use tests::sight::sees_vcpus;

/// NICs of one guest.
const NICS: u16 = 2;

/// A daemon whose NICs go by what vCPUs do. Each has `line` too.
fn config(name: &str, line: &str) -> Config {
    let nic = |number: u16| {
        let lines = nic(&format!("n{number}"), number);
        lines + "queues = 2\nredirect = \"always\"\n" + line
    };
    let nics: String = (0..NICS).map(nic).collect();
    Daemon::with(name, &format!("[[switch]]\nid = \"lan\"\n{nics}"))
}

fn guest(daemon: &Daemon) -> Result<Vec<Nic>> {
    (0..NICS).map(|number| daemon.nic(&format!("n{number}"), NicSpec::default())).collect()
}

/// What is known of the vCPUs of one of them.
fn told(daemon: &Daemon, id: &str) -> Result<serde_json::Value> {
    Ok(daemon.ask(&format!("nic show {id}"))?["run_state"].clone())
}

/// A QMP that answers as QEMU does, and says that its vCPU 0 is thread `tid`; until it is dropped.
struct Qmp {
    path: PathBuf,
    ends: Arc<AtomicBool>,
    /// Dialogues that went to their end.
    answered: Arc<AtomicU64>,
    /// It says another process's thread, too.
    says_other: Arc<AtomicBool>,
    server: Option<JoinHandle<Result<()>>>,
}

impl Qmp {
    fn listen(path: &Path, tid: i32) -> Result<Qmp> {
        let listener = UnixListener::bind(path)?;
        let (ends, answered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (over, count) = (Arc::clone(&ends), Arc::clone(&answered));
        let says_other = Arc::new(AtomicBool::new(true));
        let other = Arc::clone(&says_other);
        let server = std::thread::spawn(move || {
            while let Ok((client, _)) = listener.accept() {
                if over.load(Ordering::Acquire) {
                    break;
                }
                if answer(client, tid, other.load(Ordering::Acquire)).is_ok() {
                    count.fetch_add(1, Ordering::AcqRel);
                }
            }
            Ok(())
        });
        Ok(Qmp { path: path.to_path_buf(), ends, answered, says_other, server: Some(server) })
    }
}

impl Drop for Qmp {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Release);
        let _ = UnixStream::connect(&self.path);
        let _ = self.server.take().map(JoinHandle::join);
        let _ = std::fs::remove_file(&self.path);
    }
}

/// One dialogue, with an event in between, and with another process's thread if that is said.
fn answer(mut client: UnixStream, tid: i32, has_other: bool) -> Result<()> {
    client.set_read_timeout(Some(Duration::from_secs(90)))?;
    let mut heard = BufReader::new(client.try_clone()?);
    let mut expect = |command: &str| -> Result<()> {
        let mut line = String::new();
        heard.read_line(&mut line)?;
        let line: serde_json::Value = serde_json::from_str(&line)?;
        ensure!(line["execute"] == command, "{line}");
        Ok(())
    };
    client.write_all(b"{\"QMP\": {\"version\": {}, \"capabilities\": [\"oob\"]}}\r\n")?;
    expect("qmp_capabilities")?;
    client.write_all(b"{\"return\": {}}\r\n{\"timestamp\": {}, \"event\": \"RESUME\"}\r\n")?;
    expect("query-cpus-fast")?;
    let mut list = format!("{{\"cpu-index\":0,\"thread-id\":{tid}}}");
    if has_other {
        list.push_str(",{\"cpu-index\":1,\"thread-id\":1}");
    }
    client.write_all(format!("{{\"return\": [{list}]}}\r\n").as_bytes())?;
    Ok(())
}

/// No thread has a vCPU's name, and the VMM says which is one; threads of other processes are not believed.
#[test]
fn vcpus_are_those_that_the_vmm_says() -> Result<()> {
    if !sees_vcpus()? {
        return Ok(());
    }
    let folder = Scratch::new(&std::env::temp_dir(), "sockets")?;
    let path = folder.path().join("qmp.sock");
    // With folders named, the socket is in none that the daemon may open files in.
    let images = Scratch::new(&std::env::temp_dir(), "images")?;
    let daemon_lines = format!("image_folders = [{:?}]\n", images.path());
    let line = format!("qmp = {path:?}\n");
    let mut daemon = config("qmp", &line).daemon(&daemon_lines).start()?;
    std::thread::scope(|scope| {
        let (daemon, path) = (&daemon, &path);
        let guest = scope.spawn(move || -> Result<()> {
            let tid = rustix::thread::gettid().as_raw_nonzero().get();
            let _nics = guest(daemon)?;
            // Nobody is there yet: names are looked at, of which there is none.
            await_that("the lack of a socket to be said", || {
                let why = told(daemon, "n0")?["problem"].to_string();
                Ok(why.contains("there is no such socket") && why.contains("debug-threads=on"))
            })?;
            let qmp = Qmp::listen(path, tid)?;
            await_that("another process's thread not to be believed", || {
                let shown = told(daemon, "n0")?;
                let vcpus = shown["vcpus"].as_array().map_or(0, Vec::len);
                let why = shown["problem"].to_string();
                Ok(vcpus == 1 && why.contains("of 2 vCPUs") && why.contains("1 are"))
            })?;
            qmp.says_other.store(false, Ordering::Release);
            for number in 0..NICS {
                await_that("the VMM to be asked again", || {
                    let shown = told(daemon, &format!("n{number}"))?;
                    let vcpus = shown["vcpus"].as_array().map_or(0, Vec::len);
                    let is_told = vcpus == 1 && shown["vcpus"][0]["thread"] == tid;
                    Ok(is_told && shown["problem"].is_null())
                })?;
            }
            ensure!(qmp.answered.load(Ordering::Acquire) > 0);
            Ok(())
        });
        guest.join().map_err(|_| anyhow::anyhow!("the guest panicked"))?
    })?;
    daemon.is_alive()?;
    a_vmm_that_does_not_answer_is_known_by_its_threads_names()
}

/// Who listens and says nothing, or nothing of use, is left after half a second, and names are gone by. Not a test of
/// its own: the other one is that of a process in which no thread has a vCPU's name.
fn a_vmm_that_does_not_answer_is_known_by_its_threads_names() -> Result<()> {
    let folder = Scratch::new(&std::env::temp_dir(), "other-sockets")?;
    let (silent, other) = (folder.path().join("silent.sock"), folder.path().join("other.sock"));
    let _listener = UnixListener::bind(&silent)?;
    // Its threads are another process's.
    let _qmp = Qmp::listen(&other, 1)?;
    for (path, said) in [(&silent, "no answer within 500 ms"), (&other, "none of the threads")] {
        let mut daemon = config("no-qmp", &format!("qmp = {path:?}\n")).start()?;
        let vcpu = std::thread::Builder::new().name("CPU 0/TCG".to_string());
        std::thread::scope(|scope| {
            let daemon = &daemon;
            let guest = vcpu.spawn_scoped(scope, move || -> Result<()> {
                let _nics = guest(daemon)?;
                let tid = rustix::thread::gettid().as_raw_nonzero().get();
                await_that("names to be gone by", || {
                    let shown = told(daemon, "n0")?;
                    let why = shown["problem"].to_string();
                    let is_said = why.contains(said) && why.contains("names of threads");
                    let vcpus = shown["vcpus"].as_array().cloned().unwrap_or_default();
                    Ok(is_said && vcpus.iter().any(|vcpu| vcpu["thread"] == tid))
                })
            })?;
            guest.join().map_err(|_| anyhow::anyhow!("the guest panicked"))?
        })?;
        daemon.is_alive()?;
    }
    Ok(())
}
