//! A file whose commands wait until they are run, in any order. The file that is opened and locked is a real one, of
//! which nothing is read or written.

use std::collections::VecDeque;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};

use backend::{Asked, Cache, Disk, Kernel};
use random::Random;

use super::super::bed::DISK;

#[derive(Debug)]
pub(super) struct Slow(Mutex<Inner>);

#[derive(Debug)]
struct Inner {
    bytes: Vec<u8>,
    random: Random,
    waiting: Vec<(Asked, u64, OwnedFd)>,
    ended: VecDeque<(u64, i32)>,
    done: Option<Arc<OwnedFd>>,
    is_stuck: bool,
}

impl Slow {
    /// One of zeroes, and the disk on it; the folder is to be kept.
    pub(super) fn new(seed: u64) -> (tempfile::TempDir, Arc<Slow>, Arc<Disk>) {
        let folder = tempfile::tempdir().unwrap();
        let slow = Arc::new(Slow(Mutex::new(Inner {
            bytes: vec![0; DISK as usize],
            random: Random::new(seed, 5),
            waiting: Vec::new(),
            ended: VecDeque::new(),
            done: None,
            is_stuck: false,
        })));
        let kernel = Arc::clone(&slow) as Arc<dyn Kernel>;
        let path = folder.path().join("disk");
        let disk = Disk::open_simulated(&path, DISK, Cache::Auto, &kernel).unwrap();
        (folder, slow, disk)
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap()
    }

    /// Nothing is run any more, or again.
    pub(super) fn stick(&self, is_stuck: bool) {
        self.inner().is_stuck = is_stuck;
    }

    pub(super) fn waiting(&self) -> usize {
        self.inner().waiting.len()
    }

    /// Whether something will end soon.
    pub(super) fn is_busy(&self) -> bool {
        let inner = self.inner();
        !inner.is_stuck && !inner.waiting.is_empty() || !inner.ended.is_empty()
    }

    /// Runs some of what waits.
    pub(super) fn run(&self) {
        let mut inner = self.inner();
        if inner.is_stuck || inner.waiting.is_empty() || inner.random.one_in(3) {
            return;
        }
        let count = inner.waiting.len() as u64;
        let one = inner.random.below(count) as usize;
        let (asked, tag, _held) = inner.waiting.swap_remove(one);
        let result = inner.act(&asked);
        inner.ended.push_back((tag, result));
        crate::inbox::wake(inner.done.as_ref().unwrap());
    }
}

impl Inner {
    fn act(&mut self, asked: &Asked) -> i32 {
        match asked {
            Asked::Transfer { write, offset, spans, memory, .. } => {
                let mut at = *offset as usize;
                for span in spans {
                    let bytes = &mut self.bytes[at..at + span.len() as usize];
                    let is_there = match write {
                        true => memory.read(*span, 0, bytes),
                        false => memory.write(*span, 0, bytes),
                    };
                    assert!(is_there);
                    at += bytes.len();
                }
                (at - *offset as usize) as i32
            }
            Asked::Zeroes { offset, len } => {
                self.zero(*offset, *len);
                *len as i32
            }
            Asked::PunchHole { offset, len } | Asked::ZeroRange { offset, len } => {
                self.zero(*offset, *len);
                0
            }
            Asked::Sync | Asked::Reserve => 0,
        }
    }

    fn zero(&mut self, offset: u64, len: u64) {
        self.bytes[offset as usize..(offset + len) as usize].fill(0);
    }
}

impl Kernel for Slow {
    fn opened(&self, _: &Path, _: BorrowedFd<'_>, _: Option<BorrowedFd<'_>>) {}

    fn sync(&self, _: BorrowedFd<'_>) -> bool {
        true
    }

    fn holder(&self, _: BorrowedFd<'_>) -> Option<(backend::Holder, bool)> {
        None
    }

    fn ring(&self, done: Arc<OwnedFd>) -> u64 {
        self.inner().done = Some(done);
        0
    }

    fn submit(&self, _: u64, _: RawFd, held: OwnedFd, asked: Asked, tag: u64) {
        self.inner().waiting.push((asked, tag, held));
    }

    fn reap(&self, _: u64) -> Option<(u64, i32)> {
        let mut inner = self.inner();
        let ended = inner.ended.pop_front();
        if inner.ended.is_empty() {
            crate::inbox::reset(inner.done.as_ref().unwrap());
        }
        ended
    }

    fn gone(&self, _: u64) {}
}
