//! The program in the kernel, loaded and attached for as long as a [`Tracker`] lives.
//!
//! Started once, before a process gives up its rights; nothing after that needs any: the roster writes
//! through the map's memory. Called by the program and by benches.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use bpf::sys::{self, Kind};
use bpf::{Instruction, Own};
use runstate::Table;
use runstate::layout::WORDS;
use rustix::io::Errno;

use crate::btf::Btf;
use crate::program::{Facts, assemble};
use crate::roster::Roster;
use crate::unavailable::Unavailable;

/// The running program.
#[derive(Debug)]
pub struct Tracker {
    table: Arc<Table>,
    seed: u32,
    program: OwnedFd,
    /// Its close detaches the program.
    _link: OwnedFd,
}

/// What the program has cost since the kernel was asked to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    /// How often it ran.
    pub runs: u64,
    /// How long it took in all, nanoseconds, with what reading the clock twice takes.
    pub total_ns: u64,
}

impl Tracker {
    /// Loads the program and attaches it. `seed` is random: it keeps who makes threads from choosing
    /// which of them meet in the index.
    ///
    /// # Errors
    /// Why it cannot be. Nothing is left behind.
    pub fn start(seed: u32) -> Result<Tracker, Unavailable> {
        Tracker::start_as(seed, assemble)
    }

    /// The same with a program that does nothing, to know what the kernel's measuring takes of [`Self::cost`].
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn start_empty(seed: u32) -> Result<Tracker, Unavailable> {
        Tracker::start_as(seed, |_| crate::program::nothing())
    }

    fn start_as(
        seed: u32,
        instructions: fn(Facts) -> Vec<Instruction>,
    ) -> Result<Tracker, Unavailable> {
        bpf::namespaces().map_err(|own| match own {
            Own::Pids => Unavailable::OwnPids,
            Own::Time => Unavailable::OwnTime,
        })?;
        let map = sys::make_mapped(8 * WORDS as u32).map_err(refused("its map"))?;
        let unmapped = |error: std::io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
        let table = Table::of_map(&map).map_err(unmapped).map_err(refused("its map's memory"))?;
        let (pid_at, tracepoint) = kernel_facts()?;
        let facts = Facts { map: std::os::fd::AsRawFd::as_raw_fd(&map), pid_at, seed };
        let program = sys::load(&instructions(facts), Kind::Arguments(tracepoint), "runstate")
            .map_err(refused("the program"))?;
        let link = sys::attach(program.as_fd()).map_err(refused("to attach it"))?;
        Ok(Tracker { table: Arc::new(table), seed, program, _link: link })
    }

    /// What it writes.
    pub fn table(&self) -> &Arc<Table> {
        &self.table
    }

    /// Who is followed. To be asked for once: a roster is the only one to write the index.
    pub fn roster(&self) -> Roster {
        Roster::new(Arc::clone(&self.table), self.seed)
    }

    /// Has the kernel measure what programs cost, until what this returns is dropped.
    ///
    /// # Errors
    /// The kernel's, for instance without the right.
    pub fn measure(&self) -> std::io::Result<OwnedFd> {
        Ok(sys::measure()?)
    }

    /// What it cost while it was measured.
    ///
    /// # Errors
    /// The kernel does not say.
    pub fn cost(&self) -> std::io::Result<Cost> {
        let text = sys::facts_of(&self.program)?;
        let number = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            line.and_then(|line| line.trim().parse().ok()).unwrap_or(0)
        };
        Ok(Cost { runs: number("run_cnt"), total_ns: number("run_time_ns") })
    }
}

/// Where a thread has its number, and the tracepoint's type.
fn kernel_facts() -> Result<(i16, u32), Unavailable> {
    let bytes = std::fs::read("/sys/kernel/btf/vmlinux")
        .map_err(|error| Unavailable::NoTypes(error.to_string()))?;
    let no_types = || Unavailable::NoTypes("not understood".to_string());
    let btf = Btf::parse(&bytes).ok_or_else(no_types)?;
    let pid_at = btf.offset_of("task_struct", "pid").ok_or_else(no_types)?;
    let pid_at = i16::try_from(pid_at).map_err(|_| no_types())?;
    let (tracepoint, arguments) = btf
        .tracepoint("sched_switch")
        .ok_or(Unavailable::OldKernel("sched_switch tracepoint with types"))?;
    if arguments < 4 {
        return Err(Unavailable::OldKernel("old thread's state in sched_switch"));
    }
    Ok((pid_at, tracepoint.id))
}

fn refused(step: &'static str) -> impl Fn(Errno) -> Unavailable {
    move |errno| match errno {
        Errno::PERM | Errno::ACCESS => Unavailable::NotPermitted,
        _ => Unavailable::Refused(step, errno),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use rustix::thread::gettid;

    use super::*;
    use runstate::Activity;

    /// Whether this process may load such a program: CAP_SYS_ADMIN is bit 21, CAP_PERFMON 38, CAP_BPF 39.
    fn may_load() -> bool {
        let text = std::fs::read_to_string("/proc/self/status").expect("ours");
        let line = text.lines().find_map(|line| line.strip_prefix("CapEff:")).expect("a line");
        let bits = u64::from_str_radix(line.trim(), 16).expect("a number");
        bits & (1 << 21) != 0 || bits & (3 << 38) == 3 << 38
    }

    /// Past the harness, in one piece; `./x test` counts it.
    fn say_skipped(why: &str) {
        let line = format!("skipped: {why}\n");
        let _ = std::io::Write::write_all(&mut std::io::stderr(), line.as_bytes());
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "what it waits for is to lose its processor")]
    fn a_thread_is_followed_or_it_is_said_why_not() {
        let tracker = match Tracker::start(0x1234_5677) {
            Ok(tracker) => tracker,
            Err(Unavailable::NotPermitted) => {
                assert!(!may_load(), "who may is not refused");
                return say_skipped(
                    "loading a program takes CAP_SYS_ADMIN, or CAP_BPF and CAP_PERFMON",
                );
            }
            Err(Unavailable::NoTypes(why)) => {
                let is_there = Path::new("/sys/kernel/btf/vmlinux").exists();
                assert!(!is_there, "a description that is there is understood: {why}");
                return say_skipped("this kernel does not describe its types");
            }
            Err(Unavailable::OwnPids) => {
                assert_eq!(bpf::namespaces(), Err(Own::Pids), "numbers here are the kernel's");
                return say_skipped("this namespace has numbers of its own for processes");
            }
            Err(error) => panic!("{error}"),
        };
        let mut roster = tracker.roster();
        let tid = gettid().as_raw_nonzero().get() as u32;
        let row = roster.bind(tid, 0).expect("room");
        let table = tracker.table();
        (0..4).for_each(|_| std::thread::sleep(Duration::from_millis(2)));
        // The last time is that of the sleep, unless others were given the processor between the sleep and the look.
        let looks = (0..100).map(|_| {
            std::thread::sleep(Duration::from_millis(2));
            table.read(row).expect("nobody else writes it")
        });
        let state = looks.into_iter().find(|state| state.last_off_ns >= 2_000_000);
        let state = state.expect("a sleep that was seen");
        assert_eq!(state.activity, Activity::Runs, "this thread looks at itself");
        assert!(state.switches >= 5, "{state:?}");
        // The first switch only begins a time.
        assert!(state.off_ns >= 4 * 2_000_000, "{state:?}");
        roster.unbind(tid, 0);
        let before = table.read(row).expect("whole");
        std::thread::sleep(Duration::from_millis(2));
        assert_eq!(table.read(row), Some(before), "who is not followed is not written");
    }
}
