//! A well-behaved guest at work: writes, reads back and compares, on a thread of its own.
//!
//! It sleeps between completions, as a guest does, so that it can run beside anything. Every block
//! belongs to one slot, so that what a read must find is known.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::clock::now_ns;
use crate::content::block_content;
use crate::frontend::{FrontQueue, Frontend};
use crate::slots::{Kind, STATUS_OK, Slots};
use crate::timing::are_judged;
use anyhow::{Context, Result, anyhow, bail, ensure};
use virtqueue::driver::{Arena, Used};

/// Bytes of each request.
pub const BLOCK_SIZE: usize = 4096;

/// Requests in flight of a load that is told nothing else.
const DEPTH: u16 = 8;
/// Blocks that each of them goes through.
const BLOCKS: u64 = 16;
/// Bytes of the disk that such a load uses, from its start.
pub const DISK_BYTES: u64 = DEPTH as u64 * BLOCKS * BLOCK_SIZE as u64;
const SECTORS: u64 = BLOCK_SIZE as u64 / 512;
const CALL_MS: u32 = 90_000;
/// Some hundred batches a second are left.
const WITNESS_REST: Duration = Duration::from_millis(1);
/// Some thousand batches a second are left: for about half of the time requests are in flight.
const REST: Duration = Duration::from_micros(200);
/// How long requests that are waited for may take.
const PATIENCE_NS: u64 = 90_000_000_000;

/// What a load is like.
#[derive(Clone, Copy, Debug)]
pub struct LoadSpec {
    /// Requests in flight.
    pub depth: u16,
    /// How long it rests whenever all of them have come back. Zero: each is sent again at once.
    pub rest: Duration,
    /// The first block of the disk that it uses; others follow, [`LoadSpec::blocks`] in all.
    pub first_block: u64,
    /// What tells its blocks from those of other loads.
    pub mark: u16,
}

impl Default for LoadSpec {
    fn default() -> LoadSpec {
        LoadSpec { depth: DEPTH, rest: Duration::ZERO, first_block: 0, mark: 0 }
    }
}

impl LoadSpec {
    /// Blocks of the disk that it uses.
    pub fn blocks(&self) -> u64 {
        u64::from(self.depth) * BLOCKS
    }

    /// Never the same twice in a place, nor in two.
    fn content(&self, slot: u16, turn: u64, into: &mut [u8]) {
        block_content(u64::from(self.mark) << 48 | turn << 16 | u64::from(slot), into);
    }

    fn block(&self, slot: u16, turn: u64) -> u64 {
        self.first_block + u64::from(slot) * BLOCKS + turn % BLOCKS
    }
}

/// A load that runs.
#[derive(Debug)]
pub struct Load {
    stop: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
    /// The longest that a request took since that was asked last, nanoseconds.
    worst_ns: Arc<AtomicU64>,
    /// Why it has ended before it was told to.
    fault: Arc<OnceLock<String>>,
    thread: JoinHandle<Result<Finished>>,
}

/// What a load saw. Nothing was wrong, or it would be an error.
#[derive(Debug)]
pub struct Finished {
    /// Requests that were completed and compared.
    pub requests: u64,
    /// The longest that one took, nanoseconds.
    pub max_ns: u64,
    /// The queue, with nothing in flight.
    pub queue: FrontQueue,
}

struct Slot {
    reading: bool,
    turn: u64,
    sent_ns: u64,
}

impl Load {
    /// Starts on the first queue of `frontend`; all its queues are returned but that one. Where rates are not judged it
    /// rests a little whenever all has come back: a guest that never does takes both processors of a small machine.
    ///
    /// # Errors
    /// No queue, or no memory left for the requests.
    pub fn start(frontend: &mut Frontend) -> Result<(Load, Vec<FrontQueue>)> {
        let mut queues = frontend.take_queues().into_iter();
        let queue = queues.next().context("a front-end without queues")?;
        let load = Load::start_on(queue, frontend.memory(), rested(REST))?;
        Ok((load, queues.collect()))
    }

    /// As [`Load::start`], for one that is to notice what others do, and how much it gets done is not asked: where rates
    /// are not judged it rests whenever all has come back, and leaves the processors to them.
    ///
    /// # Errors
    /// As [`Load::start`].
    pub fn witness(frontend: &mut Frontend) -> Result<Load> {
        let queue = frontend.take_queues().into_iter().next();
        let queue = queue.context("a front-end without queues")?;
        Load::start_on(queue, frontend.memory(), rested(WITNESS_REST))
    }

    /// Starts on that queue, with its requests in that memory.
    ///
    /// # Errors
    /// No memory left for the requests.
    pub fn start_on(queue: FrontQueue, memory: &mut Arena, spec: LoadSpec) -> Result<Load> {
        let slots = Slots::new(memory, spec.depth, BLOCK_SIZE as u32)?;
        let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let worst_ns = Arc::new(AtomicU64::new(0));
        let (stopped, counted) = (Arc::clone(&stop), (Arc::clone(&done), Arc::clone(&worst_ns)));
        let fault = Arc::new(OnceLock::new());
        let told = Arc::clone(&fault);
        let thread = std::thread::spawn(move || {
            let ended = run(queue, (&slots, spec), &stopped, (&counted.0, &counted.1));
            if let Err(error) = &ended {
                let _ = told.set(format!("{error:#}"));
            }
            ended
        });
        Ok(Load { stop, done, worst_ns, fault, thread })
    }

    /// Requests completed so far.
    pub fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// The longest that a request took of those that were completed since this was asked last,
    /// nanoseconds.
    pub fn take_worst_ns(&self) -> u64 {
        self.worst_ns.swap(0, Ordering::Relaxed)
    }

    /// Waits until `more` requests were completed from now on.
    ///
    /// # Errors
    /// The load has failed, or does not get there.
    pub fn await_requests(&self, more: u64) -> Result<()> {
        let (until, start_ns) = (self.done() + more, now_ns());
        while self.done() < until {
            let has_ended = self.thread.is_finished();
            if let Some(fault) = self.fault.get() {
                bail!("the load has ended: {fault}");
            }
            ensure!(!has_ended, "the load has panicked");
            ensure!(now_ns() - start_ns < PATIENCE_NS, "the load does not go on");
            #[expect(clippy::disallowed_methods, reason = "a counter has no descriptor")]
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Lets what is in flight end.
    ///
    /// # Errors
    /// A request failed, was lost, or found what was not written there.
    pub fn finish(self) -> Result<Finished> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| anyhow!("the load panicked"))?
    }
}

/// The usual load, with a rest where rates are not judged.
fn rested(rest: Duration) -> LoadSpec {
    let rest = if are_judged() { Duration::ZERO } else { rest };
    LoadSpec { rest, ..LoadSpec::default() }
}

fn run(
    mut queue: FrontQueue,
    (slots, spec): (&Slots, LoadSpec),
    stop: &AtomicBool,
    (done, worst_ns): (&AtomicU64, &AtomicU64),
) -> Result<Finished> {
    let mut states: Vec<Slot> =
        (0..spec.depth).map(|_| Slot { reading: false, turn: 0, sent_ns: 0 }).collect();
    for (slot, state) in (0..).zip(&mut states) {
        send(&mut queue, (slots, spec), slot, state)?;
    }
    let (mut requests, mut max_ns, mut in_flight) = (0, 0, spec.depth);
    let mut resting = Vec::new();
    while in_flight > 0 {
        let used = next_used(&mut queue).with_context(|| format!("after {requests} requests"))?;
        let slot = used.token as u16;
        let state = states.get_mut(usize::from(slot)).context("a request that nobody sent")?;
        let took_ns = now_ns() - state.sent_ns;
        max_ns = max_ns.max(took_ns);
        worst_ns.fetch_max(took_ns, Ordering::Relaxed);
        check((slots, spec), slot, state)?;
        requests += 1;
        done.store(requests, Ordering::Relaxed);
        (state.reading, state.turn) = (!state.reading, state.turn + u64::from(state.reading));
        in_flight -= 1;
        resting.push(slot);
        if !spec.rest.is_zero() && in_flight > 0 {
            continue;
        }
        pause(spec.rest);
        for slot in resting.drain(..).filter(|_| !stop.load(Ordering::Relaxed)) {
            let state = &mut states[usize::from(slot)];
            send(&mut queue, (slots, spec), slot, state)?;
            in_flight += 1;
        }
    }
    Ok(Finished { requests, max_ns, queue })
}

fn pause(time: Duration) {
    if !time.is_zero() {
        #[expect(clippy::disallowed_methods, reason = "a guest that does something else")]
        std::thread::sleep(time);
    }
}

fn send(
    queue: &mut FrontQueue,
    (slots, spec): (&Slots, LoadSpec),
    slot: u16,
    state: &mut Slot,
) -> Result<()> {
    let kind = if state.reading { Kind::Read } else { Kind::Write };
    let mut bytes = vec![0x5a; BLOCK_SIZE];
    if !state.reading {
        spec.content(slot, state.turn, &mut bytes);
    }
    slots.write_data(slot, &bytes);
    slots.write_header(slot, kind, spec.block(slot, state.turn) * SECTORS);
    let (buffers, count) = slots.buffers(slot, kind);
    state.sent_ns = now_ns();
    queue.driver.add(&buffers[..count], slot.into())?;
    if queue.driver.publish() {
        queue.kick()?;
    }
    Ok(())
}

fn check((slots, spec): (&Slots, LoadSpec), slot: u16, state: &Slot) -> Result<()> {
    let status = slots.status(slot);
    let what = if state.reading { "read" } else { "write" };
    ensure!(status == STATUS_OK, "{what} {} of slot {slot}: status {status}", state.turn);
    if state.reading {
        let (mut found, mut expected) = (vec![0; BLOCK_SIZE], vec![0; BLOCK_SIZE]);
        slots.read_data(slot, &mut found);
        spec.content(slot, state.turn, &mut expected);
        ensure!(found == expected, "read {} of slot {slot} differs", state.turn);
    }
    Ok(())
}

fn next_used(queue: &mut FrontQueue) -> Result<Used> {
    loop {
        if let Some(used) = queue.driver.take_used() {
            return Ok(used);
        }
        if let Some(fault) = queue.driver.fault() {
            bail!("the device broke the rules of the ring: {fault}");
        }
        if !queue.driver.arm_calls() {
            ensure!(queue.wait_for_call(CALL_MS)?, "a request was lost: no call in 90 s");
        }
    }
}
