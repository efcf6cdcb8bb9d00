//! Guests that stream: large reads of several disks, all kept full by one thread, and looked into.
//!
//! So that a sidecore has more to do than whoever asks it. For small requests of every kind:
//! [`testing::verified`].

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use anyhow::{Context, Result, anyhow, ensure};
use testing::clock::now_ns;
use testing::content::{BLOCK_SIZE, block_content};
use testing::frontend::{FrontQueue, Frontend};
use testing::slots::{Kind, SECTOR_SIZE, STATUS_OK, Slots};

const DEPTH: u16 = 4;
/// Bytes of a read.
const READ_BYTES: u32 = 1 << 20;
/// Guest memory that the reads of one disk take, bytes.
pub const MEMORY_BYTES: u64 = DEPTH as u64 * READ_BYTES as u64 + (64 << 10);
const PATIENCE_NS: u64 = 90_000_000_000;

/// Streams that run.
#[derive(Debug)]
pub struct Streams {
    stop: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
    thread: JoinHandle<Result<Vec<FrontQueue>>>,
}

struct Stream {
    queue: FrontQueue,
    slots: Slots,
    /// Where each slot reads, in reads from the disk's start.
    places: Vec<u64>,
    next: u64,
    reads: u64,
    in_flight: u16,
    heard_ns: u64,
}

impl Streams {
    /// Starts on the first queue of each of these disks, which were filled ([`testing::content::fill`]).
    ///
    /// # Errors
    /// No memory left, or a disk that is too small.
    pub fn start(frontends: &mut [Frontend]) -> Result<Streams> {
        let streams: Vec<Stream> = frontends.iter_mut().map(Stream::new).collect::<Result<_>>()?;
        let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stopped, counted) = (Arc::clone(&stop), Arc::clone(&done));
        let thread = std::thread::spawn(move || run(streams, &stopped, &counted));
        Ok(Streams { stop, done, thread })
    }

    /// Reads that were completed and found right so far; an error when they have ended.
    ///
    /// # Errors
    /// One failed; [`Streams::finish`] says which.
    pub fn done(&self) -> Result<u64> {
        ensure!(!self.thread.is_finished(), "the streams have ended");
        Ok(self.done.load(Ordering::Relaxed))
    }

    /// Lets what is in flight end; gives the queues.
    ///
    /// # Errors
    /// A read failed, was lost, or found what was not written there.
    pub fn finish(self) -> Result<Vec<FrontQueue>> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| anyhow!("the streams panicked"))?
    }
}

impl Stream {
    fn new(frontend: &mut Frontend) -> Result<Stream> {
        let reads = frontend.capacity_sectors()? * SECTOR_SIZE / u64::from(READ_BYTES);
        ensure!(reads > 0, "a disk of less than {READ_BYTES} bytes");
        let slots = Slots::new(frontend.memory(), DEPTH, READ_BYTES)?;
        let queue = frontend.take_queues().into_iter().next().context("no queue")?;
        let places = vec![0; usize::from(DEPTH)];
        Ok(Stream { queue, slots, places, next: 0, reads, in_flight: 0, heard_ns: now_ns() })
    }

    fn send(&mut self, slot: u16) -> Result<()> {
        let place = self.next % self.reads;
        self.next += 1;
        self.places[usize::from(slot)] = place;
        self.slots.write_data(slot, &[0xa5; BLOCK_SIZE]);
        let sector = place * u64::from(READ_BYTES) / SECTOR_SIZE;
        self.slots.write_header(slot, Kind::Read, sector);
        let (buffers, count) = self.slots.buffers(slot, Kind::Read);
        self.queue.driver.add(&buffers[..count], slot.into())?;
        if self.queue.driver.publish() {
            self.queue.kick()?;
        }
        self.in_flight += 1;
        Ok(())
    }

    /// Takes what is completed, and sends it again unless it is to stop. How many.
    fn turn(&mut self, stop: bool) -> Result<u64> {
        let mut done = 0;
        while let Some(used) = self.queue.driver.take_used() {
            let slot = used.token as u16;
            let status = self.slots.status(slot);
            ensure!(status == STATUS_OK, "a read ended with status {status}");
            let (mut found, mut expected) = (vec![0; BLOCK_SIZE], vec![0; BLOCK_SIZE]);
            let place = self.places[usize::from(slot)];
            block_content(place * u64::from(READ_BYTES) / BLOCK_SIZE as u64, &mut expected);
            self.slots.read_data(slot, &mut found);
            ensure!(found == expected, "read {place} found what was not written there");
            (self.in_flight, self.heard_ns, done) = (self.in_flight - 1, now_ns(), done + 1);
            if !stop {
                self.send(slot)?;
            }
        }
        let fault = self.queue.driver.fault();
        ensure!(fault.is_none(), "the device broke the rules of the ring: {fault:?}");
        let is_lost = self.in_flight > 0 && now_ns() - self.heard_ns > PATIENCE_NS;
        ensure!(!is_lost, "{} reads are not answered", self.in_flight);
        Ok(done)
    }
}

fn run(mut streams: Vec<Stream>, stop: &AtomicBool, done: &AtomicU64) -> Result<Vec<FrontQueue>> {
    for stream in &mut streams {
        (0..DEPTH).try_for_each(|slot| stream.send(slot))?;
    }
    while streams.iter().any(|stream| stream.in_flight > 0) {
        let stopped = stop.load(Ordering::Relaxed);
        let mut found = 0;
        for stream in &mut streams {
            found += stream.turn(stopped)?;
        }
        done.fetch_add(found, Ordering::Relaxed);
        if found == 0 {
            // The sidecores need the processors.
            std::thread::yield_now();
        }
    }
    Ok(streams.into_iter().map(|stream| stream.queue).collect())
}
