//! Guests: when each sends, and what it does with an answer.
//!
//! A guest has one ring and one processor of its own. Not what becomes of the request (`world`).

use random::Random;

/// How a guest loads its ring. Times are nanoseconds and vary by a tenth, gaps of open loads are
/// exponential.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Load {
    /// One request, its answer, then as long elsewhere (the wire, the peer, the application).
    RequestResponse { bytes: u64, think_ns: u64 },
    /// Up to `depth` in flight; the guest's processor needs so long for each.
    Bulk { depth: u32, bytes: u64, cpu_ns: u64 },
    /// Requests come whatever becomes of them.
    Poisson { bytes: u64, gap_ns: u64 },
    /// The same in bursts, with silence between them.
    OnOff { bytes: u64, gap_ns: u64, on_ns: u64, off_ns: u64 },
    /// Attached, and no more.
    Idle,
}

/// One guest's state.
#[derive(Debug)]
pub(crate) struct Guest {
    load: Load,
    random: Random,
    in_flight: u32,
    /// Its processor is busy until then.
    free_at: u64,
    /// It waits for an answer, without which it does nothing.
    blocked: bool,
    /// Its burst ends then.
    on_until: u64,
}

/// What a guest does at its moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    Send {
        bytes: u64,
    },
    /// Nothing until an answer comes.
    Nothing,
}

impl Guest {
    pub(crate) fn new(load: Load, random: Random) -> Guest {
        Guest { load, random, in_flight: 0, free_at: 0, blocked: false, on_until: 0 }
    }

    /// Its first moment: anywhere in the first gap, so that guests do not start in step.
    pub(crate) fn first(&mut self) -> Option<u64> {
        match self.load {
            Load::RequestResponse { think_ns, .. } => Some(self.random.below(think_ns + 1)),
            Load::Bulk { cpu_ns, .. } => Some(self.random.below(cpu_ns + 1)),
            Load::Poisson { gap_ns, .. } => Some(self.random.exponential(gap_ns)),
            Load::OnOff { off_ns, .. } => Some(self.random.exponential(off_ns)),
            Load::Idle => None,
        }
    }

    /// What it does at `now`, a moment that it named.
    pub(crate) fn act(&mut self) -> Act {
        let bytes = match self.load {
            Load::Bulk { depth, .. } if self.in_flight >= depth => {
                self.blocked = true;
                return Act::Nothing;
            }
            Load::RequestResponse { bytes, .. }
            | Load::Bulk { bytes, .. }
            | Load::Poisson { bytes, .. }
            | Load::OnOff { bytes, .. } => bytes,
            Load::Idle => return Act::Nothing,
        };
        Act::Send { bytes }
    }

    /// After a request was sent at `now`, and its processor was held up for `held_ns` by a kick: the
    /// next moment, unless an answer brings it. `accepted`: the ring had room.
    pub(crate) fn sent(&mut self, now: u64, held_ns: u64, accepted: bool) -> Option<u64> {
        self.in_flight += u32::from(accepted);
        match self.load {
            Load::RequestResponse { think_ns, .. } => {
                // A full ring cannot meet who has one request.
                (!accepted).then_some(now + think_ns)
            }
            Load::Bulk { cpu_ns, .. } => {
                self.free_at = now + held_ns + self.random.about(cpu_ns);
                Some(self.free_at)
            }
            Load::Poisson { gap_ns, .. } => Some(now + self.random.exponential(gap_ns)),
            Load::OnOff { gap_ns, on_ns, off_ns, .. } => {
                if self.on_until == 0 {
                    self.on_until = now + self.random.exponential(on_ns);
                }
                let next = now + self.random.exponential(gap_ns);
                if next < self.on_until {
                    return Some(next);
                }
                self.on_until = 0;
                Some(next + self.random.exponential(off_ns))
            }
            Load::Idle => None,
        }
    }

    /// So many answers came at `now`. The next moment, when they bring one.
    pub(crate) fn answered(&mut self, now: u64, count: u32) -> Option<u64> {
        self.in_flight -= count;
        match self.load {
            Load::RequestResponse { think_ns, .. } => Some(now + self.random.about(think_ns)),
            Load::Bulk { .. } if std::mem::take(&mut self.blocked) => Some(now.max(self.free_at)),
            _ => None,
        }
    }
}
