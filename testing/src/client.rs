//! Disks' clients that others have made: fio with libblkio, and SPDK's bdevperf.
//!
//! Each connects to a vhost-user socket as a VMM does, polls on one core, and says how many requests
//! a second it had answered. Not our own driver, which is [`crate::load`].

pub mod bdevperf;
pub mod fio;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::namespace::ended_within;
use crate::spdk::Spdk;
use crate::timing::PATIENCE;
use crate::unpacked::Program;

/// Whose load it is.
#[derive(Clone, Debug)]
pub enum Client {
    /// fio's engine `libblkio`.
    Fio(Program),
    /// SPDK's bdevperf, over its virtio-user driver.
    Bdevperf(Spdk),
}

/// What a client is to do.
#[derive(Clone, Debug)]
pub struct Job {
    /// The disk's socket.
    pub socket: PathBuf,
    /// The core that all its threads run on.
    pub core: u16,
    /// Whether it writes, or reads; at random.
    pub is_write: bool,
    /// Requests in flight.
    pub depth: u16,
    /// Bytes of a request.
    pub block_bytes: u32,
    /// Unmeasured and measured time, milliseconds.
    pub times_ms: [u64; 2],
}

impl Client {
    /// As it stands in names of rows.
    pub fn word(&self) -> &'static str {
        match self {
            Client::Fio(_) => "fio",
            Client::Bdevperf(_) => "bdevperf",
        }
    }

    /// Runs a job to its end, and gives the requests a second. What it printed is in `dir`.
    ///
    /// # Errors
    /// It is not there, failed, had a request that failed, or does not end; its last words are in
    /// the message.
    pub fn run(&self, dir: &Path, job: &Job) -> Result<f64> {
        match self {
            Client::Fio(program) => {
                let words = [program.words(), fio::arguments(job)].concat();
                fio::rate(&said(dir, job.core, &words)?, job.is_write)
            }
            Client::Bdevperf(spdk) => {
                let file = dir.join("bdevperf.json");
                std::fs::write(&file, bdevperf::file(&job.socket))?;
                let program = spdk.bdevperf().display().to_string();
                let words = [vec![program], bdevperf::arguments(job, &file)].concat();
                bdevperf::rate(&said(dir, job.core, &words)?)
            }
        }
    }
}

/// All that a program says on one core, once it has ended in order.
fn said(dir: &Path, core: u16, words: &[String]) -> Result<String> {
    let paths = ["client.out", "client.log"].map(|name| dir.join(name));
    let mut child = Command::new("setpriv")
        .args(["--pdeathsig", "KILL", "taskset", "-c", &core.to_string()])
        .args(words)
        .current_dir(dir)
        .stdin(Stdio::null())
        .stdout(File::create(&paths[0])?)
        .stderr(File::create(&paths[1])?)
        .spawn()
        .context("starting setpriv (Debian: apt-get install util-linux)")?;
    let status = ended_within(&mut child, PATIENCE)?;
    let read = |path: &PathBuf| std::fs::read(path).unwrap_or_default();
    let [out, log] = paths.each_ref().map(read);
    if !status.is_some_and(|status| status.success()) {
        let both = [log, out].concat();
        let both = String::from_utf8_lossy(&both);
        let lines: Vec<&str> = both.lines().collect();
        let end = lines[lines.len().saturating_sub(20)..].join("\n");
        let how = status.map_or("does not end".to_owned(), |status| format!("ended with {status}"));
        bail!("`{}` {how}:\n{end}", words.join(" "));
    }
    Ok(String::from_utf8_lossy(&out).into_owned())
}
