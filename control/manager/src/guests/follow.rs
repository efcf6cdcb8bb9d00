//! What a device knows of its guest: which process that is, which of its vCPUs are followed, and when it is looked at.
//!
//! Not here: how vCPUs are found, and what of them is followed (`guests`).

use std::time::{Duration, Instant};

use runstate::Row;
use vcpu_tracker::vcpus::{Process, Vcpu};

/// How soon a guest that has come is looked at again; then twice as late each time.
const SCAN_FIRST: Duration = Duration::from_secs(1);
/// How rarely at last: a vCPU that is plugged in is seen so late.
const SCAN_LAST: Duration = Duration::from_secs(32);

/// What a device knows of its guest.
#[derive(Default)]
pub(crate) struct Follow {
    who: Who,
    scan_at: Option<Instant>,
    pause: Duration,
}

/// Who runs the device, as far as that was looked at.
#[derive(Default)]
enum Who {
    /// No front-end, or one that nobody has looked at.
    #[default]
    Nobody,
    /// A front-end whose process is not found.
    Stranger { connection: u32, problem: String },
    /// A process.
    Guest(Guest),
}

struct Guest {
    connection: u32,
    process: Process,
    /// Why it is not known which vCPUs it has, or not of all.
    problem: Option<String>,
    vcpus: Vec<(Vcpu, Row)>,
}

impl Follow {
    /// Its guest's vCPUs that are followed.
    pub(crate) fn vcpus(&self) -> &[(Vcpu, Row)] {
        match &self.who {
            Who::Guest(guest) => &guest.vcpus,
            Who::Nobody | Who::Stranger { .. } => &[],
        }
    }

    /// Why they are not known, or not all of them.
    pub(crate) fn problem(&self) -> Option<&str> {
        match &self.who {
            Who::Nobody => None,
            Who::Stranger { problem, .. } => Some(problem),
            Who::Guest(guest) => guest.problem.as_deref(),
        }
    }

    /// Its guest's process, if that is known.
    pub(crate) fn process(&self) -> Option<Process> {
        match &self.who {
            Who::Guest(guest) => Some(guest.process),
            Who::Nobody | Who::Stranger { .. } => None,
        }
    }

    /// Whether that front-end was looked at, or, of none, that there is none.
    pub(crate) fn is_of(&self, runner: Option<u32>) -> bool {
        let connection = match &self.who {
            Who::Nobody => None,
            Who::Stranger { connection, .. } => Some(*connection),
            Who::Guest(guest) => Some(guest.connection),
        };
        connection == runner
    }

    /// When it is looked at again.
    pub(crate) fn scans_at(&self) -> Option<Instant> {
        self.scan_at
    }

    /// Whether its guest is to be looked at.
    pub(crate) fn is_due(&self, runner: Option<u32>, now: Instant) -> bool {
        !self.is_of(runner) || self.scan_at.is_some_and(|at| at <= now)
    }

    /// It is to be told again, by another plan.
    pub(crate) fn look_again(&mut self, now: Instant) {
        if !matches!(self.who, Who::Nobody) {
            self.scan_at = Some(now);
        }
    }

    /// There was no time for it in this turn: in the next one, which comes at once.
    pub(crate) fn put_off(&mut self, now: Instant) {
        self.scan_at = Some(now);
    }

    /// It is looked at now, and then after twice the time.
    pub(crate) fn looked(&mut self, now: Instant) {
        self.pause = (self.pause * 2).clamp(SCAN_FIRST, SCAN_LAST);
        self.scan_at = Some(now + self.pause);
    }

    /// The process of that front-end is not found.
    pub(crate) fn is_lost(&mut self, connection: u32, problem: String) {
        self.who = Who::Stranger { connection, problem };
    }

    /// That is its guest. What is followed of it is as before, until that is known.
    pub(crate) fn is_guest(&mut self, connection: u32, process: Process) {
        let problem = self.problem().map(str::to_string);
        let vcpus = self.vcpus().to_vec();
        self.who = Who::Guest(Guest { connection, process, problem, vcpus });
    }

    /// Those are its guest's vCPUs that are followed now. Gives whether they are others than before, and known.
    pub(crate) fn follow(&mut self, vcpus: Vec<(Vcpu, Row)>, problem: Option<String>) -> bool {
        let Who::Guest(guest) = &mut self.who else { return false };
        let is_news = !vcpus.is_empty() && vcpus != guest.vcpus;
        (guest.vcpus, guest.problem) = (vcpus, problem);
        is_news
    }
}
