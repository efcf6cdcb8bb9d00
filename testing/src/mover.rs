//! An operator who moves queues of disks, and NICs, between sidecores, faster than a command line could be started.
//!
//! Speaks to the API's socket itself, one request a connection. Not for other calls: those are
//! the `sidecore` program's.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::timing::PATIENCE;

/// What became of a wish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// Its queues are there.
    Done,
    /// Refused for now: requests or frames did not end in time, or something else happens to it.
    NotNow,
    /// Refused: there is no such disk, queue or NIC.
    Never,
}

/// Where the API is.
#[derive(Clone, Debug)]
pub struct Mover {
    socket: PathBuf,
}

impl Mover {
    /// Of the daemon whose folder this is.
    pub fn new(folder: &Path) -> Mover {
        Mover { socket: folder.join("api.sock") }
    }

    /// Moves every queue of `disk` to sidecore `to`.
    ///
    /// # Errors
    /// No answer, or one that is none of [`Wish`].
    pub fn move_disk(&self, disk: &str, to: u16) -> Result<Wish> {
        self.move_device("disks", disk, to)
    }

    /// Moves a NIC with all its queues.
    ///
    /// # Errors
    /// As [`Mover::move_disk`].
    pub fn move_nic(&self, nic: &str, to: u16) -> Result<Wish> {
        self.move_device("nics", nic, to)
    }

    fn move_device(&self, kind: &str, id: &str, to: u16) -> Result<Wish> {
        let answer = self.post(&format!("/v1/{kind}/{id}/move"), &format!("{{\"to\":{to}}}"))?;
        let status = answer.split(' ').nth(1).context("an answer without a status")?;
        Ok(match status {
            "200" => Wish::Done,
            "503" => Wish::NotNow,
            "404" | "422" => Wish::Never,
            _ => bail!("moving {id} to {to}: {answer}"),
        })
    }

    fn post(&self, path: &str, body: &str) -> Result<String> {
        let mut stream = UnixStream::connect(&self.socket).context("the API")?;
        stream.set_read_timeout(Some(PATIENCE))?;
        write!(
            stream,
            "POST {path} HTTP/1.1\r\nHost: sidecore\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    }
}
