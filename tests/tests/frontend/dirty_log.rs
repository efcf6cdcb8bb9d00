//! The dirty log against guest memory itself: a page that changed has its bit, or migration loses
//! it.
//!
//! While the daemon sleeps, a batch of requests is laid out and guest memory is copied. Only then
//! comes the kick. When the daemon sleeps again, whatever differs was written by it: data, status
//! bytes, used ring, event fields.

use std::os::fd::AsFd;

use anyhow::{Context, Result, bail, ensure};
use guest_memory::Area;
use testing::bed::tests_all;
use testing::clock::now_ns;
use testing::content;
use testing::daemon::Daemon;
use testing::frontend::{F_LOG_ALL, Frontend, FrontendSpec, MEMORY_BASE, PROTOCOL_LOG_SHMFD};
use testing::load::Random;
use testing::slots::{Kind, STATUS_OK, STATUS_UNWRITTEN};
use testing::verified::Load;
use tests::dirty::{Log, PAGE, changed, contents, pages, without};
use tests::raw_front_end::sealed_memory;
use virtqueue::Format;
use virtqueue::driver::{Buffer, RingSpec};
use virtqueue::layout;

const DISK_BYTES: u64 = 4 << 20;
const DISKS: &str = "[[disk]]\nid = \"memory\"\nbackend = \"memory\"\nsize = \"4M\"\n\
    [[disk]]\nid = \"file\"\npath = \"disk.raw\"\nsize = \"4M\"\ncache = \"page\"\n\
    [[disk]]\nid = \"auto\"\npath = \"auto.raw\"\nsize = \"4M\"\n";
const MEMORY_BYTES: u64 = 4 << 20;
const BATCH_MAX: u64 = 8;
const ROUNDS: usize = 25;
const ROUNDS_SHORT: usize = 10;
/// Of a ring of 1024: so many that used elements reach pages where the used index is not.
const ROUNDS_LARGE: usize = 170;
/// Bytes of a request's part of the data area.
const LANE: u64 = 32 << 10;
const PATIENCE_NS: u64 = 90_000_000_000;

/// A guest, where its requests are laid out, and what the device may write.
struct Guest<'a> {
    daemon: &'a Daemon,
    frontend: Frontend,
    headers: (Area, u64),
    data_gpa: u64,
    statuses: (Area, u64),
    random: Random,
    ring: RingSpec,
}

impl<'a> Guest<'a> {
    fn new(daemon: &'a Daemon, disk: &str, ring: RingSpec) -> Result<Guest<'a>> {
        let mut frontend = daemon.frontend(disk, &spec(ring))?;
        content::fill(&mut frontend, DISK_BYTES / 512)?;
        let mut take = |bytes: u64| {
            frontend.memory().take(bytes as usize, PAGE as usize).context("memory is too small")
        };
        let headers = take(PAGE)?;
        let (_, data_gpa) = take(BATCH_MAX * LANE)?;
        let statuses = take(BATCH_MAX * PAGE)?;
        let random = Random(0x10c + u64::from(ring.size));
        Ok(Guest { daemon, frontend, headers, data_gpa, statuses, random, ring })
    }

    fn start_log(&mut self) -> Result<Log> {
        Log::start(&mut self.frontend)
    }

    /// Lays out request `at` of a batch; the pages that it allows the device to write are added.
    fn add(&mut self, at: u64, writable: &mut Vec<u64>) -> Result<()> {
        const KINDS: [Kind; 5] = [Kind::Read, Kind::Read, Kind::Write, Kind::GetId, Kind::Flush];
        let kind = KINDS[self.random.below(KINDS.len() as u64) as usize];
        let sector = self.random.below((DISK_BYTES - LANE) / 512);
        self.headers.0.store_u64(at as usize * 16, kind as u64);
        self.headers.0.store_u64(at as usize * 16 + 8, sector);
        let status = at * PAGE + self.random.below(PAGE);
        self.statuses.0.store_u8(status as usize, STATUS_UNWRITTEN);
        let device_writes = kind != Kind::Write;
        let piece = |gpa, len: u64, device_writes| Buffer { gpa, len: len as u32, device_writes };
        let mut buffers = vec![piece(self.headers.1 + at * 16, 16, false)];
        let len = match kind {
            Kind::Read | Kind::Write => 512 * (1 + self.random.below(LANE / 512 - 8)),
            Kind::GetId => 20,
            Kind::Flush => 0,
        };
        let gpa = self.data_gpa + at * LANE + self.random.below(LANE - len + 1);
        if len > 0 {
            let first = 1 + self.random.below(len - 1);
            buffers.push(piece(gpa, first, device_writes));
            buffers.push(piece(gpa + first, len - first, device_writes));
        }
        buffers.push(piece(self.statuses.1 + status, 1, true));
        for buffer in buffers.iter().filter(|buffer| buffer.device_writes) {
            writable.extend(pages(buffer.gpa, buffer.len.into()));
        }
        self.frontend.queue(0).driver.add(&buffers, status)?;
        Ok(())
    }

    /// One batch; gives the pages that changed and those that may have.
    fn round(&mut self) -> Result<(Vec<u64>, Vec<u64>)> {
        let mut writable = self.ring_pages();
        self.daemon.await_sleep()?;
        let count = 1 + self.random.below(BATCH_MAX);
        for at in 0..count {
            self.add(at, &mut writable)?;
        }
        let queue = self.frontend.queue(0);
        ensure!(queue.driver.publish(), "a sleeping device does not want to be kicked");
        let before = contents(&self.frontend);
        self.frontend.queue(0).kick()?;
        for _ in 0..count {
            let status = self.wait()? as usize;
            let found = self.statuses.0.load_u8(status);
            ensure!(found == STATUS_OK, "status {found}");
        }
        self.daemon.await_sleep()?;
        let after = contents(&self.frontend);
        Ok((changed(&before, &after), writable))
    }

    /// The next completion, without writing to guest memory.
    fn wait(&mut self) -> Result<u64> {
        let start = now_ns();
        let driver = &mut self.frontend.queue(0).driver;
        loop {
            if let Some(used) = driver.take_used() {
                return Ok(used.token);
            }
            if now_ns() - start > PATIENCE_NS || driver.fault().is_some() {
                bail!("no completion: {:?}", driver.fault());
            }
            std::thread::yield_now();
        }
    }

    /// The parts of the ring that the device writes.
    fn ring_pages(&mut self) -> Vec<u64> {
        let RingSpec { size, format, event_index, .. } = self.ring;
        let places = self.frontend.queue(0).places();
        let mut found: Vec<u64> =
            pages(places.device, layout::device_len(format, size, event_index)).collect();
        if format == Format::Packed {
            found.extend(pages(places.descriptors, layout::descriptors_len(format, size)));
        }
        found
    }

    /// Several batches, each checked against the log.
    fn check(&mut self, log: &Log) -> Result<()> {
        let mut all = 0;
        log.take();
        let rounds = match self.ring.size {
            65.. => ROUNDS_LARGE,
            _ if tests_all() => ROUNDS,
            _ => ROUNDS_SHORT,
        };
        for round in 0..rounds {
            let (changed, writable) = self.round()?;
            let marked = log.take();
            let missing = without(&changed, &marked);
            ensure!(missing.is_empty(), "round {round}: {missing:x?} changed without a mark");
            let beyond = without(&marked, &writable);
            ensure!(beyond.is_empty(), "round {round}: {beyond:x?} marked for no reason");
            all += changed.len();
        }
        ensure!(all >= rounds * 3, "only {all} pages changed: this was no test");
        Ok(())
    }
}

fn spec(ring: RingSpec) -> FrontendSpec {
    FrontendSpec {
        memory_bytes: MEMORY_BYTES,
        ring,
        protocol_features: PROTOCOL_LOG_SHMFD,
        ..FrontendSpec::linux()
    }
}

fn ring(format: Format, size: u16, event_index: bool, indirect_entries: u16) -> RingSpec {
    RingSpec { size, format, event_index, indirect_entries }
}

fn check_disk(disk: &str) -> Result<()> {
    let daemon = Daemon::start(&format!("log-{disk}"), DISKS)?;
    for event_index in [false, true] {
        for indirect_entries in [0, 4] {
            for (format, size) in [(Format::Split, 64), (Format::Packed, 61), (Format::Split, 1024)]
            {
                // Where the used ring's pages lie is the same whatever a chain is.
                if size > 64 && indirect_entries > 0 && !tests_all() {
                    continue;
                }
                let ring = ring(format, size, event_index, indirect_entries);
                let mut guest = Guest::new(&daemon, disk, ring)?;
                let log = guest.start_log()?;
                guest.check(&log).with_context(|| format!("{disk}, {ring:?}"))?;
            }
        }
    }
    Ok(())
}

#[test]
fn every_changed_page_of_a_memory_disk_is_marked() -> Result<()> {
    check_disk("memory")
}

#[test]
fn every_changed_page_of_a_buffered_file_is_marked() -> Result<()> {
    check_disk("file")
}

#[test]
fn every_changed_page_of_a_direct_file_is_marked() -> Result<()> {
    check_disk("auto")
}

#[test]
fn nothing_is_marked_after_log_all_is_given_up() -> Result<()> {
    let daemon = Daemon::start("log-off", DISKS)?;
    for format in [Format::Split, Format::Packed] {
        let mut guest = Guest::new(&daemon, "memory", ring(format, 64, true, 0))?;
        let log = guest.start_log()?;
        guest.check(&log)?;
        guest.frontend.set_features(guest.frontend.features() & !F_LOG_ALL)?;
        daemon.await_sleep()?;
        log.take();
        for _ in 0..5 {
            let (changed, _) = guest.round()?;
            ensure!(!changed.is_empty());
        }
        ensure!(log.take().is_empty(), "marked without LOG_ALL");
        guest.frontend.set_features(guest.frontend.features() | F_LOG_ALL)?;
        guest.check(&log).context("after LOG_ALL was accepted again")?;
    }
    Ok(())
}

#[test]
fn a_log_that_replaces_another_under_load_is_the_only_one_used() -> Result<()> {
    let daemon = Daemon::start("log-new", DISKS)?;
    for (disk, format) in [("memory", Format::Packed), ("file", Format::Split)] {
        let mut frontend = daemon.frontend(disk, &spec(ring(format, 64, true, 0)))?;
        let (load, _) = Load::start(&mut frontend)?;
        let mut old = Log::start(&mut frontend)?;
        for turn in 0..10 {
            load.await_requests(200)?;
            ensure!(!old.take().is_empty(), "turn {turn}: nothing was marked");
            let new = Log::set(&mut frontend)?;
            // The answer says that the old one is not used any more.
            old.take();
            load.await_requests(200)?;
            let late = old.take();
            ensure!(late.is_empty(), "turn {turn}: {late:x?} marked in the replaced log");
            old = new;
        }
        load.finish()?;
    }
    Ok(())
}

#[test]
fn a_log_that_does_not_cover_memory_is_refused() -> Result<()> {
    let daemon = Daemon::start("log-short", DISKS)?;
    let mut frontend = daemon.frontend("memory", &spec(ring(Format::Split, 64, true, 0)))?;
    let short = (MEMORY_BASE + MEMORY_BYTES) / PAGE / 8 - 1;
    let fd = sealed_memory(short)?;
    ensure!(frontend.set_log(fd.as_fd(), short).is_err(), "a log without bits for all memory");
    let problem = daemon.shown("memory", "problem")?.to_string();
    ensure!(problem.contains("log"), "the problem shown is {problem}");
    Ok(())
}
