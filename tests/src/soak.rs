//! Eight guests that stay at work while a daemon is upgraded, killed, and misused around them: their memory
//! outlives its processes, and each has a ledger of what its disk must hold.
//!
//! On a thread of their own. Whoever ends the daemon's process holds them still meanwhile
//! ([`Tenants::hold`]). Not what happens to them (`tests/tests/hostile/soak.rs`).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use testing::clock::now_ns;
use testing::load::Random;
use virtqueue::Format;
use virtqueue::driver::RingSpec;

use crate::mixed::MixSpec;
use crate::tenant::{PATIENCE_NS, Tenant, TenantSpec};
use testing::daemon::{Daemon, pause};

/// How many there are.
pub const TENANTS: usize = 8;
const DISK_BYTES: u64 = 2 << 20;
const DEPTH: u16 = 8;
/// Between two looks at all of them: two processors carry the daemon and whoever misuses it, too.
const REST: Duration = Duration::from_micros(500);

/// The guests.
#[derive(Debug)]
pub struct Tenants {
    held: Arc<Mutex<State>>,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

/// The guests, held still.
#[derive(Debug)]
pub struct State {
    seats: Vec<Seat>,
    random: Random,
    /// What was wrong first.
    fault: Option<String>,
}

#[derive(Debug)]
struct Seat {
    id: String,
    /// Nobody, while one goes and another comes.
    tenant: Option<Tenant>,
    /// Of those who were here before.
    done: u64,
    /// When something came back last, or nothing was awaited.
    moved_ns: u64,
}

/// Their part of the configuration file.
pub fn config() -> String {
    let disk = |number| {
        let path = format!("t{number}.raw");
        let cache = if number % 2 == 0 { "direct" } else { "page" };
        format!(
            "[[disk]]\nid = \"t{number}\"\npath = \"{path}\"\nsize = \"2M\"\nqueues = 2\ncache = \"{cache}\"\n"
        )
    };
    (0..TENANTS).map(disk).collect()
}

/// Of tenant `number`: as many queues at all times, since each has descriptors.
fn spec(number: usize, random: &mut Random) -> TenantSpec {
    let format = if random.below(2) == 0 { Format::Split } else { Format::Packed };
    let (event_index, calls) = (random.below(2) == 0, random.below(4) == 0);
    let indirect_entries = if random.below(2) == 0 { 8 } else { 0 };
    let ring = RingSpec { size: 128, format, event_index, indirect_entries };
    let mix = MixSpec { depth_max: DEPTH, request_bytes_max: 64 << 10, cuts: true };
    TenantSpec { ring, queues: 1 + (number % 2) as u16, mix, calls }
}

impl Tenants {
    /// All of them, on disks of zeroes.
    ///
    /// # Errors
    /// One is not served.
    pub fn start(daemon: &Daemon, seed: u64) -> Result<Tenants> {
        let mut random = Random(seed);
        let mut seats = Vec::new();
        for number in 0..TENANTS {
            let id = format!("t{number}");
            let blank = Tenant::blank(DISK_BYTES);
            let tenant = Tenant::over(daemon.connect(&id)?, spec(number, &mut random), blank)?;
            seats.push(Seat { id, tenant: Some(tenant), done: 0, moved_ns: now_ns() });
        }
        let held = Arc::new(Mutex::new(State { seats, random, fault: None }));
        let stop = Arc::new(AtomicBool::new(false));
        let (shared, stopped) = (Arc::clone(&held), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) && lock(&shared).pass() {
                pause(REST);
            }
        });
        Ok(Tenants { held, stop, thread })
    }

    /// They do nothing until this is dropped.
    pub fn hold(&self) -> MutexGuard<'_, State> {
        lock(&self.held)
    }

    /// Ends all: what is in flight comes back, and each disk is read whole. Gives their requests.
    ///
    /// # Errors
    /// What was wrong, at whatever time.
    pub fn finish(self) -> Result<u64> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| anyhow!("the tenants' thread panicked"))?;
        let mut state = lock(&self.held);
        state.compare()?;
        Ok(state.done())
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl State {
    /// Nothing was wrong so far.
    ///
    /// # Errors
    /// What was.
    pub fn is_well(&self) -> Result<()> {
        self.fault.as_ref().map_or(Ok(()), |fault| bail!("{fault}"))
    }

    /// Requests that came back.
    pub fn done(&self) -> u64 {
        let of = |seat: &Seat| seat.done + seat.tenant.as_ref().map_or(0, |tenant| tenant.done);
        self.seats.iter().map(of).sum()
    }

    /// Requests in flight.
    pub fn in_flight(&self) -> u64 {
        let tenants = self.seats.iter().filter_map(|seat| seat.tenant.as_ref());
        tenants.map(|tenant| u64::from(tenant.in_flight())).sum()
    }

    /// After a new process came up: each tenant connects to it and goes on with what it had in flight.
    ///
    /// # Errors
    /// As [`Tenant::reconnect`].
    pub fn reconnect(&mut self, daemon: &Daemon) -> Result<()> {
        for seat in &mut self.seats {
            let tenant = seat.tenant.as_mut().context("nobody is there")?;
            // What the old process completed last.
            tenant.take()?;
            tenant.reconnect(daemon.connect(&seat.id)?)?;
            seat.moved_ns = now_ns();
        }
        Ok(())
    }

    /// One of them vanishes with what it has in flight, and another comes in its place, with other rings. Gives how
    /// many requests nobody saw end.
    ///
    /// # Errors
    /// The new one is not served.
    pub fn replace_one(&mut self, daemon: &Daemon, which: usize) -> Result<u64> {
        let spec = spec(which, &mut self.random);
        let seat = self.seats.get_mut(which).context("no such tenant")?;
        let before = seat.tenant.take().context("nobody is there")?;
        seat.done += before.done;
        let unseen = u64::from(before.in_flight());
        let ledger = before.vanish();
        seat.tenant = Some(Tenant::over(daemon.connect(&seat.id)?, spec, ledger)?);
        seat.moved_ns = now_ns();
        Ok(unseen)
    }

    /// One of them stops its queues and starts them where they were, as after a migration that was called off.
    ///
    /// # Errors
    /// The session's.
    pub fn stop_one_and_go_on(&mut self, which: usize) -> Result<()> {
        let seat = self.seats.get_mut(which).context("no such tenant")?;
        seat.tenant.as_mut().context("nobody is there")?.frontend().stop_and_go_on()
    }

    /// What is in flight comes back, and each disk is read whole.
    ///
    /// # Errors
    /// It is not what was written.
    pub fn compare(&mut self) -> Result<()> {
        self.is_well()?;
        for Seat { id, tenant, moved_ns, .. } in &mut self.seats {
            let tenant = tenant.as_mut().context("nobody is there")?;
            tenant
                .drain()
                .and_then(|()| tenant.compare_all(&mut self.random))
                .context(id.clone())?;
            *moved_ns = now_ns();
        }
        Ok(())
    }

    /// Each sends what it may have in flight and takes what came back. `false`: something was wrong.
    fn pass(&mut self) -> bool {
        if self.fault.is_none() {
            let State { seats, random, .. } = self;
            let passed = seats.iter_mut().try_for_each(|seat| seat.pass(random));
            self.fault = passed.err().map(|error| format!("{error:#}"));
        }
        self.fault.is_none()
    }
}

impl Seat {
    fn pass(&mut self, random: &mut Random) -> Result<()> {
        let tenant = self.tenant.as_mut().context("nobody is there")?;
        let taken = tenant.take().with_context(|| self.id.clone())?;
        tenant.send(DEPTH, random)?;
        let now = now_ns();
        if taken > 0 {
            self.moved_ns = now;
        }
        let (waited, left) = (now - self.moved_ns, tenant.in_flight());
        ensure!(
            waited < PATIENCE_NS,
            "{}: none of {left} requests came back in {waited} ns",
            self.id
        );
        tenant.rest_if_called()
    }
}
