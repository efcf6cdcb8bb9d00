//! How often clients may have devices opened: each open and each end is work of the caller's, and a sync.
//!
//! Not who may have which device (`export`). Called by `binding`: of each device, and of all of a client's together.

use crate::handshake::PublicKey;

/// Each client with a key has so many at once, and then one in a time. Of one without a key it is not known whose they are.
#[derive(Debug)]
pub(super) struct Opens {
    at_once: u64,
    each_ns: u64,
    /// When those are paid off that each client has had.
    paid_at: Vec<(PublicKey, u64)>,
}

impl Opens {
    /// Of one device.
    pub(super) fn of_device() -> Opens {
        Opens { at_once: 4, each_ns: 500_000_000, paid_at: Vec::new() }
    }

    /// Of all devices.
    pub(super) fn of_all() -> Opens {
        Opens { at_once: 256, each_ns: 62_500_000, paid_at: Vec::new() }
    }

    /// There are so many devices: a client that comes back may have all of its own at once.
    pub(super) fn are(&mut self, devices: usize) {
        self.at_once = self.at_once.max(devices as u64);
    }

    /// Whether a client may have one more.
    pub(super) fn has_one(&self, client: &PublicKey, now: u64) -> bool {
        let its = self.paid_at.iter().find(|(who, _)| who == client);
        *client == [0; 32]
            || its.is_none_or(|(_, at)| at.saturating_sub(now) <= (self.at_once - 1) * self.each_ns)
    }

    /// A client has one more.
    pub(super) fn note(&mut self, client: &PublicKey, now: u64) {
        self.paid_at.retain(|(_, at)| *at > now);
        if *client == [0; 32] {
            return;
        }
        match self.paid_at.iter_mut().find(|(who, _)| who == client) {
            Some((_, at)) => *at = at.saturating_add(self.each_ns),
            None => self.paid_at.push((*client, now.saturating_add(self.each_ns))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn may(opens: &mut Opens, client: &PublicKey, now: u64) -> bool {
        let has_one = opens.has_one(client, now);
        if has_one {
            opens.note(client, now);
        }
        has_one
    }

    #[test]
    fn some_at_once_and_then_one_in_a_time() {
        let (mut all, one, other) = (Opens::of_all(), [1; 32], [2; 32]);
        assert!((0..256).all(|_| may(&mut all, &one, 5)));
        assert!(!may(&mut all, &one, 5) && may(&mut all, &other, 5), "each has its own");
        let later = 5 + 62_500_000;
        assert!(may(&mut all, &one, later) && !may(&mut all, &one, later));
        assert!((0..1000).all(|_| may(&mut all, &[0; 32], 5)), "whose they are is not known");
        all.are(300);
        assert!((0..44).all(|_| may(&mut all, &one, later)) && !may(&mut all, &one, later));
    }
}
