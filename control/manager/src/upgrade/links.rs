//! What links are given up, and begin with: packets, sockets and memory files of their seats.
//!
//! Not what is in them (`remote::handing`). Called by `bequest` and by the loop.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{MemfdFlags, memfd_create};
use sidecore::Link;

use super::channel::{Channel, SEND_TIME_MAX};
use super::error::SeatError;
use super::estate::SeatEstate;
use super::wire::{FromPredecessor, KNOWN_MAX};
use crate::remote::Remote;
use crate::remote::handing::InheritedSeat;
use crate::remote::words::SeatWords;

/// Seats whose words and bytes are in files.
#[derive(Default)]
pub(crate) struct SavedSeats(Vec<SavedSeat>);

struct SavedSeat {
    link: String,
    seat: usize,
    socket: OwnedFd,
    file: OwnedFd,
    words: u64,
    bytes: u64,
}

impl SavedSeats {
    /// Writes down what is known of one more, which is here and at rest.
    ///
    /// # Errors
    /// What the kernel said.
    pub(crate) fn save(
        &mut self,
        (id, seat, link): (&str, usize, &Link),
        (words, bytes): (SeatWords, Vec<u8>),
    ) -> Result<(), SeatError> {
        let failed = |source: io::Error| SeatError::Save { link: id.to_string(), source };
        let words = serde_json::to_vec(&words).map_err(|error| failed(error.into()))?;
        let file = memfd_create("sidecore-seat", MemfdFlags::CLOEXEC);
        let file = file.map_err(|error| failed(error.into()))?;
        write_at(&file, 0, &words).map_err(failed)?;
        write_at(&file, words.len() as u64, &bytes).map_err(failed)?;
        let socket = match link {
            Link::Client(link) => link.socket().handed().try_clone_to_owned(),
            Link::Host(link) => link.socket().handed().try_clone_to_owned(),
        };
        let socket = socket.map_err(failed)?;
        let (words, bytes) = (words.len() as u64, bytes.len() as u64);
        self.0.push(SavedSeat { link: id.to_string(), seat, socket, file, words, bytes });
        Ok(())
    }

    pub(super) fn send(&self, channel: &Channel) -> io::Result<()> {
        for saved in &self.0 {
            let SavedSeat { link, seat, socket, file, words, bytes } = saved;
            let (link, seat, words, bytes) = (link.clone(), *seat, *words, *bytes);
            let packet = FromPredecessor::Seat { link, seat, words, bytes };
            channel.send(&packet, &[socket.as_fd(), file.as_fd()], SEND_TIME_MAX)?;
        }
        Ok(())
    }
}

/// Tells what IOhosts have told, and what clients were told.
pub(super) fn send_known(remote: &Remote, channel: &Channel) -> io::Result<()> {
    if remote.is_empty() {
        return Ok(());
    }
    let run = remote.run();
    channel.send(&FromPredecessor::Remote { run }, &[], SEND_TIME_MAX)?;
    for (link, disks) in remote.known() {
        let mut disks = disks.into_iter().peekable();
        while disks.peek().is_some() {
            let some = disks.by_ref().take(KNOWN_MAX).collect();
            let packet = FromPredecessor::Known { link: link.to_string(), disks: some };
            channel.send(&packet, &[], SEND_TIME_MAX)?;
        }
    }
    Ok(())
}

/// What a link begins with: a socket and a part for each seat.
pub(crate) struct LinkEstate {
    pub(crate) id: String,
    pub(crate) sockets: Vec<OwnedFd>,
    pub(crate) parts: Vec<InheritedSeat>,
}

/// Makes of seats what links begin with.
///
/// # Errors
/// What makes no sense.
pub(crate) fn links_of(all: Vec<SeatEstate>) -> Result<Vec<LinkEstate>, SeatError> {
    let mut links: BTreeMap<String, Vec<SeatEstate>> = BTreeMap::new();
    for seat in all {
        links.entry(seat.link.clone()).or_default().push(seat);
    }
    links.into_iter().map(|(id, seats)| link_of(id, seats)).collect()
}

fn link_of(id: String, mut seats: Vec<SeatEstate>) -> Result<LinkEstate, SeatError> {
    seats.sort_by_key(|seat| seat.seat);
    let (mut sockets, mut parts) = (Vec::new(), Vec::new());
    for (at, estate) in seats.into_iter().enumerate() {
        if estate.seat != at {
            return Err(SeatError::Missing { link: id, seat: at });
        }
        let SeatEstate { seat, socket, file, words, bytes, .. } = estate;
        let read = |at, len| {
            let failed = |source| SeatError::Read { link: id.clone(), seat, source };
            read_at(&file, at, len).map_err(failed)
        };
        let (text, bytes) = (read(0, words)?, read(words, bytes)?);
        let words: SeatWords = serde_json::from_slice(&text)
            .map_err(|source| SeatError::Words { link: id.clone(), seat, source })?;
        sockets.push(socket);
        parts.push(InheritedSeat { seat, words, bytes });
    }
    Ok(LinkEstate { id, sockets, parts })
}

fn write_at(file: &OwnedFd, mut at: u64, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let written = rustix::io::pwrite(file, bytes, at)?;
        bytes = bytes.get(written..).unwrap_or_default();
        at += written as u64;
    }
    Ok(())
}

/// So many bytes, which may be less than they are said to be.
fn read_at(file: &OwnedFd, mut at: u64, len: u64) -> io::Result<Vec<u8>> {
    // Said by another process: no memory before there is something for it.
    let has = rustix::fs::fstat(file)?.st_size as u64;
    if at.saturating_add(len) > has {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let mut all = vec![0; len as usize];
    let mut left = all.as_mut_slice();
    while !left.is_empty() {
        let read = rustix::io::pread(file, &mut *left, at)?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        left = left.get_mut(read..).unwrap_or_default();
        at += read as u64;
    }
    Ok(all)
}
