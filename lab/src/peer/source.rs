//! The sources: datagrams that a guest asked for, no more (`grant`), and messages on a connection, as fast as
//! TCP takes them.
//!
//! What asks wrongly gets nothing. Nothing is remembered of who asks. Run by `peer` on its threads.

use std::io::{self, Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::time::Duration;

use super::{Failures, SILENCE};
use crate::grant::{DATAGRAM_SIZES, GRANT_SIZE, Grant, WRITE_SIZES};

/// A guest that does not take its datagrams for so long does not get the rest: others wait.
const FULL: Duration = Duration::from_secs(1);

pub(super) fn datagrams(socket: &UdpSocket) -> io::Result<()> {
    socket.set_write_timeout(Some(FULL))?;
    // A byte more, so that what is too long is not taken for a grant.
    let mut line = [0; GRANT_SIZE + 1];
    let mut message = vec![0; *DATAGRAM_SIZES.end() as usize];
    let mut failures = Failures::default();
    loop {
        let Some((bytes, to)) = failures.bear(socket.recv_from(&mut line))? else { continue };
        let Some(grant) = Grant::decode(&line[..bytes]) else { continue };
        for number in grant.numbers() {
            message[..8].copy_from_slice(&number.to_le_bytes());
            if socket.send_to(&message[..grant.bytes as usize], to).is_err() {
                // What is lost the guest asks for again.
                break;
            }
        }
    }
}

/// The first four bytes that come say how many a message has; it ends with the connection.
pub(super) fn messages(mut stream: TcpStream) -> io::Result<()> {
    stream.set_read_timeout(Some(SILENCE))?;
    stream.set_write_timeout(Some(SILENCE))?;
    let mut asked = [0; 4];
    stream.read_exact(&mut asked)?;
    let bytes = u32::from_le_bytes(asked);
    if !WRITE_SIZES.contains(&bytes) {
        return Ok(());
    }
    let message: Vec<u8> = (0..bytes).map(|index| index as u8).collect();
    loop {
        stream.write_all(&message)?;
    }
}
