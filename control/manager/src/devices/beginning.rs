//! Front-ends that connect and never get as far as requests: at which stage each stays, and what to write.
//!
//! A front-end that says nothing, that brings no memory, that enables no ring, or whose rings stay empty while
//! its guest kicks, looks well from the VMM: nothing fails, and the guest waits. State and time only; who looks
//! is in `front_ends::beginnings`.

use std::time::{Duration, Instant};

/// How long a front-end may stand at one stage before that is a problem; with a look in each second it is told
/// within five.
const PATIENCE: Duration = Duration::from_secs(3);

/// How far a front-end is that has not come to its first request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// It has said nothing of a front-end.
    Silent,
    /// It has brought no memory.
    NoMemory,
    /// It has brought memory, and no ring of it runs.
    NoRings,
    /// Its rings run and its guest kicks, but nothing is ever in them.
    EmptyRings,
}

impl Stage {
    /// What is wrong and what to do, for the device of that name.
    pub(crate) fn words(self, id: &str) -> String {
        match self {
            Stage::Silent => "its front-end has connected and says nothing: what connects here is to be a \
                              vhost-user front-end, and is ended after 10 s otherwise"
                .to_string(),
            Stage::NoMemory => format!(
                "its front-end is connected and has brought no guest memory: either its guest's driver has not \
                 started (firmware, a boot menu, no virtio driver), or the VMM cannot share the memory; {}",
                shared_memory(id)
            ),
            Stage::NoRings => "its front-end has brought the guest's memory and starts no ring: the guest's driver \
                               gave up; its own log says why (in Linux `dmesg | grep virtio`)"
                .to_string(),
            Stage::EmptyRings => format!(
                "its guest kicks, and nothing is ever in its rings: the VMM keeps the guest's memory to itself, and \
                 the daemon sees another; {}",
                shared_memory(id)
            ),
        }
    }
}

fn shared_memory(id: &str) -> String {
    format!(
        "QEMU takes `-object memory-backend-memfd,id=m,size=SIZE,share=on -machine memory-backend=m`, libvirt \
         <access mode='shared'/> in <memoryBacking>: `sidecore show {id} --print qemu` (or libvirt) prints all of it"
    )
}

/// What is seen of a front-end at one look.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    pub(crate) has_owner: bool,
    pub(crate) has_memory: bool,
    /// Rings that run in which a guest puts requests, or 0 while none of any kind does.
    pub(crate) rings: u64,
    /// Its driver was served before, by whomever: it knows how.
    pub(crate) was_used: bool,
    pub(crate) counted: Counted,
}

/// What all rings in which a guest puts requests have counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counted {
    pub(crate) kicks: u64,
    /// Taken, answered or not.
    pub(crate) requests: u64,
}

/// What is known of one front-end.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Beginning {
    /// What was counted before it came.
    before: Counted,
    stage: Option<(Stage, Instant)>,
    /// It was said of this stage.
    is_told: bool,
    /// It has come to a request: whatever it does later, it knows how.
    is_over: bool,
}

impl Beginning {
    /// Of one that has just connected.
    pub(crate) fn new(before: Counted) -> Beginning {
        Beginning { before, ..Beginning::default() }
    }

    /// Of one that another process has served before.
    pub(crate) fn over() -> Beginning {
        Beginning { is_over: true, ..Beginning::default() }
    }

    /// Whether nothing is to be looked for any more.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over
    }

    /// What is to be told now: once for each stage in which it stays.
    pub(crate) fn look(&mut self, seen: Seen, now: Instant) -> Option<Stage> {
        if self.is_over {
            return None;
        }
        let Seen { has_owner, has_memory, rings, was_used, counted } = seen;
        self.is_over = counted.requests > self.before.requests || was_used;
        let stage = match (has_owner, has_memory, rings > 0) {
            _ if self.is_over => None,
            (false, ..) => Some(Stage::Silent),
            (true, false, _) => Some(Stage::NoMemory),
            (true, true, false) => Some(Stage::NoRings),
            // QEMU kicks each ring once itself, when it starts or comes back.
            _ if counted.kicks > self.before.kicks + rings => Some(Stage::EmptyRings),
            _ => None,
        };
        let since = self.stage.filter(|(before, _)| Some(*before) == stage).map(|(_, since)| since);
        let since = since.unwrap_or_else(|| {
            self.is_told = false;
            now
        });
        self.stage = stage.map(|stage| (stage, since));
        let is_due = now.saturating_duration_since(since) >= PATIENCE && !self.is_told;
        self.is_told |= is_due;
        stage.filter(|_| is_due)
    }

    /// At which stage it stays, since that was told.
    pub(crate) fn told(&self) -> Option<Stage> {
        self.stage.filter(|_| self.is_told && !self.is_over).map(|(stage, _)| stage)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn seen(
        has_owner: bool,
        has_memory: bool,
        has_rings: bool,
        (kicks, requests): (u64, u64),
    ) -> Seen {
        let (rings, was_used) = (has_rings.into(), false);
        Seen { has_owner, has_memory, rings, was_used, counted: Counted { kicks, requests } }
    }

    /// Looks once a second for so long; what was told, and when.
    fn looks(
        beginning: &mut Beginning,
        seen: Seen,
        start: Instant,
        seconds: u32,
    ) -> Vec<(Stage, u32)> {
        let look = |at: u32| Some((beginning.look(seen, start + at * SECOND)?, at));
        (0..=seconds).filter_map(look).collect()
    }

    #[test]
    fn each_stage_is_told_once_within_five_seconds() {
        let start = crate::clock::now();
        for (seen, stage) in [
            (seen(false, false, false, (9, 9)), Stage::Silent),
            (seen(true, false, false, (9, 9)), Stage::NoMemory),
            (seen(true, true, false, (9, 9)), Stage::NoRings),
            (seen(true, true, true, (11, 9)), Stage::EmptyRings),
        ] {
            let mut beginning = Beginning::new(Counted { kicks: 9, requests: 9 });
            // The first look comes a second after the front-end at most.
            assert_eq!(looks(&mut beginning, seen, start, 60), [(stage, 3)]);
            assert_eq!(beginning.told(), Some(stage));
        }
    }

    #[test]
    fn who_gets_on_is_told_of_nothing() {
        let start = crate::clock::now();
        let mut beginning = Beginning::default();
        let mut told = looks(&mut beginning, seen(true, false, false, (0, 0)), start, 2);
        told.extend(looks(&mut beginning, seen(true, true, false, (0, 0)), start + 3 * SECOND, 2));
        told.extend(looks(&mut beginning, seen(true, true, true, (0, 0)), start + 6 * SECOND, 60));
        assert_eq!((told, beginning.told(), beginning.is_over()), (vec![], None, false));
        // A request is under way, however long it takes; and nothing that comes later is of this kind.
        beginning.look(seen(true, true, true, (1, 1)), start + 70 * SECOND);
        assert!(beginning.is_over());
        assert_eq!(
            looks(&mut beginning, seen(true, true, false, (1, 1)), start + 80 * SECOND, 60),
            []
        );
    }

    /// What QEMU kicks itself proves nothing, nor does a guest that has nothing to ask for.
    #[test]
    fn who_has_nothing_to_do_is_told_of_nothing() {
        let start = crate::clock::now();
        let four = Seen { rings: 4, ..seen(true, true, true, (9 + 4, 9)) };
        let mut beginning = Beginning::new(Counted { kicks: 9, requests: 9 });
        assert_eq!(looks(&mut beginning, four, start, 60), []);
        let guest = Seen { counted: Counted { kicks: 9 + 5, requests: 9 }, ..four };
        let told = looks(&mut beginning, guest, start + 70 * SECOND, 60);
        assert_eq!(told, [(Stage::EmptyRings, 3)]);
        // One that comes back with rings that were used before.
        let back = Seen { was_used: true, ..guest };
        let mut beginning = Beginning::new(Counted { kicks: 9, requests: 9 });
        assert_eq!(looks(&mut beginning, back, start, 60), []);
        assert!(beginning.is_over());
    }

    #[test]
    fn what_was_told_is_over_when_the_guest_gets_on() {
        let start = crate::clock::now();
        let mut beginning = Beginning::default();
        assert_eq!(looks(&mut beginning, seen(true, false, false, (0, 0)), start, 9).len(), 1);
        beginning.look(seen(true, true, true, (0, 0)), start + 10 * SECOND);
        assert_eq!(beginning.told(), None);
        let empty = looks(&mut beginning, seen(true, true, true, (2, 0)), start + 20 * SECOND, 9);
        assert_eq!(empty, [(Stage::EmptyRings, 3)], "the next stage is told again");
        beginning.look(seen(true, true, true, (3, 1)), start + 40 * SECOND);
        assert_eq!(beginning.told(), None);
    }

    #[test]
    fn the_words_say_what_to_write() {
        let words = Stage::EmptyRings.words("vm1");
        for part in ["share=on", "<access mode='shared'/>", "`sidecore show vm1 --print qemu`"] {
            assert!(words.contains(part), "{part}: {words}");
        }
    }
}
