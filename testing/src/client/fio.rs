//! fio with libblkio: what it is told, and what its JSON says.
//!
//! Not `crate::fio`, which runs in a guest and compares.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::Job;
use crate::unpacked::Program;
use crate::vm::build_folder;

/// A fio that has libblkio, which Debian's has not: the one that `FIO` names, or that `./x` has built.
///
/// # Errors
/// There is none; what to do is in the message.
pub fn program() -> Result<Program> {
    let named = std::env::var_os("FIO").filter(|path| !path.is_empty()).map(PathBuf::from);
    let path = named.unwrap_or_else(|| build_folder().join("fio/fio"));
    ensure!(
        path.is_file(),
        "there is no fio with libblkio: `./x bench peers` builds one where Debian's sources can be \
         reached, and FIO=PROGRAM names another"
    );
    Ok(Program::installed(&path.display().to_string()))
}

/// Its options. It looks for completions without a pause, and reads no clock for each request.
pub(super) fn arguments(job: &Job) -> Vec<String> {
    let Job { socket, is_write, depth, block_bytes, times_ms: [warm_ms, measured_ms], .. } = job;
    let rw = if *is_write { "randwrite" } else { "randread" };
    let words = format!(
        "--name=peer --thread --ioengine=libblkio --libblkio_driver=virtio-blk-vhost-user \
         --libblkio_wait_mode=loop --rw={rw} --bs={block_bytes} --iodepth={depth} \
         --norandommap --randrepeat=0 --gtod_reduce=1 --time_based --ramp_time={warm_ms}ms \
         --runtime={measured_ms}ms --output-format=json"
    );
    let path = format!("--libblkio_path={}", socket.display());
    words.split_whitespace().map(str::to_owned).chain([path]).collect()
}

/// Requests a second, from what it printed.
pub(super) fn rate(text: &str, is_write: bool) -> Result<f64> {
    // It may say something before.
    let json = text.find('{').map_or("", |at| &text[at..]);
    let all: Value = serde_json::from_str(json).with_context(|| format!("fio said {text:?}"))?;
    let job = &all["jobs"][0];
    let error = job["error"].as_i64().context("fio's answer has no jobs")?;
    ensure!(error == 0, "fio's job ended with error {error}");
    let side = if is_write { "write" } else { "read" };
    let iops = job[side]["iops"].as_f64().with_context(|| format!("fio's {side} has no iops"))?;
    ensure!(iops > 0.0, "fio had no request answered");
    Ok(iops)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of fio 3.39 over libblkio, without what is not looked at.
    const SAID: &str = include_str!("fio/said.json");

    #[test]
    fn the_rate_of_the_side_that_was_asked_for_is_read() {
        assert_eq!(rate(SAID, false).unwrap().round(), 94_691.0);
        let before = format!("fio: a word before\n{SAID}");
        assert!(rate(&before, false).is_ok());
    }

    #[test]
    fn nothing_done_and_an_error_are_failures() {
        let none = rate(SAID, true).unwrap_err().to_string();
        assert_eq!(none, "fio had no request answered");
        let failed = SAID.replace("\"error\" : 0", "\"error\" : 5");
        assert_eq!(rate(&failed, false).unwrap_err().to_string(), "fio's job ended with error 5");
        assert!(rate("no JSON", false).is_err());
    }

    #[test]
    fn it_polls_and_goes_by_time() {
        let job = Job {
            socket: "/run/a b.sock".into(),
            core: 1,
            is_write: true,
            depth: 32,
            block_bytes: 4096,
            times_ms: [500, 3000],
        };
        let words = arguments(&job);
        for word in [
            "--rw=randwrite",
            "--bs=4096",
            "--iodepth=32",
            "--libblkio_wait_mode=loop",
            "--ramp_time=500ms",
            "--runtime=3000ms",
            "--libblkio_path=/run/a b.sock",
        ] {
            assert!(words.iter().any(|each| each == word), "{word} is not among {words:?}");
        }
    }
}
