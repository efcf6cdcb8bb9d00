//! What a device is made of: what cannot be changed under its guest.
//!
//! In words, which cross an upgrade: the heir makes the same of its own plan, and where they differ it is another
//! device. So none of them may change with the program; they are those of the first program that had them.

use std::collections::BTreeMap;

use crate::plan::{DevicePlan, DiskPlan, HostPlan, NicPeer, NicPlan, NullPlan, Source};
use crate::spec::{Cache, Mode, Via};

/// The block size of a disk of which the file has none.
const AS_THE_IMAGE: &str = "as the image has it";
/// Words that programs before this one never had, and what their devices were made of.
const SINCE: [(&str, &str); 2] = [("block_size", AS_THE_IMAGE), ("guest_offloads", "true")];

/// What a device is made of: by each field's name, its value in a word.
pub type MadeOf = BTreeMap<String, String>;

/// What the device of that plan is made of.
pub fn made_of(plan: &DevicePlan) -> MadeOf {
    match plan {
        DevicePlan::Disk(disk) => made_of_disk(disk),
        DevicePlan::Nic(nic) => made_of_nic(nic),
    }
}

/// Whether a device that was made of `before` is one that is made of `now`. What only one side has a word for is not
/// compared, if that word is not known of old.
pub fn is_made_of(before: &MadeOf, now: &MadeOf) -> bool {
    now.iter().all(|(name, word)| {
        let of_old = || SINCE.iter().find(|(since, _)| since == name).map(|(_, word)| *word);
        let before = before.get(name).map(String::as_str).or_else(of_old);
        before.is_none_or(|before| before == word)
    })
}

/// The same of a disk.
pub(super) fn made_of_disk(disk: &DiskPlan) -> MadeOf {
    let (source, cache) = match &disk.source {
        Source::Null { .. } => ("null".to_owned(), ""),
        Source::Memory { .. } => ("memory".to_owned(), ""),
        Source::File { path, cache, .. } => (path.clone(), cache_word(*cache)),
        Source::Remote { link, name } => (format!("{link}:{name}"), ""),
    };
    words([
        ("kind", "disk".to_owned()),
        ("source", source),
        ("cache", cache.to_owned()),
        ("socket", disk.socket.clone()),
        ("mode", mode_word(disk.mode).to_owned()),
        ("readonly", disk.readonly.to_string()),
        ("migratable", disk.migratable.to_string()),
        ("serial", disk.serial.clone()),
        ("queues", disk.queues.to_string()),
        ("allow_unsealed_memory", disk.allow_unsealed_memory.to_string()),
        ("block_size", disk.block_size.map_or(AS_THE_IMAGE.to_owned(), |size| size.to_string())),
    ])
}

/// The same of a NIC.
pub(super) fn made_of_nic(nic: &NicPlan) -> MadeOf {
    words([
        ("kind", "nic".to_owned()),
        ("peer", peer_words(&nic.peer)),
        ("mac", nic.mac.to_string()),
        ("socket", nic.socket.clone()),
        ("mode", mode_word(nic.mode).to_owned()),
        ("mtu", nic.mtu.to_string()),
        ("queues", nic.queues.to_string()),
        ("guest_offloads", nic.guest_offloads.to_string()),
        ("allow_unsealed_memory", nic.allow_unsealed_memory.to_string()),
    ])
}

fn words<const N: usize>(words: [(&str, String); N]) -> MadeOf {
    words.into_iter().map(|(name, word)| (name.to_owned(), word)).collect()
}

fn cache_word(cache: Cache) -> &'static str {
    match cache {
        Cache::Auto => "Auto",
        Cache::Direct => "Direct",
        Cache::Page => "Page",
    }
}

fn mode_word(mode: Mode) -> &'static str {
    match mode {
        Mode::Listen => "Listen",
        Mode::Connect => "Connect",
    }
}

fn peer_words(peer: &NicPeer) -> String {
    let host = match peer {
        NicPeer::Switch(id) => return format!("Switch({id:?})"),
        NicPeer::Host(host) => host,
    };
    let host = match host {
        HostPlan::Tap { name } => format!("Tap {{ name: {name:?} }}"),
        HostPlan::Interface { name, via } => {
            let via = match via {
                Via::Packet => "Packet",
                Via::Xdp => "Xdp",
            };
            format!("Interface {{ name: {name:?}, via: {via} }}")
        }
        HostPlan::Remote { link, name } => {
            format!("Remote {{ link: {link:?}, name: {name:?} }}")
        }
        HostPlan::Lent { name } => format!("Lent {{ name: {name:?} }}"),
        HostPlan::Null(NullPlan::Drop) => "Null(Drop)".to_owned(),
        HostPlan::Null(NullPlan::Echo) => "Null(Echo)".to_owned(),
        HostPlan::Null(NullPlan::Generate { size, rate }) => {
            format!("Null(Generate {{ size: {size}, rate: {rate} }})")
        }
    };
    format!("Host({host})")
}

#[cfg(test)]
mod tests;
