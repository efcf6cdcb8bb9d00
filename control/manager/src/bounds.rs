//! How much of the daemon one device can use up: descriptors, mappings, memory.
//!
//! What a device is sure to get, for one front-end, is *promised* to it before it is opened, and the sum
//! of all promises stays below what this process may have: a device for which too little is left is
//! refused, and nothing that a tenant does takes away what another was promised. What a tenant may have
//! beyond that (more connections, more regions of memory, descriptors that take long to close) comes
//! out of what is promised to nobody, and is refused to whoever asks when that is used up.
//!
//! Not here: how addresses are counted (`address_space`), which are for all; slots and tables of a queue (`sidecore`), whose
//! size is fixed. Called by `begin`, `check`, `opening`, `front_ends` and `upgrade`.

pub(crate) mod address_space;

use std::cell::{Cell, RefCell};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::rc::Rc;

use backend::Memory;
use config::api::{BoundView, BoundsView};
use config::plan::{DevicePlan, StagesPlan};
use config::{HostPlan, Source};
use rustix::process::{Resource, getrlimit};

use crate::devices::lent::{MESSAGE_DESCRIPTORS, Unclosed};
use crate::guests::dialogue::DIALOGUES_MAX;
use crate::sockets;
use address_space::AddressSpace;

/// A front-end's own: its socket, the channel to it, the dirty log.
const CONNECTION_DESCRIPTORS: u64 = 3;
/// Kept for a process that takes over: of so many regions, and the in-flight record. QEMU has two regions, and
/// one for each DIMM.
const KEPT_REGIONS: u64 = 4;
const KEPT_DESCRIPTORS: u64 = KEPT_REGIONS + 1;
/// Kick and call. One for errors is not counted: few front-ends bring it.
const RING_DESCRIPTORS: u64 = 2;
/// Copies that its sidecore has.
const SERVED_DESCRIPTORS: u64 = 2;
/// A listening socket; of a disk two descriptions of the image, and what tells of a failed sync.
const DEVICE_DESCRIPTORS: u64 = 4;
/// A port that leads to the host: what tells of its link, and XDP's program, map and link.
const HOST_DESCRIPTORS: u64 = 4;
/// What the daemon needs besides devices later on: clients of the API, files that are open for a moment; VMMs that are
/// asked for their vCPUs.
const OWN_DESCRIPTORS: u64 = 8 + DIALOGUES_MAX as u64;
/// What is open before the first device: the launcher's channel, the control loop, the API, the lock of the state and
/// the bell of looks at it; and of each sidecore. A test of the program compares them with a daemon's.
const START_DESCRIPTORS: u64 = 16;
const CORE_DESCRIPTORS: u64 = 3;
/// Regions of memory that each guest may have; one that has more takes from what is free. QEMU has two,
/// and one for each DIMM; Cloud Hypervisor one for each zone.
pub(crate) const REGIONS: u64 = 16;
/// Dirty log, in-flight record, and a table that takes the place of another.
const OTHER_MAPPINGS: u64 = 2 + REGIONS;
/// Of the daemon itself: libraries, heaps, stacks, rings.
const OWN_MAPPINGS: u64 = 2048;
/// Of a queue: slots, tables (ARCHITECTURE.md, bounds); of a device: four connections.
const QUEUE_BYTES: u64 = 200 << 10;
const DEVICE_BYTES: u64 = 64 << 10;
/// Aligned buffers of a file, on each sidecore that has a queue of it: for drivers whose own are not.
const BUFFER_BYTES: u64 = 128 << 10;
/// What is known of requests that go through stages, of one queue; and of each that is recorded.
const STAGED_BYTES: u64 = 32 << 10;
const TRACED_BYTES: u64 = 64;
/// Of a NIC that comes by a link: two rings of 256 KiB, frames at both ends of them and in pieces, and its part of what a
/// session has on its way out.
const LINKED_BYTES: u64 = 1 << 20;
/// The daemon itself: code, threads, tables of bridges.
const OWN_BYTES: u64 = 32 << 20;
/// Addresses for what devices hold in memory: what front-ends may lend, as much again as [`address_space`] has it, and the
/// rest of the daemon are beside them.
const ADDRESSES: u64 = 60 << 40;
/// Where nobody has set it (Linux, `DEFAULT_MAX_MAP_COUNT`).
const MAPPINGS_DEFAULT: u64 = 65_530;

/// What version 1 of cgroups says where there is no limit, and more: the largest number of whole pages, which
/// is less with larger pages.
const NO_LIMIT_V1: u64 = i64::MAX as u64 - (1 << 20);

/// Refusal of what a device may take, or of what a front-end asks beyond that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BoundsError {
    /// Descriptors of a device.
    #[error(
        "{}: raise LimitNOFILE in the unit (`ulimit -Hn`), or give devices fewer queues",
        .0.told("descriptors")
    )]
    Descriptors(Shortage),
    /// Addresses of memory disks, KiB.
    #[error("{}: make memory disks smaller", .0.told("KiB of addresses"))]
    Addresses(Shortage),
    /// Mappings of a device.
    #[error("{}: raise `sysctl vm.max_map_count` and restart the daemon", .0.told("mappings"))]
    Mappings(Shortage),
    /// Memory of a device, KiB.
    #[error(
        "{}: raise the limit of its memory (MemoryMax in the unit, `ulimit -v`), or make memory disks smaller",
        .0.told("KiB of memory")
    )]
    Memory(Shortage),
}

/// Amount that a device needs, beside what is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shortage {
    needs: u64,
    left: u64,
    most: u64,
    /// Devices that have a promise.
    devices: u64,
}

impl Shortage {
    fn told(&self, what: &str) -> String {
        let Shortage { needs, left, most, devices } = self;
        let beside = match devices {
            0 => "the daemon itself".to_string(),
            1 => "1 device and the daemon itself".to_string(),
            _ => format!("{devices} devices and the daemon itself"),
        };
        format!(
            "it may take {needs} {what}, and of {most} only {left} are left beside what {beside} may take"
        )
    }
}

/// So much of each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Amount {
    descriptors: u64,
    mappings: u64,
    bytes: u64,
}

impl Amount {
    /// What a device of that plan is promised.
    pub(crate) fn of(plan: &DevicePlan) -> Amount {
        let mut mappings = REGIONS + OTHER_MAPPINGS;
        let (rings, host, held) = match plan {
            DevicePlan::Disk(disk) => {
                let held = match disk.source {
                    Source::Memory { size_bytes } => {
                        mappings += Memory::mappings_of(size_bytes);
                        size_bytes
                    }
                    Source::File { .. } => BUFFER_BYTES * u64::from(disk.queues),
                    Source::Null { .. } | Source::Remote { .. } => 0,
                };
                let held = held.saturating_add(u64::from(disk.queues) * staged(&disk.stages));
                (u64::from(disk.queues), 0, held)
            }
            DevicePlan::Nic(nic) => {
                let host = nic.host().map_or(0, |_| HOST_DESCRIPTORS + u64::from(nic.queues));
                let held = match nic.host() {
                    Some(HostPlan::Remote { .. }) => LINKED_BYTES,
                    _ => 0,
                };
                (2 * u64::from(nic.queues), host, held)
            }
        };
        Amount {
            descriptors: DEVICE_DESCRIPTORS + host + connection(rings) + SERVED_DESCRIPTORS * rings,
            mappings,
            bytes: held.saturating_add(DEVICE_BYTES + QUEUE_BYTES * rings),
        }
    }

    fn plus(self, other: Amount) -> Amount {
        Amount {
            descriptors: self.descriptors.saturating_add(other.descriptors),
            mappings: self.mappings.saturating_add(other.mappings),
            bytes: self.bytes.saturating_add(other.bytes),
        }
    }

    fn minus(self, other: Amount) -> Amount {
        Amount {
            descriptors: self.descriptors.saturating_sub(other.descriptors),
            mappings: self.mappings.saturating_sub(other.mappings),
            bytes: self.bytes.saturating_sub(other.bytes),
        }
    }
}

/// Whether a device that is as `after` says may come to need more than as `before` says. Descriptors are no more: it has the
/// same queues.
pub(crate) fn needs_more(before: &DevicePlan, after: &DevicePlan) -> bool {
    let (had, needs) = (Amount::of(before), Amount::of(after));
    needs.bytes > had.bytes || needs.mappings > had.mappings
}

/// What stages take of memory for each queue.
fn staged(stages: &StagesPlan) -> u64 {
    let trace = stages.trace.as_ref();
    let trace = trace.map_or(0, |stage| u64::from(stage.is.entries) * TRACED_BYTES);
    if stages.is_none() { 0 } else { trace + STAGED_BYTES }
}

/// What one connection of a device with so many rings can hold.
fn connection(rings: u64) -> u64 {
    CONNECTION_DESCRIPTORS + MESSAGE_DESCRIPTORS + KEPT_DESCRIPTORS + RING_DESCRIPTORS * rings
}

/// What this process may have, and what is promised and taken of it.
#[derive(Clone, Debug)]
pub(crate) struct Bounds(Rc<Shared>);

#[derive(Debug)]
struct Shared {
    /// Without descriptors, whose limit may change while it runs.
    most: Amount,
    /// What the daemon takes itself.
    own: Amount,
    devices: Cell<u64>,
    promised: Cell<Amount>,
    extra: Cell<Amount>,
    /// What goes soon, and is promised to others already.
    credit: Cell<Amount>,
    /// Whoever claims has it already.
    is_lenient: Cell<bool>,
    /// What was given back, and is not closed yet.
    unclosed: Unclosed,
    addresses: AddressSpace,
    /// A descriptor that is given up for a moment when none is left ([`sockets::reserve`]).
    reserve: RefCell<Option<OwnedFd>>,
}

/// More regions of memory than are left for one front-end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{count} regions of memory: each guest has {mappings} mappings and {descriptors} descriptors for \
     them, and what is left beyond that is used up; raise `sysctl vm.max_map_count` and LimitNOFILE and \
     restart the daemon",
    mappings = REGIONS, descriptors = KEPT_REGIONS
)]
pub(crate) struct TooManyRegions {
    /// As many as it would have.
    count: usize,
}

/// A part of it, given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Claim {
    of: Bounds,
    amount: Amount,
    is_device: bool,
}

impl Bounds {
    /// Of this process, whose threads are there and whose devices and `uplinks` are not, but for
    /// `inherited` descriptors of devices.
    pub(crate) fn of_this_process(sidecores: usize, uplinks: usize, inherited: usize) -> Bounds {
        let open = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
        Bounds::beside(open.saturating_sub(inherited) as u64, sidecores, uplinks)
    }

    /// Of a daemon that would be started in the place of this process.
    pub(crate) fn of_a_start(sidecores: usize, uplinks: usize) -> Bounds {
        let open = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count) as u64;
        let begun = START_DESCRIPTORS + CORE_DESCRIPTORS * sidecores as u64;
        Bounds::beside(open + begun, sidecores, uplinks)
    }

    /// Of a process that has so many descriptors before its first device.
    fn beside(open: u64, sidecores: usize, uplinks: usize) -> Bounds {
        // Each sidecore makes its io_uring when it gets its first disk, and what wakes it.
        let uplinks = uplinks as u64 * (HOST_DESCRIPTORS + 1);
        let descriptors = open + 2 * sidecores as u64 + uplinks + OWN_DESCRIPTORS;
        let own = Amount { descriptors, mappings: OWN_MAPPINGS, bytes: OWN_BYTES };
        let mappings = number_in("/proc/sys/vm/max_map_count").unwrap_or(MAPPINGS_DEFAULT);
        let space = getrlimit(Resource::As).current;
        let bytes = memory_of_the_cgroup().into_iter().chain(space).min().unwrap_or(u64::MAX);
        Bounds::new(Amount { descriptors: 0, mappings, bytes }, own)
    }

    /// Of a test.
    #[cfg(test)]
    pub(crate) fn without_limits() -> Bounds {
        let most = Amount { descriptors: u64::MAX, mappings: u64::MAX, bytes: u64::MAX };
        Bounds::new(most, Amount::default())
    }

    /// Of a test: so many descriptors.
    #[cfg(test)]
    pub(crate) fn with_descriptors(descriptors: u64) -> Bounds {
        let most = Amount { descriptors, mappings: u64::MAX, bytes: u64::MAX };
        Bounds::new(most, Amount::default())
    }

    /// Of a test: leaves so much memory, until what is given is dropped.
    #[cfg(test)]
    pub(crate) fn leave_memory(&self, bytes: u64) -> Claim {
        let amount = Amount { bytes: self.free().bytes - bytes, ..Amount::default() };
        self.0.extra.set(self.0.extra.get().plus(amount));
        Claim { of: self.clone(), amount, is_device: false }
    }

    fn new(most: Amount, own: Amount) -> Bounds {
        let none = || Cell::new(Amount::default());
        let (promised, extra, credit) = (none(), none(), none());
        let (devices, is_lenient) = (Cell::new(0), Cell::new(false));
        let (unclosed, addresses) = (Unclosed::default(), AddressSpace::default());
        let shared = Shared {
            most,
            own,
            devices,
            promised,
            extra,
            credit,
            is_lenient,
            unclosed,
            addresses,
            reserve: RefCell::new(None),
        };
        Bounds(Rc::new(shared))
    }

    /// What this process may have of each at this moment.
    fn most(&self) -> Amount {
        let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        match self.0.most.descriptors {
            0 => Amount { descriptors, ..self.0.most },
            _ => self.0.most,
        }
    }

    /// What all front-ends share of our addresses.
    pub(crate) fn addresses(&self) -> &AddressSpace {
        &self.0.addresses
    }

    /// Gives up the descriptor in reserve. False: there is none.
    pub(crate) fn give_reserve_up(&self) -> bool {
        self.0.reserve.take().is_some()
    }

    /// Holds a descriptor in reserve, if one is left.
    pub(crate) fn hold_reserve(&self) {
        let held = self.0.reserve.take().or_else(sockets::reserve);
        *self.0.reserve.borrow_mut() = held;
    }

    /// Where a device's closer counts what it has not closed yet.
    pub(crate) fn unclosed(&self) -> &Unclosed {
        &self.0.unclosed
    }

    /// What is neither the daemon's own, nor promised, nor taken beyond that.
    fn free(&self) -> Amount {
        let Shared { own, extra, .. } = &*self.0;
        let descriptors = self.unclosed().count();
        let closing = Amount { descriptors, ..Amount::default() };
        self.most().minus(*own).minus(self.promised()).minus(extra.get()).minus(closing)
    }

    /// What is promised to devices that stay.
    fn promised(&self) -> Amount {
        self.0.promised.get().minus(self.0.credit.get())
    }

    /// Until it is called with nothing, what these devices are promised may be promised to those that take their
    /// places.
    pub(crate) fn lend<'a>(&self, going: impl IntoIterator<Item = &'a DevicePlan>) {
        let sum = going.into_iter().map(Amount::of).fold(Amount::default(), Amount::plus);
        self.0.credit.set(sum);
    }

    /// Promises a device what it may come to need.
    ///
    /// # Errors
    /// Of what there is too little, and what to raise.
    pub(crate) fn promise(&self, plan: &DevicePlan) -> Result<Claim, BoundsError> {
        let (needs, left, most) = (Amount::of(plan), self.free(), self.most());
        let devices = self.0.devices.get();
        let short = |of: fn(&Amount) -> u64| {
            let [needs, left, most] = [needs, left, most].map(|it| of(&it));
            Shortage { needs, left, most, devices }
        };
        if needs.descriptors > left.descriptors {
            return Err(BoundsError::Descriptors(short(|it| it.descriptors)));
        }
        let addresses = ADDRESSES.saturating_sub(self.promised().bytes);
        if needs.bytes > addresses {
            let [needs, left, most] = [needs.bytes, addresses, ADDRESSES].map(|bytes| bytes >> 10);
            return Err(BoundsError::Addresses(Shortage { needs, left, most, devices }));
        }
        if needs.mappings > left.mappings {
            return Err(BoundsError::Mappings(short(|it| it.mappings)));
        }
        if needs.bytes > left.bytes {
            return Err(BoundsError::Memory(short(|it| it.bytes >> 10)));
        }
        Ok(self.promise_again(plan))
    }

    /// Promises a device what it may come to need when it is as `after` says, in the place of what it was promised as
    /// `before` says.
    ///
    /// # Errors
    /// As [`Self::promise`]; one that needs no more is not refused.
    pub(crate) fn promise_instead(
        &self,
        before: &DevicePlan,
        after: &DevicePlan,
    ) -> Result<Claim, BoundsError> {
        if !needs_more(before, after) {
            return Ok(self.promise_again(after));
        }
        self.lend([before]);
        let promised = self.promise(after);
        self.lend([]);
        promised
    }

    /// The same for a device that another process serves: it was promised there, whatever is left.
    pub(crate) fn promise_again(&self, plan: &DevicePlan) -> Claim {
        let needs = Amount::of(plan);
        self.0.devices.set(self.0.devices.get() + 1);
        self.0.promised.set(self.0.promised.get().plus(needs));
        Claim { of: self.clone(), amount: needs, is_device: true }
    }

    /// Something beyond that, if it is free.
    fn claim(&self, amount: Amount) -> Option<Claim> {
        let left = self.free();
        let is_there = amount.descriptors <= left.descriptors && amount.mappings <= left.mappings;
        if !is_there && !self.0.is_lenient.get() {
            return None;
        }
        self.0.extra.set(self.0.extra.get().plus(amount));
        Some(Claim { of: self.clone(), amount, is_device: false })
    }

    /// While another process's front-ends are taken over: nothing is refused that was granted there.
    pub(crate) fn be_lenient(&self, is_lenient: bool) {
        self.0.is_lenient.set(is_lenient);
    }

    /// For one more connection of a device with so many rings.
    pub(crate) fn claim_connection(&self, rings: u16) -> Option<Claim> {
        self.claim(Amount { descriptors: connection(rings.into()), ..Amount::default() })
    }

    /// For a message with `count` descriptors, of a front-end of which those of `kept` regions are kept.
    pub(crate) fn claim_message(&self, count: usize, kept: usize) -> Option<Claim> {
        let free = KEPT_REGIONS.saturating_sub(kept as u64).max(MESSAGE_DESCRIPTORS);
        let descriptors = (count as u64).saturating_sub(free);
        self.claim(Amount { descriptors, ..Amount::default() })
    }

    /// For a front-end that has no region of memory yet.
    pub(crate) fn claim_no_regions(&self) -> Claim {
        Claim { of: self.clone(), amount: Amount::default(), is_device: false }
    }

    /// Whether what is promised to others begins to be used up by what waits to be closed.
    pub(crate) fn is_used_up(&self) -> bool {
        self.free().descriptors == 0
    }

    /// As operators see it.
    pub(crate) fn view(&self) -> BoundsView {
        let Shared { own, devices, promised, extra, .. } = &*self.0;
        let (most, promised, extra) = (self.most(), promised.get(), extra.get());
        let view = |of: fn(&Amount) -> u64| BoundView {
            own: of(own),
            promised: of(&promised),
            extra: of(&extra),
            limit: Some(of(&most)).filter(|most| *most != u64::MAX),
        };
        BoundsView {
            devices: devices.get(),
            descriptors: view(|it| it.descriptors),
            mappings: view(|it| it.mappings),
            memory_bytes: view(|it| it.bytes),
            host_memory_bytes: memory_of_the_host(),
        }
    }
}

impl Claim {
    /// Of a front-end's regions of memory: makes it what `count` of them take. Only what is more than
    /// before has to be free, so fewer or as many are never refused, whatever others have taken.
    ///
    /// # Errors
    /// More than are free; then it is as it was.
    pub(crate) fn set_regions(&mut self, count: usize) -> Result<(), TooManyRegions> {
        let mappings = (count as u64).saturating_sub(REGIONS);
        let descriptors = (count as u64).saturating_sub(KEPT_REGIONS);
        let wanted = Amount { mappings, descriptors, ..Amount::default() };
        let more = self.of.claim(wanted.minus(self.amount));
        let mut more = more.ok_or(TooManyRegions { count })?;
        let less = self.amount.minus(wanted);
        let extra = &self.of.0.extra;
        extra.set(extra.get().minus(less));
        // The two are one from here on.
        more.amount = Amount::default();
        self.amount = wanted;
        Ok(())
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let Shared { devices, promised, extra, .. } = &*self.of.0;
        let from = if self.is_device { promised } else { extra };
        from.set(from.get().minus(self.amount));
        devices.set(devices.get() - u64::from(self.is_device));
    }
}

fn number_in(path: impl AsRef<Path>) -> Option<u64> {
    names::kernel_text(path).ok()?.trim().parse().ok()
}

/// What the host has in all, RAM and swap.
fn memory_of_the_host() -> Option<u64> {
    total_of(&names::kernel_text("/proc/meminfo").ok()?)
}

/// The same, of a host whose `/proc/meminfo` has that text.
fn total_of(text: &str) -> Option<u64> {
    let kib = |name: &str| -> Option<u64> {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().strip_suffix("kB")?.trim().parse().ok()
    };
    Some((kib("MemTotal:")? + kib("SwapTotal:").unwrap_or(0)) << 10)
}

/// The least that this process's cgroup, or one above it, allows; nothing where there is no limit, or none
/// that can be seen.
fn memory_of_the_cgroup() -> Option<u64> {
    let groups = names::kernel_text("/proc/self/cgroup").ok()?;
    least_of_cgroups(&groups, Path::new("/sys/fs/cgroup"), |file| number_in(file))
}

/// Of a process whose `/proc/PID/cgroup` has that text: of either version, and on hosts with both of both.
fn least_of_cgroups(
    groups: &str,
    root: &Path,
    number_in: impl Fn(&Path) -> Option<u64>,
) -> Option<u64> {
    let limits = groups.lines().filter_map(|line| {
        // NUMBER:CONTROLLERS:PATH; version 2 has number 0 and names none (cgroups(7)).
        let mut fields = line.splitn(3, ':');
        let (number, controllers, own) = (fields.next()?, fields.next()?, fields.next()?);
        let (root, file) = match number == "0" && controllers.is_empty() {
            true => (root.to_path_buf(), "memory.max"),
            false if controllers.split(',').any(|one| one == "memory") => {
                (root.join("memory"), "memory.limit_in_bytes")
            }
            false => return None,
        };
        let below = root.join(own.trim_start_matches('/'));
        let above = below.ancestors().take_while(|group| group.starts_with(&root));
        above.filter_map(|group| number_in(&group.join(file))).filter(|it| *it < NO_LIMIT_V1).min()
    });
    limits.min()
}

#[cfg(test)]
mod tests;
