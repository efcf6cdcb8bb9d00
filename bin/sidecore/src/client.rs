//! Asks the daemon: HTTP over its Unix socket.

use std::cell::Cell;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::time::Duration;

use config::api::{ApiError, ErrorKind};
use config::routes::Method;
use http_body_util::{BodyExt, Full, Limited};
use hyper::Request;
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;
use tokio::time::{sleep, timeout};

use crate::failure::Failure;
use crate::process::Process;

/// How long an answer is waited for, in seconds of this process: longer than the daemon takes to refuse what its control
/// does not come to.
const ANSWER_S_MAX: u64 = 25;
/// The same of an upgrade: longer than the daemon takes to give one up.
const UPGRADE_S_MAX: u64 = 80;
/// Between two tries to connect where as many wait as may.
const CONNECT_AGAIN: Duration = Duration::from_millis(20);
/// How often what changes nothing is asked.
const TRIES: u32 = 3;
/// Longest answer, in bytes: some thousand disks.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// The daemon behind one socket.
pub(crate) struct Client {
    socket: String,
    /// As the operator says; without, as long as each call may take.
    limit: Option<Duration>,
    /// Who listens at the socket that was connected to last, as far as that is known.
    listener: Cell<Option<u32>>,
    /// Why nobody could be connected to, where it was tried in vain.
    unreached: Cell<Option<io::ErrorKind>>,
}

impl Client {
    /// Its socket.
    pub(crate) fn socket(&self) -> &str {
        &self.socket
    }

    pub(crate) fn new(socket: String) -> Client {
        Client { socket, limit: None, listener: Cell::new(None), unreached: Cell::new(None) }
    }

    /// Why nobody could be connected to; nothing, where somebody could be.
    pub(crate) fn unreached(&self) -> Option<io::ErrorKind> {
        self.unreached.get()
    }

    /// One that waits no longer than that for an answer, whatever is asked.
    pub(crate) fn within(self, limit: Option<Duration>) -> Client {
        Client { limit, ..self }
    }

    /// The number that the daemon which was asked last has here, as the kernel says, where it tells that one itself; 0
    /// where it is in another container, whose numbers are others here.
    pub(crate) fn number_of(&self, told: u32) -> u32 {
        match self.listener.get().unwrap_or(0) {
            // One of an earlier version that took over listens in the name of who has ended.
            seen if seen != 0 && !Path::new(&format!("/proc/{seen}")).exists() => told,
            seen => seen,
        }
    }

    /// Whether numbers of processes that the daemon tells, its own among them, are those of the same processes here.
    pub(crate) fn shares_numbers(&self, told: u32) -> bool {
        told != 0 && self.number_of(told) == told
    }

    /// Asks without a body.
    pub(crate) fn ask<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
    ) -> Result<T, Failure> {
        self.exchange(method, path, Vec::new())
    }

    /// Asks with a body.
    pub(crate) fn send<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, Failure> {
        let body = serde_json::to_vec(body).map_err(|error| {
            Failure::usage(format!("no request could be made: {error}"), "report it")
        })?;
        self.exchange(method, path, body)
    }

    /// Asks without a body, and waits no longer than that.
    pub(crate) fn ask_soon<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        within: Duration,
    ) -> Result<T, Failure> {
        let within = self.limit.map_or(within, |limit| limit.min(within));
        self.exchange_within(method, path, Vec::new(), within)
    }

    fn exchange<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Vec<u8>,
    ) -> Result<T, Failure> {
        let usual = match path.split('?').next().unwrap_or_default() {
            "/v1/upgrade" => UPGRADE_S_MAX,
            _ => ANSWER_S_MAX,
        };
        let limit = self.limit.unwrap_or(Duration::from_secs(usual));
        self.exchange_within(method, path, body, limit)
    }

    fn exchange_within<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Vec<u8>,
        limit: Duration,
    ) -> Result<T, Failure> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| self.broken(&error))?;
        let (status, bytes) = runtime.block_on(async {
            let mut answer = std::pin::pin!(self.http_again(method, path, body));
            // By steps: a machine that stood still is no reason to give up.
            let mut left = limit;
            while !left.is_zero() {
                let step = left.min(Duration::from_secs(1));
                if let Ok(answer) = timeout(step, &mut answer).await {
                    return answer;
                }
                left -= step;
            }
            Err(self.silent(method, path, limit))
        })?;
        if !(200..300).contains(&status) {
            return Err(self.refusal(status, &bytes));
        }
        serde_json::from_slice(&bytes).map_err(|error| {
            self.broken(&format!("its answer is not what this version knows ({error})"))
        })
    }

    /// Asks again, if nothing is changed by that, when the daemon closes the connection without a word: it does to a client
    /// that is too slow for it, as all are on a machine that stood still.
    async fn http_again(
        &self,
        method: Method,
        path: &str,
        body: Vec<u8>,
    ) -> Result<(u16, Bytes), Failure> {
        let mut left = if method == Method::Get { TRIES } else { 1 };
        loop {
            let stream = match UnixStream::connect(&self.socket).await {
                // So many wait to be let in that no more may.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    sleep(CONNECT_AGAIN).await;
                    continue;
                }
                connected => connected.map_err(|error| self.unreachable(&error))?,
            };
            self.listener
                .set(stream.peer_cred().ok().and_then(|peer| u32::try_from(peer.pid()?).ok()));
            left -= 1;
            match self.http(stream, method, path, body.clone()).await {
                Err(_) if left > 0 => {}
                answered => return answered,
            }
        }
    }

    async fn http(
        &self,
        stream: UnixStream,
        method: Method,
        path: &str,
        body: Vec<u8>,
    ) -> Result<(u16, Bytes), Failure> {
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| self.broken(&in_words(&error)))?;
        tokio::spawn(connection);
        let request = Request::builder()
            .method(method.word().to_uppercase().as_str())
            .uri(path)
            .header("host", "sidecore")
            .header("content-type", "application/json")
            .body(Full::new(Bytes::from(body)))
            .map_err(|error| {
                Failure::usage(format!("no request could be made: {error}"), "report it")
            })?;
        let response = sender.send_request(request).await;
        let response = response.map_err(|error| self.broken(&in_words(&error)))?;
        let status = response.status().as_u16();
        let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
        Ok((status, body.map_err(|error| self.broken(&error))?.to_bytes()))
    }

    fn refusal(&self, status: u16, bytes: &[u8]) -> Failure {
        // Every refusal of a daemon says why.
        let Ok(mut error) = serde_json::from_slice::<ApiError>(bytes) else {
            return self.broken(&format!("status {status} without a word is no answer of its API"));
        };
        let told = [ErrorKind::NotFound, ErrorKind::Busy];
        if let Some(kind) = told.into_iter().find(|kind| kind.status() == status) {
            error.kind = kind;
        }
        Failure::Refused(error)
    }

    fn unreachable(&self, error: &io::Error) -> Failure {
        self.unreached.set(Some(error.kind()));
        let hint = match error.kind() {
            _ if self.socket.contains("://") || !self.socket.contains('/') => {
                "the API is a Unix socket: name its path, such as /run/sidecore/api.sock, with \
                 --api or SIDECORE_API"
            }
            io::ErrorKind::ConnectionRefused if self.is_no_socket() => {
                "that is no socket: name the one of the daemon's API with --api or SIDECORE_API"
            }
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                "start the daemon (`sidecore serve`, or `systemctl start sidecore`), or name its \
                 socket with --api or SIDECORE_API; one that runs makes its socket anew on SIGHUP, if that was removed"
            }
            io::ErrorKind::PermissionDenied => {
                "run the command as root, or as a user whom `api_owner`, `api_group` and `api_mode` in [daemon] let \
                 in; what only shows may be asked at the socket of `api_read`"
            }
            io::ErrorKind::InvalidInput => {
                "name the socket of the daemon's API with --api or SIDECORE_API: a path of at most 107 bytes"
            }
            _ => "name the socket of the daemon's API with --api or SIDECORE_API",
        };
        let what = match error.kind() {
            // One may well be there.
            io::ErrorKind::PermissionDenied => "this user may not ask the daemon at",
            _ => "no daemon answers at",
        };
        Failure::Unreachable {
            error: format!("{what} {:?}: {error}", self.socket),
            hint: hint.to_string(),
        }
    }

    fn is_no_socket(&self) -> bool {
        Path::new(&self.socket).metadata().is_ok_and(|found| !found.file_type().is_socket())
    }

    fn silent(&self, method: Method, path: &str, limit: Duration) -> Failure {
        let method = method.word().to_uppercase();
        let error = format!(
            "the daemon at {:?} gave no answer to {method} {path} within {limit:?}",
            self.socket
        );
        let mut hint = match self.listener.get().filter(|pid| is_stopped(*pid)) {
            Some(pid) => format!("process {pid} is stopped: `kill -CONT {pid}` lets it go on"),
            None => "it is busy, stopped or stuck: see its log (`journalctl -u sidecore`) and `systemctl status \
                     sidecore`; an upgrade that waits for a disk answers nobody for up to 25 s; `--timeout` waits longer"
                .to_string(),
        };
        if method != "GET" {
            hint += "; what was asked for may still be done: look before you ask again";
        }
        Failure::Silent { error, hint }
    }

    fn broken(&self, error: &dyn std::fmt::Display) -> Failure {
        Failure::Unreachable {
            error: format!("the daemon at {:?} could not be asked: {error}", self.socket),
            hint:
                "see its log (`journalctl -u sidecore`), and whether this is the socket of its API"
                    .to_string(),
        }
    }
}

/// Whether that process is stopped by a signal, so that another one lets it go on. One that has gone, is traced or is not
/// seen is not.
pub(crate) fn is_stopped(pid: u32) -> bool {
    Process::of(pid).is_some_and(|process| process.is_stopped())
}

/// What became of a request, for who knows no client's insides.
fn in_words(error: &hyper::Error) -> String {
    match error {
        _ if error.is_parse() => "what answers there does not speak HTTP".to_string(),
        _ if error.is_canceled() || error.is_incomplete_message() || error.is_closed() => {
            "the connection was closed before an answer came".to_string()
        }
        _ => error.to_string(),
    }
}

/// The path of a device of `kinds` (`disks`, `nics`, `switches`), whatever its name is.
pub(crate) fn path_of(kinds: &str, id: &str, rest: &str) -> String {
    let mut path = format!("/v1/{kinds}/");
    for byte in id.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' => path.push(char::from(byte)),
            // Dots too: `..` would be another path.
            _ => path.push_str(&format!("%{byte:02X}")),
        }
    }
    path + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One that listens and never answers is a daemon that was stopped, or is stuck.
    #[test]
    fn a_daemon_that_does_not_answer_is_given_up_and_what_was_asked_is_told() {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("api.sock").display().to_string();
        let _silent = std::os::unix::net::UnixListener::bind(&socket).expect("a listener");
        let client = Client::new(socket.clone()).within(Some(Duration::from_millis(20)));
        let told = |asked: Result<serde_json::Value, Failure>| {
            let failure = asked.expect_err("nobody answers");
            (failure.code(), failure.parts())
        };
        let (code, (error, hint)) = told(client.ask(Method::Get, "/v1/disks"));
        let expected =
            format!("the daemon at {socket:?} gave no answer to GET /v1/disks within 20ms");
        assert_eq!((code, error), (3, expected));
        assert!(hint.starts_with("it is busy, stopped or stuck: see its log"), "{hint}");
        assert!(!hint.contains("look before"), "{hint}");
        let (code, (_, hint)) = told(client.ask(Method::Post, "/v1/reload"));
        assert_eq!(code, 3);
        assert!(hint.ends_with("may still be done: look before you ask again"), "{hint}");
    }

    /// A daemon in a container tells its own number there, which somebody else has here.
    #[test]
    fn a_number_that_the_kernel_does_not_know_a_daemon_by_is_a_stranger_s() {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("api.sock").display().to_string();
        let client = Client::new(socket.clone()).within(Some(Duration::from_millis(20)));
        let own = std::process::id();
        assert!(!client.shares_numbers(own) && !client.shares_numbers(0), "nobody was asked");
        let _silent = std::os::unix::net::UnixListener::bind(&socket).expect("a listener");
        let asked = client.ask::<serde_json::Value>(Method::Get, "/v1/daemon");
        assert!(asked.is_err());
        assert!(client.shares_numbers(own) && !client.shares_numbers(own + 1));
        assert_eq!((client.shares_numbers(0), client.number_of(7)), (false, own));
        // Who listened first has ended, and the one that took over says who it is.
        client.listener.set(Some(u32::MAX));
        assert_eq!((client.shares_numbers(7), client.number_of(7)), (true, 7));
    }

    #[test]
    fn a_process_that_runs_or_is_none_is_not_stopped() {
        assert!(!is_stopped(std::process::id()));
        assert!(!is_stopped(u32::MAX));
    }

    #[test]
    fn names_cannot_leave_their_place_in_a_path() {
        assert_eq!(path_of("disks", "vm-1_a", "/resize"), "/v1/disks/vm-1_a/resize");
        assert_eq!(path_of("nics", "../x ?é", ""), "/v1/nics/%2E%2E%2Fx%20%3F%C3%A9");
    }
}
