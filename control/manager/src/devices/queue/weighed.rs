//! What a queue asks of its sidecore, as looks at the loads find it.

use schedule::Nanos;

/// What a look finds of a sidecore.
#[derive(Clone, Copy, Default)]
pub(crate) struct Found {
    pub(crate) load: u32,
    /// Of its visits, nanoseconds: its queues have the load in the same proportions as this.
    pub(crate) work_ns: u64,
}

/// Of one queue, what looks need to remember.
#[derive(Clone, Copy, Default)]
pub(crate) struct Weighed {
    /// Its count at the last look.
    work_ns: u64,
    /// Its part of its sidecore's load, thousandths; half of it is of before the last look.
    pub(crate) load: u32,
    /// When it was moved last, or was to be.
    pub(crate) moved: Option<Nanos>,
}

impl Weighed {
    /// Nothing is known of it, and its count goes on from there.
    pub(crate) fn after(work_ns: u64) -> Weighed {
        Weighed { work_ns, ..Weighed::default() }
    }

    /// A look finds that it worked so long in all, and `core` of its sidecore.
    pub(crate) fn look(&mut self, work_ns: u64, core: Found) {
        let did_ns = work_ns.saturating_sub(std::mem::replace(&mut self.work_ns, work_ns));
        self.load = (self.load + portion(did_ns, core.work_ns, core.load)) / 2;
    }
}

/// So much of `whole` as `some` is of `all`; at most all of it.
pub(crate) fn portion(some: u64, all: u64, whole: u32) -> u32 {
    let all = all.max(1);
    (u128::from(some.min(all)) * u128::from(whole) / u128::from(all)) as u32
}
