//! The dirty log of NICs against guest memory itself, as `dirty_log.rs` is for disks: frames and their
//! headers, `num_buffers` among them, used rings, packed descriptors, event fields (reliability M2, P35).
//!
//! While the daemon sleeps, frames are laid out and shown, and the memory of both guests is copied. Only
//! then comes the kick. When it sleeps again, whatever differs was written by it.

use anyhow::{Context, Result, ensure};
use testing::bed::tests_all;
use testing::daemon::{Daemon, await_that};
use testing::frontend::PROTOCOL_LOG_SHMFD;
use testing::load::Random;
use testing::net_frontend::{Header, Nic, NicSpec, Received, feature, frames};
use tests::dirty::{Log, changed, contents, without};
use virtqueue::Format;
use virtqueue::driver::RingSpec;

const LAN: &str = "[[switch]]\nid = \"lan\"\n\
    [[nic]]\nid = \"one\"\nswitch = \"lan\"\nmac = \"52:54:00:00:00:01\"\n\
    [[nic]]\nid = \"two\"\nswitch = \"lan\"\nmac = \"52:54:00:00:00:02\"\n";
const ROUNDS: usize = 40;
const FRAMES_MAX: u64 = 12;
const FRAME_BYTES_MAX: u64 = 1514;

/// Two guests on a switch.
struct Pair<'a> {
    daemon: &'a Daemon,
    one: Nic,
    two: Nic,
    logs: [Log; 2],
    random: Random,
    frame: Received,
}

impl<'a> Pair<'a> {
    fn new(daemon: &'a Daemon, spec: &NicSpec) -> Result<Pair<'a>> {
        let connect = |id: &str| Nic::connect(&daemon.socket(id), spec.clone());
        let (mut one, mut two) = (connect("one")?, connect("two")?);
        // The switch learns where each is; otherwise the first frames go to all.
        hear(&mut one, &mut two, [1, 2])?;
        hear(&mut two, &mut one, [2, 1])?;
        let logs = [Log::start(one.frontend())?, Log::start(two.frontend())?];
        let random = Random(0x0e7 + u64::from(spec.ring.size));
        Ok(Pair { daemon, one, two, logs, random, frame: Received::default() })
    }

    /// Some frames from one to two. Gives how many pages have changed.
    fn round(&mut self) -> Result<usize> {
        self.daemon.await_sleep()?;
        let count = 1 + self.random.below(FRAMES_MAX);
        let mut sent = Vec::new();
        for _ in 0..count {
            let mut bytes = frames::small(mac(1), mac(2));
            let more = self.random.below(FRAME_BYTES_MAX - bytes.len() as u64);
            bytes.extend((0..more).map(|at| (at * 7 + count) as u8));
            ensure!(self.one.pair(0).add(&Header::default(), &bytes, &[12])?, "no slot is free");
            sent.push(bytes);
        }
        ensure!(self.one.pair(0).transmit.driver.publish(), "it sleeps and wants no kick");
        self.logs.iter().for_each(|log| drop(log.take()));
        let before = self.contents();
        self.one.pair(0).transmit.kick()?;
        await_that("a mark", || Ok(self.logs[1].is_marked()))?;
        self.daemon.await_sleep()?;
        let after = self.contents();
        let mut all = 0;
        for (who, log) in self.logs.iter().enumerate() {
            let (changed, marked) = (changed(&before[who], &after[who]), log.take());
            let missing = without(&changed, &marked);
            ensure!(missing.is_empty(), "guest {who}: {missing:x?} changed without a mark");
            ensure!(!changed.is_empty(), "guest {who}: nothing was written");
            all += changed.len();
        }
        for bytes in &sent {
            ensure!(self.two.pair(0).receive_into(&mut self.frame)?, "a frame is missing");
            ensure!(self.frame.bytes == *bytes, "another frame");
        }
        self.one.pair(0).drain(90_000)?;
        Ok(all)
    }

    fn contents(&mut self) -> [Vec<u8>; 2] {
        [contents(self.one.frontend()), contents(self.two.frontend())]
    }
}

/// Sends a frame until it is heard: a NIC whose queues have not begun yet takes none.
fn hear(from: &mut Nic, to: &mut Nic, [source, destination]: [u8; 2]) -> Result<()> {
    let hello = frames::small(mac(source), mac(destination));
    await_that("a frame to be heard", || {
        from.pair(0).send(&Header::default(), &hello, &[])?;
        Ok(to.pair(0).receive_within(100)?.is_some())
    })?;
    from.pair(0).drain(90_000)?;
    while to.pair(0).receive_within(20)?.is_some() {}
    Ok(())
}

fn mac(number: u8) -> [u8; 6] {
    [0x52, 0x54, 0, 0, 0, number]
}

/// Buffers that hold each frame, smaller ones of which a frame takes several, and such as have their header
/// in a descriptor of its own.
fn check(name: &str, features: u64, receive_pieces: &[u32]) -> Result<()> {
    let daemon = Daemon::start(name, LAN)?;
    for event_index in [false, true] {
        for (format, size) in [(Format::Split, 256), (Format::Packed, 251), (Format::Split, 1024)] {
            let ring = RingSpec { size, format, event_index, indirect_entries: 0 };
            let spec = NicSpec {
                ring,
                features,
                receive_pieces: receive_pieces.to_vec(),
                protocol_features: PROTOCOL_LOG_SHMFD,
                ..NicSpec::default()
            };
            let mut pair = Pair::new(&daemon, &spec)?;
            let mut all = 0;
            let rounds = if tests_all() { ROUNDS } else { ROUNDS * 2 / 5 };
            for round in 0..rounds {
                let what = || format!("{ring:?}, {receive_pieces:?}, round {round}");
                all += pair.round().with_context(what)?;
            }
            ensure!(all >= rounds * 4, "only {all} pages changed: this was no test");
        }
    }
    Ok(())
}

#[test]
fn every_changed_page_of_a_nic_is_marked() -> Result<()> {
    check("log-net", feature::MRG_RXBUF, &[2048])
}

#[test]
fn every_changed_page_of_a_nic_with_merged_buffers_is_marked() -> Result<()> {
    check("log-merged", feature::MRG_RXBUF, &[600])
}

#[test]
fn every_changed_page_of_a_nic_with_large_buffers_is_marked() -> Result<()> {
    check("log-large", 0, &[12, 1514])
}
