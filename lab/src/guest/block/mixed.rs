//! Readers and writers of one disk at the same time, each a thread with one request after the other.
//!
//! Not what a request is (`block`). Threads last as long as the load, so that none is started between
//! markers. Called by `guest`.

use std::fs::File;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, Scope};

use anyhow::{Context, Result, ensure};
use rustix::fs::OFlags;
use testing::clock::now_ns;
use testing::histogram::Histogram;

use super::{One, SEED, Way, open};
use crate::guest::measure::{Amount, measure};
use crate::orders::Answer;

/// Of each kind.
const THREADS_MAX: u16 = 16;

/// Random reads and writes of `device`, as many together as `amount` says: who is faster does more.
///
/// # Errors
/// What is wrong with the order or the device, or which request failed.
pub(in crate::guest) fn mixed(
    device: &str,
    readers: u16,
    writers: u16,
    amount: Amount,
) -> Result<Answer> {
    for (name, threads) in [("readers", readers), ("writers", writers)] {
        ensure!((1..=THREADS_MAX).contains(&threads), "{name}: {threads}, not 1 to {THREADS_MAX}");
    }
    let on_device = || {
        let open = |way| Ok((open(device, way, OFlags::DIRECT)?, way));
        let files: Result<Vec<_>> = ways(readers, writers).map(open).collect();
        on(files?, amount)
    };
    on_device().with_context(|| format!("device {device}"))
}

fn ways(readers: u16, writers: u16) -> impl Iterator<Item = Way> {
    let of = |way, threads| std::iter::repeat_n(way, usize::from(threads));
    of(Way::Read, readers).chain(of(Way::Write, writers))
}

/// As [`mixed`], on what is open: a thread for each.
fn on(files: Vec<(File, Way)>, amount: Amount) -> Result<Answer> {
    let left = AtomicU64::new(0);
    thread::scope(|scope| {
        let start = |(number, (file, way))| {
            // Other places for each.
            let one = One::new(file, way, SEED ^ (number as u64 + 1) << 32)?;
            Worker::start(scope, one, &left)
        };
        let workers: Vec<Worker> =
            files.into_iter().enumerate().map(start).collect::<Result<_>>()?;
        measure(amount, |count, latency| run(&workers, &left, count, latency))
    })
}

/// Lets all of them work until `count` requests are done.
fn run(workers: &[Worker], left: &AtomicU64, count: u64, latency: &mut Histogram) -> Result<u64> {
    left.store(count, Ordering::Relaxed);
    for worker in workers {
        worker.begin.send(()).context("a thread has ended")?;
    }
    let mut done = Ok(0);
    for worker in workers {
        // All are waited for, also when one has failed.
        let worked = worker.ended.recv().context("a thread has ended").flatten();
        done = match (done, worked) {
            (Ok(sum), Ok(found)) => {
                latency.merge(&found);
                Ok(sum + found.count())
            }
            (Err(error), _) | (_, Err(error)) => Err(error),
        };
    }
    done
}

/// A thread, which ends when nobody tells it to begin any more.
struct Worker {
    begin: Sender<()>,
    ended: Receiver<Result<Histogram>>,
}

impl Worker {
    fn start<'scope, 'env>(
        scope: &'scope Scope<'scope, 'env>,
        mut one: One,
        left: &'scope AtomicU64,
    ) -> Result<Worker> {
        let (begin, begins) = channel();
        let (ends, ended) = channel();
        let work = move || {
            while begins.recv() == Ok(()) {
                let mut latency = Histogram::default();
                let worked = one.share(left, &mut latency);
                if worked.is_err() {
                    // The others need not go on.
                    left.store(0, Ordering::Relaxed);
                }
                if ends.send(worked.map(|()| latency)).is_err() {
                    return;
                }
            }
        };
        thread::Builder::new().spawn_scoped(scope, work).context("a thread")?;
        Ok(Worker { begin, ended })
    }
}

impl One {
    /// One after the other of those that are left for all.
    fn share(&mut self, left: &AtomicU64, latency: &mut Histogram) -> Result<()> {
        let take = |left: u64| left.checked_sub(1);
        let mut since = now_ns();
        while left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok() {
            self.once()?;
            let now = now_ns();
            latency.record(now - since);
            since = now;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guest::block::tests::{disk, name};

    /// Through the page cache: not each file system has `O_DIRECT`.
    fn done(name: &str, readers: u16, writers: u16, amount: Amount) -> Result<Answer> {
        let open = |way| Ok((open(name, way, OFlags::empty())?, way));
        on(ways(readers, writers).map(open).collect::<Result<_>>()?, amount)
    }

    #[test]
    fn all_threads_together_do_as_many_as_ordered() -> Result<()> {
        let disk = disk()?;
        for (readers, writers) in [(1, 1), (4, 4), (16, 16), (1, 16)] {
            for operations in [1, 7, 1000] {
                let amount = Amount::once(operations);
                let Answer::Done { operations: told, elapsed_ns, p50_ns, p99_ns } =
                    done(name(&disk)?, readers, writers, amount)?
                else {
                    anyhow::bail!("failed");
                };
                assert_eq!(told, operations);
                assert!(0 < p50_ns && p50_ns <= p99_ns && p99_ns <= elapsed_ns);
            }
        }
        Ok(())
    }

    #[test]
    fn each_kind_has_its_threads_and_their_places_differ() -> Result<()> {
        let kinds: Vec<Way> = ways(2, 3).collect();
        assert_eq!(kinds, [Way::Read, Way::Read, Way::Write, Way::Write, Way::Write]);
        let disk = disk()?;
        let mut draw = |number: u64| {
            let file = open(name(&disk)?, Way::Read, OFlags::empty())?;
            let mut one = One::new(file, Way::Read, SEED ^ (number + 1) << 32)?;
            Ok((0..20).map(|_| one.places.next()).collect::<Vec<u64>>())
        };
        let places = (0..16).map(&mut draw).collect::<Result<Vec<_>>>()?;
        for (number, of_one) in places.iter().enumerate() {
            assert!(!places[..number].contains(of_one));
        }
        Ok(())
    }

    #[test]
    fn a_thread_that_fails_ends_the_others() -> Result<()> {
        let disk = disk()?;
        let reader = (open(name(&disk)?, Way::Read, OFlags::empty())?, Way::Read);
        // A descriptor for reads only.
        let writer = (open(name(&disk)?, Way::Read, OFlags::empty())?, Way::Write);
        let failed = on(vec![reader, writer], Amount::once(1_000_000_000));
        let said = failed.map_err(|error| format!("{error:#}"));
        assert_eq!(said, Err("writing: Bad file descriptor (os error 9)".to_owned()));
        Ok(())
    }

    #[test]
    fn threads_are_bounded_and_devices_named() {
        let said = |device, readers, writers| {
            let failed = mixed(device, readers, writers, Amount::once(1));
            failed.map_err(|error| format!("{error:#}")).err()
        };
        let none = "device /dev/nothing: No such file or directory (os error 2)";
        for (readers, writers, why) in
            [(0, 1, "readers: 0, not 1 to 16"), (1, 17, "writers: 17, not 1 to 16"), (16, 16, none)]
        {
            assert_eq!(said("/dev/nothing", readers, writers).as_deref(), Some(why));
        }
    }
}
