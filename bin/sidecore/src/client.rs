//! Asks the daemon: HTTP over its Unix socket.

use std::io;
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
use tokio::time::timeout;

use crate::failure::Failure;

/// Longest time for one request, in seconds of this process: longer than the daemon takes to give up an upgrade.
const REQUEST_S_MAX: u64 = 80;
/// How often what changes nothing is asked.
const TRIES: u32 = 3;
/// Longest answer, in bytes: some thousand disks.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// The daemon behind one socket.
pub(crate) struct Client {
    socket: String,
}

impl Client {
    /// Its socket.
    pub(crate) fn socket(&self) -> &str {
        &self.socket
    }

    pub(crate) fn new(socket: String) -> Client {
        Client { socket }
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
        self.exchange_within(method, path, Vec::new(), within)
    }

    fn exchange<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Vec<u8>,
    ) -> Result<T, Failure> {
        self.exchange_within(method, path, body, Duration::from_secs(REQUEST_S_MAX))
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
            let step = limit.min(Duration::from_secs(1));
            for _ in 0..limit.div_duration_f32(step).round() as u32 {
                if let Ok(answer) = timeout(step, &mut answer).await {
                    return answer;
                }
            }
            Err(self.broken(&format!("no answer within {limit:?}")))
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
            let stream = UnixStream::connect(&self.socket).await;
            let stream = stream.map_err(|error| self.unreachable(&error))?;
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
        if status == ErrorKind::NotFound.status() {
            error.kind = ErrorKind::NotFound;
        }
        Failure::Refused(error)
    }

    fn unreachable(&self, error: &io::Error) -> Failure {
        let hint = match error.kind() {
            _ if self.socket.contains("://") || !self.socket.contains('/') => {
                "the API is a Unix socket: name its path, such as /run/sidecore/api.sock, with \
                 --api or SIDECORE_API"
            }
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                "start the daemon (`sidecore serve`, or `systemctl start sidecore`), or name its \
                 socket with --api or SIDECORE_API"
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

    fn broken(&self, error: &dyn std::fmt::Display) -> Failure {
        Failure::Unreachable {
            error: format!("the daemon at {:?} could not be asked: {error}", self.socket),
            hint:
                "see its log (`journalctl -u sidecore`), and whether this is the socket of its API"
                    .to_string(),
        }
    }
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

    #[test]
    fn names_cannot_leave_their_place_in_a_path() {
        assert_eq!(path_of("disks", "vm-1_a", "/resize"), "/v1/disks/vm-1_a/resize");
        assert_eq!(path_of("nics", "../x ?é", ""), "/v1/nics/%2E%2E%2Fx%20%3F%C3%A9");
    }
}
