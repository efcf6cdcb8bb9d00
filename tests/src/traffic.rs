//! A guest's NIC at work: numbered frames in several flows to another guest, and those of the other one
//! looked at, on a thread of its own.
//!
//! A guest has at most so many frames under way as the other one has buffers, so that none may be lost,
//! unless somebody else fills those buffers ([`start_beside_others`]).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use testing::clock::now_ns;
use testing::frontend::Frontend;
use testing::net_frontend::{Header, Nic, Pair, Received, frames};
use testing::timing::are_judged;

use testing::daemon::pause;

/// Frames under way to a guest; each takes at most two of its 256 buffers.
const UNDER_WAY: u64 = 96;
/// Bytes of the frames of each flow: copied, lent, and for all stations.
const FLOWS: [usize; 4] = [64, 1_514, 3_000, 200];
/// The flow that is sent to all.
const FOR_ALL: usize = 3;
/// Bytes of the longest.
pub const LONGEST: u32 = 3_000;
/// The type of frames that are none of this, and not looked at.
pub const OTHERS: [u8; 2] = [0x88, 0xb6];
const IDLE: Duration = Duration::from_micros(30);
/// Where rates are not judged: some ten thousand frames a second are left, and processors for others.
const REST: Duration = Duration::from_micros(200);
/// Between frames when it has little to do.
const EASED: Duration = Duration::from_millis(2);
const END_NS: u64 = 90_000_000_000;
/// Where frames may be lost: after so long without progress one more of each flow is sent, which shows how
/// many were; and what has not come so long after the other one has ended does not come.
const LOST_NS: u64 = 100_000_000;

/// A guest at work.
#[derive(Debug)]
pub struct Traffic {
    stop: Arc<AtomicBool>,
    eased: Arc<AtomicBool>,
    /// Frames that it looked at.
    taken: Arc<AtomicU64>,
    sent: Arc<AtomicU64>,
    /// Why it has ended before it was told to.
    fault: Arc<OnceLock<String>>,
    thread: JoinHandle<Result<Done>>,
    _frontend: Frontend,
}

/// What a guest did. Nothing was wrong, or it would be an error.
#[derive(Clone, Copy, Debug)]
pub struct Done {
    /// Frames that it sent.
    pub sent: u64,
    /// Frames that came.
    pub taken: u64,
    /// Frames of the other guest that did not come.
    pub lost: u64,
    /// The longest that none came, nanoseconds.
    pub pause_ns: u64,
}

/// One end of it.
struct End {
    pair: Pair,
    /// The guest's number, and the other's.
    numbers: [u16; 2],
    sent: [u64; FLOWS.len()],
    came: [u64; FLOWS.len()],
    may_lose: bool,
    /// Those of `came` that did not, so far as it is known.
    lost: u64,
    /// When the other one's count moved last, and that.
    moved: (u64, u64),
    mine: Arc<AtomicU64>,
    others: Arc<AtomicU64>,
    other_stopped: Arc<AtomicBool>,
    other_sent: Arc<AtomicU64>,
    i_sent: Arc<AtomicU64>,
    eased: Arc<AtomicBool>,
}

/// Starts two guests that send to each other, numbered as their addresses are.
///
/// # Errors
/// A NIC without a pair.
pub fn start(nics: [(Nic, u16); 2]) -> Result<[Traffic; 2]> {
    start_with(nics, false)
}

/// As [`start`], where others may fill the guests' buffers: then frames are lost, and counted.
///
/// # Errors
/// As [`start`].
pub fn start_beside_others(nics: [(Nic, u16); 2]) -> Result<[Traffic; 2]> {
    start_with(nics, true)
}

fn start_with(nics: [(Nic, u16); 2], may_lose: bool) -> Result<[Traffic; 2]> {
    let new = || [Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0))];
    let (taken, sent) = (new(), new());
    // What a guest will have sent is known when it was told to stop and has.
    let ended = [Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false))];
    let [(first, one), (second, two)] = nics;
    let mut guests = Vec::new();
    for (at, nic, numbers) in [(0, first, [one, two]), (1, second, [two, one])] {
        let (frontend, pairs) = nic.split();
        let pair = pairs.into_iter().next().context("a NIC without a pair")?;
        let (stop, eased) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let end = End {
            pair,
            numbers,
            sent: [0; FLOWS.len()],
            came: [0; FLOWS.len()],
            may_lose,
            lost: 0,
            moved: (now_ns(), 0),
            mine: Arc::clone(&taken[at]),
            others: Arc::clone(&taken[1 - at]),
            other_stopped: Arc::clone(&ended[1 - at]),
            other_sent: Arc::clone(&sent[1 - at]),
            i_sent: Arc::clone(&sent[at]),
            eased: Arc::clone(&eased),
        };
        let (stopped, i_stopped) = (Arc::clone(&stop), Arc::clone(&ended[at]));
        let fault = Arc::new(OnceLock::new());
        let told = Arc::clone(&fault);
        let thread = std::thread::spawn(move || {
            let ended = end.work(&stopped, &i_stopped);
            if let Err(error) = &ended {
                let _ = told.set(format!("{error:#}"));
            }
            ended
        });
        let (taken, sent) = (Arc::clone(&taken[at]), Arc::clone(&sent[at]));
        guests.push(Traffic { stop, eased, taken, sent, fault, thread, _frontend: frontend });
    }
    guests.try_into().map_err(|_| anyhow!("two guests"))
}

impl Traffic {
    /// From now on it sends a few frames now and then, so that a sidecore has nearly nothing to do.
    pub fn ease(&self) {
        self.eased.store(true, Ordering::Relaxed);
    }

    /// Frames that it has sent so far.
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Why it has ended before it was told to, if it has.
    pub fn fault(&self) -> Option<&str> {
        self.fault.get().map(String::as_str)
    }

    /// Waits until it has looked at so many frames more.
    ///
    /// # Errors
    /// They do not come.
    pub fn await_frames(&self, frames: u64) -> Result<()> {
        let (from, until) = (self.taken.load(Ordering::Relaxed), now_ns() + END_NS);
        while self.taken.load(Ordering::Relaxed) < from + frames {
            ensure!(!self.thread.is_finished(), "a guest has ended: {:?}", self.fault.get());
            ensure!(now_ns() < until, "no frames come");
            pause(Duration::from_millis(1));
        }
        Ok(())
    }
}

/// Ends both; all that was sent has come.
///
/// # Errors
/// A frame that was lost, doubled, changed or overtaken, at whatever time.
pub fn finish(guests: [Traffic; 2]) -> Result<[Done; 2]> {
    guests.iter().for_each(|guest| guest.stop.store(true, Ordering::Relaxed));
    let [one, two] = guests.map(|guest| {
        let ended = guest.thread.join();
        ended.map_err(|_| anyhow!("a guest panicked")).and_then(|done| done)
    });
    Ok([one?, two?])
}

impl End {
    fn work(mut self, stop: &AtomicBool, i_stopped: &AtomicBool) -> Result<Done> {
        let mut frame = Received::default();
        let (mut last_ns, mut pause_ns, mut end_ns) = (now_ns(), 0, u64::MAX);
        loop {
            let mut is_idle = true;
            while self.pair.receive_into(&mut frame)? {
                self.look(&frame)?;
                is_idle = false;
            }
            let now = now_ns();
            if !is_idle {
                pause_ns = pause_ns.max(now - last_ns);
                last_ns = now;
            }
            if stop.load(Ordering::Relaxed) {
                if end_ns == u64::MAX {
                    self.pair.drain(END_NS / 1_000_000)?;
                    i_stopped.store(true, Ordering::Release);
                    end_ns = now + END_NS;
                }
                let has_ended = self.other_stopped.load(Ordering::Acquire);
                let to_come = self.other_sent.load(Ordering::Relaxed);
                let [sent, came] = [self.sent, self.came].map(|flows| flows.iter().sum::<u64>());
                let is_over = came == to_come || self.may_lose && now - last_ns > LOST_NS;
                ensure!(now < end_ns, "frames are lost: {:?} came", self.came);
                if has_ended && is_over {
                    let taken = came - self.lost;
                    return Ok(Done { sent, taken, lost: to_come - taken, pause_ns });
                }
            } else {
                is_idle &= !self.send()?;
            }
            if self.eased.load(Ordering::Relaxed) {
                pause(EASED);
            } else if !are_judged() {
                pause(REST);
            } else if is_idle {
                pause(IDLE);
            }
        }
    }

    /// Sends a frame of each flow, as far as there is room. Whether it sent any.
    fn send(&mut self) -> Result<bool> {
        let mut has_sent = false;
        let _ = self.pair.reap()?;
        let shows_losses = self.shows_losses();
        for (flow, len) in FLOWS.into_iter().enumerate() {
            let sent = self.i_sent.load(Ordering::Relaxed);
            let under_way = sent - self.others.load(Ordering::Relaxed).min(sent);
            if under_way >= UNDER_WAY && !shows_losses {
                break;
            }
            let [from, to] = self.numbers.map(frames::mac);
            let to = if flow == FOR_ALL { [0xff; 6] } else { to };
            let number = self.sent[flow];
            // Before it is shown: the other one may have it before this one goes on.
            self.i_sent.fetch_add(1, Ordering::Relaxed);
            if !self.pair.add(&Header::default(), &bytes(to, from, flow, number, len), &[])? {
                self.i_sent.fetch_sub(1, Ordering::Relaxed);
                break;
            }
            self.sent[flow] += 1;
            has_sent = true;
        }
        self.pair.flush()?;
        Ok(has_sent)
    }

    /// Whether nothing has moved for so long that frames are lost.
    fn shows_losses(&mut self) -> bool {
        let (now, others) = (now_ns(), self.others.load(Ordering::Relaxed));
        let is_stuck = self.may_lose && others == self.moved.1 && now - self.moved.0 > LOST_NS;
        if is_stuck || others != self.moved.1 {
            self.moved = (now, others);
        }
        is_stuck
    }

    /// It is the next one of its flow, whole; or a later one, where some may be lost.
    fn look(&mut self, frame: &Received) -> Result<()> {
        if frame.bytes.get(12..14) == Some(&OTHERS) {
            return Ok(());
        }
        let peer = frames::mac(self.numbers[1]);
        if self.may_lose
            && frame.bytes.starts_with(&[0xff; 6])
            && frame.bytes.get(6..12) != Some(&peer)
        {
            // Another pair's, for all.
            return Ok(());
        }
        let flow = usize::from(*frame.bytes.get(14).context("a short frame")?);
        let len = *FLOWS.get(flow).with_context(|| format!("a frame of flow {flow}"))?;
        let [to, from] = self.numbers.map(frames::mac);
        let to = if flow == FOR_ALL { [0xff; 6] } else { to };
        let mut number = self.came[flow];
        if self.may_lose {
            let found = frame.bytes.get(15..23).and_then(|bytes| bytes.try_into().ok());
            number = number.max(found.map_or(0, u64::from_le_bytes));
        }
        let expected = bytes(to, from, flow, number, len);
        ensure!(
            frame.bytes == expected,
            "in flow {flow} came {:?} in place of {:?}, {} bytes",
            frame.bytes.get(15..23),
            expected.get(15..23),
            frame.bytes.len()
        );
        let skipped = number - self.came[flow];
        self.came[flow] = number + 1;
        self.lost += skipped;
        self.mine.fetch_add(skipped + 1, Ordering::Relaxed);
        Ok(())
    }
}

fn bytes(to: [u8; 6], from: [u8; 6], flow: usize, number: u64, len: usize) -> Vec<u8> {
    let mut bytes = [&to[..], &from, &[0x88, 0xb5, flow as u8]].concat();
    bytes.extend(number.to_le_bytes());
    bytes.extend((bytes.len()..len).map(|at| (at as u64 * 7 + number) as u8));
    bytes
}
