//! A moment, in nanoseconds since some fixed start. The caller reads the clock.

/// Monotonic nanoseconds since an arbitrary start. Arithmetic saturates: 584 years are the end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nanos(pub u64);

/// Who tells the time in the middle of something long.
pub trait Clock {
    /// Now: never earlier than what was told before.
    fn now(&self) -> Nanos;
}

/// A clock that stands.
impl Clock for Nanos {
    fn now(&self) -> Nanos {
        *self
    }
}

impl Nanos {
    /// Nanoseconds from `earlier` to this; 0 when it is not earlier.
    #[inline]
    pub fn since(self, earlier: Nanos) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// The moment `wait_ns` later.
    #[inline]
    #[must_use]
    pub fn after(self, wait_ns: u64) -> Nanos {
        Nanos(self.0.saturating_add(wait_ns))
    }
}
