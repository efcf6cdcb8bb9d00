//! Which side of an upgrade a process is on: at most one.
//!
//! Not here: the course of either (`predecessor`, `heir`, `guard`).

use std::time::{Duration, Instant};

use super::guard::Probation;
use super::predecessor::Upgrade;
use crate::api::Reply;

/// From the end of an heir to its launcher's word of how it ended, as long as that is waited for.
const END_TOLD_MAX: Duration = Duration::from_secs(1);

/// Which side of an upgrade this process is on.
#[derive(Default)]
pub(crate) enum Succession {
    #[default]
    None,
    /// It has just taken over, and its predecessor watches it.
    OnProbation(Probation),
    /// Another process is to take over.
    Upgrading(Upgrade),
    /// It was to, and has ended: its launcher is about to say how.
    GivenUp(GivenUp),
}

/// An upgrade that is over, of whose heir it is not known how it ended.
pub(crate) struct GivenUp {
    /// Who is to be told.
    reply: Option<Reply>,
    until: Instant,
}

impl GivenUp {
    /// One that was just given up.
    pub(crate) fn of(reply: Option<Reply>, now: Instant) -> GivenUp {
        GivenUp { reply, until: now + END_TOLD_MAX }
    }
}

impl Succession {
    /// When it is to be looked at without an event.
    pub(crate) fn due_at(&self, now: Instant) -> Option<Instant> {
        match self {
            Succession::None => None,
            Succession::OnProbation(probation) => Some(probation.due_at()),
            Succession::Upgrading(upgrade) => Some(upgrade.due_at(now)),
            Succession::GivenUp(given_up) => Some(given_up.until),
        }
    }

    /// Who is to be told of an upgrade whose heir has ended, if it is known how that was, or is waited for no longer.
    pub(crate) fn take_given_up(&mut self, is_known: bool, now: Instant) -> Option<Option<Reply>> {
        match std::mem::take(self) {
            Succession::GivenUp(it) if is_known || it.until <= now => Some(it.reply),
            other => {
                *self = other;
                None
            }
        }
    }

    pub(crate) fn probation(&self) -> Option<&Probation> {
        match self {
            Succession::OnProbation(probation) => Some(probation),
            _ => None,
        }
    }

    pub(crate) fn upgrade(&self) -> Option<&Upgrade> {
        match self {
            Succession::Upgrading(upgrade) => Some(upgrade),
            _ => None,
        }
    }

    pub(crate) fn upgrade_mut(&mut self) -> Option<&mut Upgrade> {
        match self {
            Succession::Upgrading(upgrade) => Some(upgrade),
            _ => None,
        }
    }

    /// It is over, or there is none.
    pub(crate) fn take_probation(&mut self) -> Option<Probation> {
        match std::mem::take(self) {
            Succession::OnProbation(probation) => Some(probation),
            other => {
                *self = other;
                None
            }
        }
    }

    /// The same of an upgrade.
    pub(crate) fn take_upgrade(&mut self) -> Option<Upgrade> {
        match std::mem::take(self) {
            Succession::Upgrading(upgrade) => Some(upgrade),
            other => {
                *self = other;
                None
            }
        }
    }
}
