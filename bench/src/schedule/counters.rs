//! What a daemon's sidecores counted, asked over its API: one HTTP request on a Unix socket.
//!
//! Not a client of the whole API; that is the `sidecore` program.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

const WAIT: Duration = Duration::from_secs(90);

/// Numbers of one sidecore since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub(super) struct Counters {
    /// Trips of its loop.
    pub(super) passes: u64,
    /// Time in trips that found work, nanoseconds.
    pub(super) busy_ns: u64,
    /// Queues it serves.
    pub(super) queues: u16,
    /// Queues that came from other sidecores, and that were to go and did not.
    #[serde(default)]
    pub(super) moves_in: u64,
    #[serde(default)]
    pub(super) moves_stayed: u64,
    /// How long nobody looked at a queue that came, nanoseconds.
    #[serde(default)]
    pub(super) move_pause_p50_ns: Option<u64>,
    #[serde(default)]
    pub(super) move_pause_p99_ns: Option<u64>,
    #[serde(default)]
    pub(super) move_pause_max_ns: Option<u64>,
}

#[derive(Deserialize)]
struct List {
    sidecores: Vec<Counters>,
}

/// Asks the daemon behind the socket `api` for the counters of its sidecores.
///
/// # Errors
/// No answer within ten seconds, or another than that.
pub(super) fn ask(api: &Path) -> Result<Vec<Counters>> {
    let mut stream = UnixStream::connect(api).context("connecting to the daemon's API")?;
    stream.set_read_timeout(Some(WAIT))?;
    stream.set_write_timeout(Some(WAIT))?;
    let request = "GET /v1/sidecores HTTP/1.1\r\nhost: sidecore\r\nconnection: close\r\n\r\n";
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).context("waiting for the daemon's API")?;
    read(&answer)
}

fn read(answer: &str) -> Result<Vec<Counters>> {
    let (head, body) = answer.split_once("\r\n\r\n").context("an answer without a body")?;
    ensure!(head.starts_with("HTTP/1.1 200"), "the daemon's API says: {answer}");
    let list: List = serde_json::from_str(body).with_context(|| format!("reading {body}"))?;
    ensure!(!list.sidecores.is_empty(), "no sidecore");
    Ok(list.sidecores)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_read_and_a_refusal_is_told() {
        let body = r#"{"sidecores":[{"index":0,"passes":7,"busy_ns":9,"idle_ns":1,"queues":3}]}"#;
        let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n{body}");
        let found = read(&answer).expect("an answer");
        let one = Counters { passes: 7, busy_ns: 9, queues: 3, ..Counters::default() };
        assert_eq!(found, [one]);
        let refused = read("HTTP/1.1 500 no\r\n\r\nwhy").expect_err("a refusal");
        assert!(refused.to_string().contains("500 no"), "{refused}");
        assert!(read("HTTP/1.1 200 OK\r\n\r\n{\"sidecores\":[]}").is_err());
    }
}
