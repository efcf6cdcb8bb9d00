//! What one process tells the next of links: in which words.
//!
//! Their form is fixed, since programs of two versions speak it. Not here: packets (`upgrade::wire`), nor what is made of
//! them (`handing`).

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

/// A disk of another machine, as its IOhost has told.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct KnownWords {
    pub(crate) name: String,
    pub(crate) revision: u64,
    pub(crate) size: u64,
    pub(crate) features: u32,
}

/// What control knows of a shard of a link. Behind it are the bytes of the client's end, or of each export in turn.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ShardWords {
    /// Of a client's link.
    pub(crate) client: Option<ClientWords>,
    pub(crate) exports: Vec<ExportWords>,
    /// Who is at home at this shard.
    pub(crate) clients: Vec<WhoWords>,
}

/// A client's end of a link.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ClientWords {
    pub(crate) bytes: u64,
    pub(crate) disks: Vec<NumberWords>,
}

/// A disk that a link has asked for, by its number there.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NumberWords {
    pub(crate) number: u16,
    /// Its name here, and which one it is of which link.
    pub(crate) device: String,
    pub(crate) whose: String,
    /// How large it was when its IOhost said so last, and whether it has become smaller.
    pub(crate) told_bytes: Option<u64>,
    pub(crate) is_shrunk: bool,
}

/// A device that clients may have.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ExportWords {
    pub(crate) name: String,
    pub(crate) bytes: u64,
    pub(crate) generation: u64,
    /// Who has it, or had it last.
    pub(crate) who: Option<WhoWords>,
}

/// A client: its key; where there are none, where it is.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct WhoWords {
    pub(crate) key: [u8; 32],
    pub(crate) udp: Option<SocketAddr>,
    pub(crate) station: Option<[u8; 6]>,
}
