//! What links are given up, and begin with: packets, sockets and memory files of their shards.
//!
//! Not what is in them (`remote::handing`). Called by `bequest` and by the loop.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{MemfdFlags, memfd_create};
use sidecore::Link;

use super::channel::{Channel, SEND_TIME_MAX};
use super::error::ShardError;
use super::estate::ShardEstate;
use super::wire::{FromPredecessor, KNOWN_MAX};
use crate::remote::Remote;
use crate::remote::handing::InheritedShard;
use crate::remote::words::ShardWords;

/// Shards whose words and bytes are in files.
#[derive(Default)]
pub(crate) struct SavedShards(Vec<SavedShard>);

struct SavedShard {
    link: String,
    shard: usize,
    socket: OwnedFd,
    file: OwnedFd,
    words: u64,
    bytes: u64,
}

impl SavedShards {
    /// Writes down what is known of one more, which is here and at rest.
    ///
    /// # Errors
    /// What the kernel said.
    pub(crate) fn save(
        &mut self,
        (id, shard, link): (&str, usize, &Link),
        (words, bytes): (ShardWords, Vec<u8>),
    ) -> Result<(), ShardError> {
        let failed = |source: io::Error| ShardError::Save { link: id.to_string(), source };
        let words = serde_json::to_vec(&words).map_err(|error| failed(error.into()))?;
        let file = memfd_create("sidecore-shard", MemfdFlags::CLOEXEC);
        let file = file.map_err(|error| failed(error.into()))?;
        write_at(&file, 0, &words).map_err(failed)?;
        write_at(&file, words.len() as u64, &bytes).map_err(failed)?;
        let socket = match link {
            Link::Client(link) => link.socket().handed().try_clone_to_owned(),
            Link::Host(link) => link.socket().handed().try_clone_to_owned(),
        };
        let socket = socket.map_err(failed)?;
        let (words, bytes) = (words.len() as u64, bytes.len() as u64);
        self.0.push(SavedShard { link: id.to_string(), shard, socket, file, words, bytes });
        Ok(())
    }

    pub(super) fn send(&self, channel: &Channel) -> io::Result<()> {
        for saved in &self.0 {
            let SavedShard { link, shard, socket, file, words, bytes } = saved;
            let (link, shard, words, bytes) = (link.clone(), *shard, *words, *bytes);
            let packet = FromPredecessor::Shard { link, shard, words, bytes };
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

/// What a link begins with: a socket and a part for each shard.
pub(crate) struct LinkEstate {
    pub(crate) id: String,
    pub(crate) sockets: Vec<OwnedFd>,
    pub(crate) parts: Vec<InheritedShard>,
}

/// Makes of shards what links begin with.
///
/// # Errors
/// What makes no sense.
pub(crate) fn links_of(all: Vec<ShardEstate>) -> Result<Vec<LinkEstate>, ShardError> {
    let mut links: BTreeMap<String, Vec<ShardEstate>> = BTreeMap::new();
    for shard in all {
        links.entry(shard.link.clone()).or_default().push(shard);
    }
    links.into_iter().map(|(id, shards)| link_of(id, shards)).collect()
}

fn link_of(id: String, mut shards: Vec<ShardEstate>) -> Result<LinkEstate, ShardError> {
    shards.sort_by_key(|shard| shard.shard);
    let (mut sockets, mut parts) = (Vec::new(), Vec::new());
    for (at, estate) in shards.into_iter().enumerate() {
        if estate.shard != at {
            return Err(ShardError::Missing { link: id, shard: at });
        }
        let ShardEstate { shard, socket, file, words, bytes, .. } = estate;
        let read = |at, len| {
            let failed = |source| ShardError::Read { link: id.clone(), shard, source };
            read_at(&file, at, len).map_err(failed)
        };
        let (text, bytes) = (read(0, words)?, read(words, bytes)?);
        let words: ShardWords = serde_json::from_slice(&text)
            .map_err(|source| ShardError::Words { link: id.clone(), shard, source })?;
        sockets.push(socket);
        parts.push(InheritedShard { shard, words, bytes });
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
