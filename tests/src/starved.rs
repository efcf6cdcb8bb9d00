//! Processors that are taken away for milliseconds at random, as a busy host does.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::thread::{CpuSet, gettid, sched_setaffinity};
use testing::clock::now_ns;
use testing::load::Random;

use testing::daemon::pause;

/// For how long one is taken, and left, in milliseconds.
const TAKEN: (u64, u64) = (5, 70);
const LEFT: (u64, u64) = (2, 20);

/// Threads that rank before all that has no real-time policy; they end with this value.
#[derive(Debug)]
pub struct Starved {
    threads: Vec<JoinHandle<()>>,
    is_over: Arc<AtomicBool>,
}

impl Starved {
    /// On each of these processors. Root alone may.
    ///
    /// # Errors
    /// The system's.
    pub fn start(processors: &[usize], seed: u64) -> Result<Starved> {
        let mut starved = Starved { threads: Vec::new(), is_over: Arc::default() };
        for processor in processors.iter().copied() {
            let (told, hears) = std::sync::mpsc::channel();
            let is_over = Arc::clone(&starved.is_over);
            let body = move || {
                let is_first = first(processor);
                let goes_on = is_first.is_ok();
                // Whoever started it waits for this.
                let _ = told.send(is_first);
                if goes_on {
                    take(&is_over, seed << 8 | processor as u64);
                }
            };
            starved.threads.push(std::thread::spawn(body));
            hears.recv().context("a thread that takes a processor has ended")??;
        }
        Ok(starved)
    }
}

impl Drop for Starved {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Has this thread come before all others of that processor.
fn first(processor: usize) -> Result<()> {
    let mut processors = CpuSet::new();
    processors.set(processor);
    sched_setaffinity(None, &processors)?;
    let thread = gettid().as_raw_nonzero().to_string();
    let set = Command::new("chrt").args(["-f", "-p", "1", &thread]).output()?;
    ensure!(set.status.success(), "chrt: {}", String::from_utf8_lossy(&set.stderr));
    Ok(())
}

fn take(is_over: &AtomicBool, seed: u64) {
    let mut random = Random(seed);
    let mut between =
        |(least, most): (u64, u64)| Duration::from_millis(least + random.below(most - least));
    while !is_over.load(Ordering::Relaxed) {
        let until = now_ns() + between(TAKEN).as_nanos() as u64;
        while now_ns() < until {
            std::hint::spin_loop();
        }
        pause(between(LEFT));
    }
}
