//! Where a ring stood, for whoever serves it next.

use serde::{Deserialize, Serialize};
use vhost_user::{RingAddresses, RingFacts};

/// Where a ring stood when its sidecore gave it back, and what its front-end had said before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Left {
    #[serde(with = "AddressWords")]
    ring: RingAddresses,
    size: u16,
    told: u32,
    /// Nothing: it is lost.
    base: Option<u32>,
}

/// [`RingAddresses`] for a process that takes over.
#[derive(Serialize, Deserialize)]
#[serde(remote = "RingAddresses", deny_unknown_fields)]
struct AddressWords {
    descriptors: u64,
    driver: u64,
    device: u64,
    log: u64,
    logged: bool,
}

impl Left {
    /// A ring that is about to start.
    pub(crate) fn at_start<D>(facts: &RingFacts<'_, D>) -> Left {
        Left { ring: facts.addresses, size: facts.size, told: facts.told, base: Some(facts.base) }
    }

    /// One of which nobody knows where it stands: another process has served it, and died.
    pub(crate) fn lost<D>(facts: &RingFacts<'_, D>) -> Left {
        Left { base: None, ..Left::at_start(facts) }
    }

    /// Where it stands. Nothing: it is [lost](Self::lost).
    pub(crate) fn base(&self) -> Option<u32> {
        self.base
    }

    /// It is back.
    pub(crate) fn at(self, base: u32) -> Left {
        Left { base: Some(base), ..self }
    }

    /// Whether the front-end says of this ring what it said before it was served: it was cut off, and
    /// knows no better.
    pub(crate) fn is_news_to<D>(&self, facts: &RingFacts<'_, D>) -> bool {
        (self.ring, self.size, self.told) == (facts.addresses, facts.size, facts.told)
    }
}
