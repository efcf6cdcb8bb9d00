//! One guest, its VMM, its disk, and what is being done to them.

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;

use backend::Cache;
use device::features as bit;
use guest_memory::{Area, Health, Mapping, Seal};
use ledger::{Ledger, Order};
use random::Random;
use rustix::fs::{MemfdFlags, memfd_create};
use virtqueue::Format;
use virtqueue::driver::RingSpec;

use crate::front_end::{FrontEnd, LOG_BYTES};
use crate::guest::{Guest, GuestSpec};
use crate::kernel::Temper;
use crate::layout::{MEMORY, PAGE, SLOTS, TABLE};
use crate::trace::Trace;

/// Sectors of a disk at first, and after it has grown.
const SECTORS: u64 = 160;
pub(crate) const SECTORS_GROWN: u64 = 192;

/// What goes on with a guest's device.
#[derive(Debug)]
pub(crate) enum Stage {
    /// Nobody serves it; its VMM tries to connect at this moment. Its driver starts anew then, or not: what a
    /// dead daemon still reads into its memory ends before another one opens the disk.
    Away { until_ns: u64, starts_anew: bool },
    /// The VMM has hung up, and its daemon does not know the end of it yet. The guest goes on, or not.
    Leaving { guest_goes_on: bool },
    /// It is served, or about to be.
    Running,
    /// Its driver starts anew, when its rings have stopped.
    Resetting,
    /// It is copied while it runs; so many looks at the log are left.
    Copying { copy: Copy, left: u64 },
    /// It stands, and its rings stop.
    Stopping { copy: Copy },
}

/// The memory of a guest at the place where it goes to.
pub(crate) struct Copy(pub(crate) Vec<u8>);

impl std::fmt::Debug for Copy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

pub(crate) struct Machine {
    pub(crate) number: u32,
    pub(crate) guest: Guest,
    pub(crate) front_end: FrontEnd,
    pub(crate) ledger: Ledger,
    /// Which of the machinery's disks.
    pub(crate) disk: usize,
    pub(crate) path: PathBuf,
    _file: OwnedFd,
    pub(crate) cache: Cache,
    pub(crate) bytes: u64,
    /// Which daemon has its disk.
    pub(crate) daemon: usize,
    pub(crate) stage: Stage,
    /// Its guest and its VMM break every rule.
    pub(crate) is_hostile: bool,
    /// Its disk may do so much a second and no more.
    pub(crate) is_limited: bool,
    /// When its daemon tries to open the disk again.
    pub(crate) retry_ns: u64,
    /// The log, as its VMM sees it.
    log: Option<Area>,
}

impl Machine {
    pub(crate) fn new(
        number: u32,
        is_nic: bool,
        random: &mut Random,
        trace: &Trace,
    ) -> Result<Machine, String> {
        let file = memfd_create("disk", MemfdFlags::CLOEXEC).map_err(|e| e.to_string())?;
        let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        let spec = match is_nic {
            false => disk_spec(number, random),
            true => nic_spec(number, random),
        };
        let guest = Guest::new(spec, SECTORS, Random::new(random.next(), 1), trace)?;
        let front_end = FrontEnd::new(&guest);
        let mut ledger = Ledger::new(SECTORS_GROWN, Order::default()).with_cuts();
        let is_through = spec.features & bit::BLK_FLUSH == 0
            || spec.write_through && spec.features & bit::BLK_CONFIG_WCE != 0;
        ledger.set_write_through(is_through);
        Ok(Machine {
            number,
            guest,
            front_end,
            ledger,
            disk: 0,
            path,
            _file: file,
            cache: random.of(&[Cache::Auto, Cache::Auto, Cache::Direct, Cache::Page]),
            bytes: SECTORS * 512,
            daemon: 0,
            stage: Stage::Away { until_ns: 0, starts_anew: false },
            is_hostile: number > 0 && random.one_in(4),
            is_limited: random.one_in(5),
            retry_ns: 0,
            log: None,
        })
    }

    /// The guest that was there is gone, and another one begins on the same disk.
    pub(crate) fn begin_anew(&mut self, random: &mut Random, trace: &Trace) -> Result<(), String> {
        self.guest.forget(&mut self.ledger);
        let stream = Random::new(random.next(), 2);
        let ended = self.guest.ended;
        self.guest = Guest::new(self.guest.spec, self.bytes / 512, stream, trace)?;
        self.guest.ended = ended;
        self.front_end = FrontEnd::new(&self.guest);
        self.log = None;
        Ok(())
    }

    /// Whether its guest's processors stand still.
    pub(crate) fn stands(&self) -> bool {
        matches!(
            self.stage,
            Stage::Resetting
                | Stage::Stopping { .. }
                | Stage::Away { starts_anew: true, .. }
                | Stage::Leaving { guest_goes_on: false }
        )
    }

    /// Its driver must start anew after its daemon was killed, or its connection lost: a packed ring of a NIC
    /// does not show where it stands.
    pub(crate) fn loses_its_place(&self) -> bool {
        self.guest.spec.vlan.is_some() && self.guest.spec.ring.format == Format::Packed
    }

    /// Its memory is copied from now on, as it changes.
    pub(crate) fn begin_copying(&mut self, rounds: u64) -> Result<(), String> {
        self.front_end.set_logging(true)?;
        if let Some(log) = &self.front_end.log {
            let map = Mapping::shared(log, 0, LOG_BYTES, Seal::Required, &Health::default());
            self.log = Some(Area::whole(map.map_err(|e| e.to_string())?));
        }
        self.guest.written.extend(0..MEMORY / PAGE);
        let copy = Copy(vec![0; MEMORY as usize]);
        self.stage = Stage::Copying { copy, left: rounds };
        Ok(())
    }

    /// Copies every page that is said to have changed.
    pub(crate) fn copy(&mut self, to: &mut Copy) {
        let mut pages = std::mem::take(&mut self.guest.written);
        if let Some(log) = &self.log {
            for byte in 0..LOG_BYTES {
                let bits = log.load_u8(byte as usize);
                log.store_u8(byte as usize, 0);
                pages.extend((0..8).filter(|bit| bits >> bit & 1 != 0).map(|bit| byte * 8 + bit));
            }
        }
        for page in pages {
            let at = (page * PAGE) as usize;
            to.0[at..at + PAGE as usize].copy_from_slice(&self.guest.memory.page(page));
        }
    }

    /// The memory there is the memory here.
    ///
    /// # Errors
    /// A page is not, so nobody has said that it had changed.
    pub(crate) fn compare(&self, copy: &Copy) -> Result<(), String> {
        for page in 0..MEMORY / PAGE {
            let at = (page * PAGE) as usize;
            if self.guest.memory.page(page) != copy.0[at..at + PAGE as usize] {
                let what = self.guest.part_of(page);
                return Err(format!(
                    "guest {}: page {page} ({what}) was changed and is not in the dirty log",
                    self.number
                ));
            }
        }
        Ok(())
    }
}

pub(crate) fn disk_spec(number: u32, random: &mut Random) -> GuestSpec {
    let format = random.of(&[Format::Split, Format::Split, Format::Packed]);
    let size = match format {
        Format::Split => random.of(&[8, 16, 32]),
        Format::Packed => random.of(&[7, 8, 13, 32]),
    };
    let event_index = random.one_in(2);
    let indirect = random.one_in(2);
    let ring =
        RingSpec { size, format, event_index, indirect_entries: u16::from(indirect) * TABLE };
    let mut features = bit::VERSION_1 | bit::BLK_MQ;
    let mut also = |condition, feature| features |= if condition { feature } else { 0 };
    also(format == Format::Packed, bit::RING_PACKED);
    also(event_index, bit::EVENT_IDX);
    also(indirect, bit::INDIRECT_DESC);
    also(!random.one_in(6), bit::BLK_FLUSH);
    also(random.one_in(2), bit::BLK_CONFIG_WCE);
    also(random.one_in(2), bit::BLK_DISCARD);
    also(random.one_in(2), bit::BLK_WRITE_ZEROES);
    let queues = random.between(1, 3) as u16;
    let write_through = random.one_in(4);
    // Of one that waits for what it asked, and only looks when it is called, no kick and no call may be lost.
    let (depth, looks) = (random.of(&[1, 2, SLOTS, SLOTS]), random.one_in(2));
    let number = number.into();
    GuestSpec { number, vlan: None, queues, ring, features, write_through, depth, looks }
}

pub(crate) fn nic_spec(number: u32, random: &mut Random) -> GuestSpec {
    let disk = disk_spec(number, random);
    let mut features = bit::VERSION_1 | bit::NET_MAC;
    features |= disk.features & (bit::RING_PACKED | bit::EVENT_IDX | bit::INDIRECT_DESC);
    features |= if random.one_in(2) { bit::NET_MRG_RXBUF } else { 0 };
    let vlan = Some(random.of(&[0, 0, 7, 8]));
    GuestSpec { vlan, queues: 2, features, write_through: false, looks: true, ..disk }
}

pub(crate) fn temper(random: &mut Random) -> Temper {
    let fails = random.one_in(4);
    let seldom = |random: &mut Random, on: bool| if on { random.between(20, 200) } else { 0 };
    let is_slow = random.one_in(2);
    let is_short = random.one_in(3);
    let sync_fails = random.one_in(8);
    Temper {
        usual_ns: random.of(&[2_000, 10_000, 50_000]),
        slow_one_in: seldom(random, is_slow),
        fails_one_in: seldom(random, fails),
        sync_fails_one_in: seldom(random, sync_fails) / 8,
        short_one_in: seldom(random, is_short) / 4,
        lacks_holes: random.one_in(6),
        lacks_zeroes: random.one_in(6),
    }
}
