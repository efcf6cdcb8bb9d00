//! Baseline: a thread for each device under a time-slicing scheduler, as kernel vhost has them.
//!
//! In simple form what Linux did before 6.6 (CFS, with its numbers for eight and more processors): the
//! ready thread that ran least is next, for 3 ms while others are ready; a thread that wakes is set
//! back by half of the 24 ms period at most, and takes the core from one that is ahead of it by more
//! than 4 ms. A kernel thread is not interrupted in a visit, which ends at vhost's weight. All cores
//! share one line of ready threads: moving a thread is free and immediate, which favours this
//! baseline. Written for the comparison only.

use std::collections::BTreeSet;

use crate::costs::{ARM_NS, LOOK_NS, SLEEP_NS, SWITCH_NS, VISIT_NS};
use crate::measure::{CoreMeasures, Sleep};
use crate::ring::Rings;
use crate::world::Core;

/// `VHOST_NET_WEIGHT` and `VHOST_NET_PKT_WEIGHT` of Linux: a visit's bytes and requests.
const WEIGHT_BYTES: u64 = 0x80000;
const WEIGHT_REQUESTS: u64 = 256;

const SLICE_NS: u64 = 3_000_000;
const SLEEPER_NS: u64 = 12_000_000;
const PREEMPT_NS: u64 = 4_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It waits for a kick; so it is at the start, with kicks asked for.
    Asleep,
    Ready,
    Running,
}

#[derive(Clone, Copy, Debug)]
struct Thread {
    state: State,
    /// Nanoseconds run, set forward to those of the others when it slept.
    vruntime: u64,
    /// A kick came while it ran.
    again: bool,
}

#[derive(Clone, Copy, Debug)]
enum At {
    Idle,
    /// About to make a visit.
    Begin,
    /// In one: requests and bytes.
    Visit(u64, u64),
    /// The ring was empty: kicks are asked for.
    Arm,
}

#[derive(Clone, Copy, Debug)]
struct Cpu {
    at: At,
    due: u64,
    /// Whose turn it is, unless idle.
    queue: u16,
    /// Up to when its thread's time was counted.
    counted: u64,
    slice_until: u64,
    /// Someone who woke is to run next.
    preempted: bool,
    sleep: Sleep,
}

#[derive(Debug)]
pub(crate) struct Threads {
    threads: Vec<Thread>,
    cpus: Vec<Cpu>,
    /// By time run, then number.
    ready: BTreeSet<(u64, u16)>,
    /// The least that anybody who is not asleep has run; never goes back.
    least: u64,
}

impl Threads {
    /// All threads asleep. Their rings are armed by a first look at the start.
    pub(crate) fn new(queues: usize, cpus: usize) -> Threads {
        let thread = Thread { state: State::Ready, vruntime: 0, again: false };
        let cpu = Cpu {
            at: At::Idle,
            due: 0,
            queue: 0,
            counted: 0,
            slice_until: 0,
            preempted: false,
            sleep: Sleep::from_start(),
        };
        let mut threads = Threads {
            threads: vec![thread; queues],
            cpus: vec![cpu; cpus],
            ready: (0..queues as u16).map(|queue| (0, queue)).collect(),
            least: 0,
        };
        for cpu in 0..cpus {
            threads.wake_cpu(cpu, 0);
        }
        threads
    }

    /// An idle core is woken for whoever is ready.
    fn wake_cpu(&mut self, cpu: usize, now: u64) {
        if let Some(first) = self.cpus[cpu].sleep.end(now) {
            self.run_next(cpu, first);
        }
    }

    /// Gives the core to the ready thread that ran least, from `at` on; to nobody when there is none.
    fn run_next(&mut self, cpu: usize, at: u64) {
        let Some((_, queue)) = self.ready.pop_first() else {
            self.cpus[cpu].at = At::Idle;
            self.cpus[cpu].sleep.begin(at + SLEEP_NS);
            return;
        };
        self.threads[usize::from(queue)].state = State::Running;
        let cpu = &mut self.cpus[cpu];
        (cpu.at, cpu.queue, cpu.due) = (At::Begin, queue, at);
        (cpu.counted, cpu.slice_until, cpu.preempted) = (at, at + SLICE_NS, false);
    }

    /// Counts what the thread on `cpu` has run until `now`.
    fn count(&mut self, cpu: usize, now: u64) {
        let cpu = &mut self.cpus[cpu];
        let thread = &mut self.threads[usize::from(cpu.queue)];
        thread.vruntime += now.saturating_sub(cpu.counted);
        cpu.counted = cpu.counted.max(now);
        let running = self.cpus.iter().filter(|cpu| !matches!(cpu.at, At::Idle));
        let least = running
            .map(|cpu| self.threads[usize::from(cpu.queue)].vruntime)
            .chain(self.ready.first().map(|(vruntime, _)| *vruntime))
            .min();
        self.least = self.least.max(least.unwrap_or(0));
    }

    /// The thread on `cpu` stops; the next one runs after a switch.
    fn stop(&mut self, cpu: usize, now: u64, state: State) {
        self.count(cpu, now);
        let queue = self.cpus[cpu].queue;
        let thread = &mut self.threads[usize::from(queue)];
        thread.state = state;
        if state == State::Ready {
            self.ready.insert((thread.vruntime, queue));
        }
        let switch_ns = if self.ready.is_empty() { 0 } else { SWITCH_NS };
        self.run_next(cpu, now + switch_ns);
    }

    /// After a visit that left something in the ring.
    fn go_on_or_yield(&mut self, cpu: usize, now: u64) {
        self.count(cpu, now);
        let Cpu { queue, slice_until, preempted, .. } = self.cpus[cpu];
        let ran = self.threads[usize::from(queue)].vruntime;
        let other = self.ready.first().is_some_and(|(vruntime, _)| *vruntime < ran);
        if other && (preempted || now >= slice_until) {
            self.stop(cpu, now, State::Ready);
        } else {
            (self.cpus[cpu].at, self.cpus[cpu].due) = (At::Begin, now);
        }
    }

    fn visit(&mut self, cpu: usize, requests: u64, bytes: u64, rings: &mut Rings) {
        let Cpu { queue, due: now, .. } = self.cpus[cpu];
        let full = requests >= WEIGHT_REQUESTS || bytes >= WEIGHT_BYTES;
        let next = if full { None } else { rings.take(queue) };
        if let Some(request) = next {
            self.cpus[cpu].due += rings.way.request_ns(request.bytes);
            self.cpus[cpu].at = At::Visit(requests + 1, bytes + request.bytes);
            return;
        }
        let called_ns = if requests > 0 { rings.way.call_ns } else { 0 };
        rings.show(queue, now + called_ns + rings.way.reply_ns);
        if full {
            self.go_on_or_yield(cpu, now + called_ns);
        } else {
            (self.cpus[cpu].at, self.cpus[cpu].due) = (At::Arm, now + called_ns + ARM_NS);
        }
    }

    fn arm(&mut self, cpu: usize, rings: &mut Rings) {
        let Cpu { queue, due: now, .. } = self.cpus[cpu];
        rings.arm(queue, true);
        let again = std::mem::take(&mut self.threads[usize::from(queue)].again);
        if again || !rings.is_empty(queue) {
            self.cpus[cpu].at = At::Begin;
        } else {
            self.stop(cpu, now, State::Asleep);
        }
    }
}

impl Core for Threads {
    fn due(&self) -> Option<u64> {
        self.cpus.iter().filter(|cpu| !matches!(cpu.at, At::Idle)).map(|cpu| cpu.due).min()
    }

    fn step(&mut self, rings: &mut Rings) {
        let running = (0..self.cpus.len()).filter(|cpu| !matches!(self.cpus[*cpu].at, At::Idle));
        let Some(number) = running.min_by_key(|cpu| self.cpus[*cpu].due) else { return };
        let cpu = &mut self.cpus[number];
        match cpu.at {
            At::Idle => {}
            At::Begin => {
                rings.arm(cpu.queue, false);
                cpu.due += if rings.is_empty(cpu.queue) { LOOK_NS } else { VISIT_NS };
                cpu.at = At::Visit(0, 0);
            }
            At::Visit(requests, bytes) => self.visit(number, requests, bytes, rings),
            At::Arm => self.arm(number, rings),
        }
    }

    fn kicked(&mut self, queue: u16, now: u64) {
        let thread = &mut self.threads[usize::from(queue)];
        match thread.state {
            State::Ready => return,
            State::Running => {
                thread.again = true;
                return;
            }
            State::Asleep => {}
        }
        thread.state = State::Ready;
        thread.vruntime = thread.vruntime.max(self.least.saturating_sub(SLEEPER_NS));
        let woken = thread.vruntime;
        self.ready.insert((woken, queue));
        let idle = (0..self.cpus.len()).find(|cpu| matches!(self.cpus[*cpu].at, At::Idle));
        if let Some(cpu) = idle {
            return self.wake_cpu(cpu, now);
        }
        for cpu in 0..self.cpus.len() {
            self.count(cpu, now);
        }
        let farthest = (0..self.cpus.len())
            .max_by_key(|cpu| self.threads[usize::from(self.cpus[*cpu].queue)].vruntime);
        if let Some(cpu) = farthest {
            let ran = self.threads[usize::from(self.cpus[cpu].queue)].vruntime;
            self.cpus[cpu].preempted |= ran.saturating_sub(woken) > PREEMPT_NS;
        }
    }

    fn measures(&self, now: u64) -> CoreMeasures {
        self.cpus.iter().map(|cpu| cpu.sleep.measures(now)).fold(
            CoreMeasures::default(),
            |sum, one| CoreMeasures {
                awake_ns: sum.awake_ns + one.awake_ns,
                sleeps: sum.sleeps + one.sleeps,
            },
        )
    }
}
