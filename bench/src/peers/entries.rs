//! The rows: what is done in each, and how many times the best other one is wanted.
//!
//! Not how it is done. Wanted is 1.5 with our driver, where the back-end is the limit, 1.0 where the
//! client is, and 1.2 elsewhere.

use testing::slots::Kind;

use crate::blk::{Backend, Load};
use crate::net::{Ring, What};

/// A row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    /// Its name in data and on the command line.
    pub(super) name: &'static str,
    /// What it is called in the table.
    pub(super) what: &'static str,
    /// How many times the best other one is wanted; none where there is nobody to beat.
    pub(super) wanted: Option<f64>,
    pub(super) work: Work,
}

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    Disk(DiskLoad),
    /// A NIC of one guest and testpmd, or two through the switch.
    Pair {
        ring: Ring,
        what: What,
        size: u32,
    },
    /// 64 KiB segments from guest to guest, beside plain copies.
    Segments,
}

/// What is asked of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DiskLoad {
    pub(super) backend: Backend,
    pub(super) client: Load,
    pub(super) kind: Kind,
    pub(super) depth: u16,
}

impl Work {
    /// Whether both are measured with the same disks and the same client.
    pub(super) fn shares_servers(&self, other: &Work) -> bool {
        match (self, other) {
            (Work::Disk(one), Work::Disk(other)) => {
                one.backend == other.backend && one.client == other.client
            }
            _ => false,
        }
    }
}

const OWN: Option<f64> = Some(1.5);
const SERVER: Option<f64> = Some(1.2);
const CLIENT: Option<f64> = Some(1.0);

const fn disk(
    name: &'static str,
    what: &'static str,
    wanted: Option<f64>,
    (backend, client, kind, depth): (Backend, Load, Kind, u16),
) -> Entry {
    Entry { name, what, wanted, work: Work::Disk(DiskLoad { backend, client, kind, depth }) }
}

const fn nic(
    name: &'static str,
    what: &'static str,
    (ring, load, size): (Ring, What, u32),
) -> Entry {
    Entry { name, what, wanted: SERVER, work: Work::Pair { ring, what: load, size } }
}

use Backend::{Direct, File, Memory, Null};
use Kind::{Read, Write};
use Load::{Bdevperf, Fio, Own};
use Ring::{Packed, Split};

/// All rows, in the order of the table.
pub(super) const ENTRIES: &[Entry] = &[
    disk("blk.null.own.read.32", "null, our driver, depth 32", OWN, (Null, Own, Read, 32)),
    disk("blk.null.bdevperf.read.1", "null, bdevperf, depth 1", CLIENT, (Null, Bdevperf, Read, 1)),
    disk(
        "blk.null.bdevperf.read.32",
        "null, bdevperf, depth 32",
        CLIENT,
        (Null, Bdevperf, Read, 32),
    ),
    disk(
        "blk.null.bdevperf.read.128",
        "null, bdevperf, depth 128",
        CLIENT,
        (Null, Bdevperf, Read, 128),
    ),
    disk("blk.null.fio.read.1", "null, fio, depth 1", CLIENT, (Null, Fio, Read, 1)),
    disk("blk.null.fio.read.32", "null, fio, depth 32", CLIENT, (Null, Fio, Read, 32)),
    disk("blk.null.fio.read.128", "null, fio, depth 128", CLIENT, (Null, Fio, Read, 128)),
    disk("blk.ram.bdevperf.read.1", "RAM, bdevperf, depth 1", SERVER, (Memory, Bdevperf, Read, 1)),
    disk(
        "blk.ram.bdevperf.read.32",
        "RAM, bdevperf, depth 32",
        SERVER,
        (Memory, Bdevperf, Read, 32),
    ),
    disk("blk.ram.fio.read.1", "RAM, fio, depth 1", SERVER, (Memory, Fio, Read, 1)),
    disk("blk.ram.fio.read.32", "RAM, fio, depth 32", SERVER, (Memory, Fio, Read, 32)),
    disk("blk.ram.own.read.32", "RAM, our driver, depth 32, read", OWN, (Memory, Own, Read, 32)),
    disk("blk.ram.own.write.32", "RAM, our driver, depth 32, write", OWN, (Memory, Own, Write, 32)),
    disk(
        "blk.tmpfs.bdevperf.read.32",
        "tmpfs, bdevperf, depth 32, read",
        SERVER,
        (File, Bdevperf, Read, 32),
    ),
    disk(
        "blk.tmpfs.bdevperf.write.32",
        "tmpfs, bdevperf, depth 32, write",
        SERVER,
        (File, Bdevperf, Write, 32),
    ),
    disk("blk.tmpfs.fio.read.32", "tmpfs, fio, depth 32, read", SERVER, (File, Fio, Read, 32)),
    disk("blk.tmpfs.fio.write.32", "tmpfs, fio, depth 32, write", SERVER, (File, Fio, Write, 32)),
    disk("blk.direct.fio.read.1", "O_DIRECT, fio, depth 1, read", SERVER, (Direct, Fio, Read, 1)),
    disk(
        "blk.direct.fio.write.1",
        "O_DIRECT, fio, depth 1, write",
        SERVER,
        (Direct, Fio, Write, 1),
    ),
    disk(
        "blk.direct.fio.read.32",
        "O_DIRECT, fio, depth 32, read",
        SERVER,
        (Direct, Fio, Read, 32),
    ),
    disk(
        "blk.direct.fio.write.32",
        "O_DIRECT, fio, depth 32, write",
        SERVER,
        (Direct, Fio, Write, 32),
    ),
    nic("net.split.64.echo", "split ring, 64 B, echo", (Split, What::Loop, 64)),
    nic("net.split.64.receive", "split ring, 64 B, receive", (Split, What::Rx, 64)),
    nic("net.split.64.send", "split ring, 64 B, send", (Split, What::Tx, 64)),
    nic("net.split.1514.echo", "split ring, 1,514 B, echo", (Split, What::Loop, 1514)),
    nic("net.split.1514.receive", "split ring, 1,514 B, receive", (Split, What::Rx, 1514)),
    nic("net.split.1514.send", "split ring, 1,514 B, send", (Split, What::Tx, 1514)),
    nic("net.packed.64.echo", "packed ring, 64 B, echo", (Packed, What::Loop, 64)),
    nic("net.packed.64.receive", "packed ring, 64 B, receive", (Packed, What::Rx, 64)),
    nic("net.packed.64.send", "packed ring, 64 B, send", (Packed, What::Tx, 64)),
    nic("net.packed.1514.echo", "packed ring, 1,514 B, echo", (Packed, What::Loop, 1514)),
    nic("net.packed.1514.receive", "packed ring, 1,514 B, receive", (Packed, What::Rx, 1514)),
    nic("net.packed.1514.send", "packed ring, 1,514 B, send", (Packed, What::Tx, 1514)),
    nic("net.switch.64", "guest to guest, 64 B", (Split, What::Switch, 64)),
    nic("net.switch.1514", "guest to guest, 1,514 B", (Split, What::Switch, 1514)),
    Entry {
        name: "net.switch.64k",
        what: "guest to guest, segments of 64 KiB",
        wanted: None,
        work: Work::Segments,
    },
];

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn no_two_rows_have_one_name_and_disks_share_servers() {
        let names: HashSet<&str> = ENTRIES.iter().map(|entry| entry.name).collect();
        assert_eq!(names.len(), ENTRIES.len());
        let groups: Vec<&[Entry]> =
            ENTRIES.chunk_by(|one, next| one.work.shares_servers(&next.work)).collect();
        let disks = groups.iter().filter(|group| matches!(group[0].work, Work::Disk(_)));
        assert_eq!(disks.count(), 9);
    }
}
