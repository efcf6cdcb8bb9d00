//! Requests of memcached's text protocol and of HTTP/1.1, and how long their answers are.
//!
//! Nothing that is sent or read (`ask`).

use anyhow::{Result, bail, ensure};

/// Of an answer: headers of a page, and its file.
pub(super) const REPLY_MAX: usize = 64 << 10;
/// Values that are asked for, of each of which there is one.
pub(super) const KEYS: u32 = 1000;
/// Bytes of one.
const VALUE_SIZE: usize = 1024;
/// A request of so many stores a value.
const SETS_EACH: u32 = 10;
/// Of HTTP's headers.
const HEAD_MAX: usize = 4 << 10;

/// What is asked next.
pub(super) struct Protocol {
    request: Vec<u8>,
    kind: Kind,
}

enum Kind {
    /// How many requests there were.
    Memcached {
        count: u32,
    },
    Http,
}

impl Protocol {
    /// Connections have numbers so that they do not ask for the same at the same time.
    pub(super) fn memcached(number: u16) -> Protocol {
        let count = u32::from(number) * 13;
        Protocol { request: Vec::with_capacity(2 * VALUE_SIZE), kind: Kind::Memcached { count } }
    }

    /// # Errors
    /// `path` is none, or would be more than a path.
    pub(super) fn http(path: &str) -> Result<Protocol> {
        let is_path = path.starts_with('/') && path.bytes().all(|byte| byte.is_ascii_graphic());
        ensure!(is_path && path.len() < 1000, "path: `{path}`, not as `/1k`");
        let request = format!("GET {path} HTTP/1.1\r\nHost: lab\r\n\r\n").into_bytes();
        Ok(Protocol { request, kind: Kind::Http })
    }

    pub(super) fn request(&self) -> &[u8] {
        &self.request
    }

    /// Goes on to another request. The same ones each time.
    pub(super) fn next(&mut self) {
        let Kind::Memcached { count } = &mut self.kind else { return };
        *count = count.wrapping_add(1);
        // 7 has no divisor with `KEYS`: all come in turn.
        let (key, is_set) = (count.wrapping_mul(7) % KEYS, *count % SETS_EACH == 0);
        if is_set { self.set(key) } else { self.get(key) }
    }

    pub(super) fn get(&mut self, key: u32) {
        self.request.clear();
        self.request.extend(format!("get lab{key:06}\r\n").bytes());
    }

    pub(super) fn set(&mut self, key: u32) {
        self.request.clear();
        self.request.extend(format!("set lab{key:06} 0 0 {VALUE_SIZE}\r\n").bytes());
        self.request.extend((0..VALUE_SIZE).map(|at| b'a' + (at % 26) as u8));
        self.request.extend(b"\r\n");
    }

    /// How long the answer is that begins so, if that can be told by now.
    ///
    /// # Errors
    /// It is none, or says that it cannot be done.
    pub(super) fn reply_bytes(&self, came: &[u8]) -> Result<Option<usize>> {
        match self.kind {
            Kind::Memcached { .. } => memcached_bytes(came),
            Kind::Http => http_bytes(came),
        }
    }
}

fn memcached_bytes(came: &[u8]) -> Result<Option<usize>> {
    let line = &came[..came.len().min(100)];
    let Some(end) = line.windows(2).position(|pair| pair == b"\r\n") else {
        ensure!(came.len() < 100, "memcached answers `{}`", line.escape_ascii());
        return Ok(None);
    };
    let line = &line[..end];
    if line == b"STORED" {
        return Ok(Some(end + 2));
    }
    let is_value = line.starts_with(b"VALUE lab") && line.ends_with(b" 0 1024");
    ensure!(is_value, "memcached answers `{}`", line.escape_ascii());
    let whole = end + 2 + VALUE_SIZE + b"\r\nEND\r\n".len();
    ensure!(came.len() < whole || came[..whole].ends_with(b"\r\nEND\r\n"), "a value has no end");
    Ok(Some(whole))
}

fn http_bytes(came: &[u8]) -> Result<Option<usize>> {
    let head = &came[..came.len().min(HEAD_MAX)];
    let Some(end) = head.windows(4).position(|four| four == b"\r\n\r\n") else {
        ensure!(came.len() < HEAD_MAX, "an answer's head is longer than {HEAD_MAX} bytes");
        return Ok(None);
    };
    let head = String::from_utf8_lossy(&head[..end]);
    let mut lines = head.split("\r\n");
    let status = lines.next().unwrap_or_default();
    ensure!(status.starts_with("HTTP/1.1 200"), "the server answers `{status}`");
    for line in lines {
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            let bytes: usize = value.trim().parse()?;
            ensure!(bytes <= REPLY_MAX - end - 4, "a file of {bytes} bytes is too long");
            return Ok(Some(end + 4 + bytes));
        }
    }
    bail!("the server does not say how long its answer is");
}
