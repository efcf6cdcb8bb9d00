//! What happened, in order: a hash of all of it, and the last events in words.

use std::collections::VecDeque;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Events that are kept.
const KEPT: usize = 60;

/// One event: when, what, and numbers whose meaning the word tells.
#[derive(Clone, Copy, Debug, Hash)]
struct Event {
    at_ns: u64,
    what: &'static str,
    numbers: [u64; 3],
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Event { at_ns, what, numbers: [one, two, three] } = self;
        write!(f, "{:>12.3} us  {what} {one} {two} {three}", *at_ns as f64 / 1000.0)
    }
}

#[derive(Debug, Default)]
struct Inner {
    hash: DefaultHasher,
    events: u64,
    last: VecDeque<Event>,
    /// Keeps all of them.
    is_whole: bool,
}

/// The events of one run, shared by all who have a part in it.
#[derive(Clone, Debug, Default)]
pub struct Trace(Arc<Mutex<Inner>>);

impl Trace {
    /// Keeps all events, not only the last.
    pub fn keep_all(&self) {
        self.inner().is_whole = true;
    }

    /// Something happened.
    pub fn note(&self, at_ns: u64, what: &'static str, numbers: [u64; 3]) {
        let mut inner = self.inner();
        let event = Event { at_ns, what, numbers };
        event.hash(&mut inner.hash);
        inner.events += 1;
        if inner.last.len() == KEPT && !inner.is_whole {
            inner.last.pop_front();
        }
        inner.last.push_back(event);
    }

    /// A number that stands for everything so far.
    pub fn hash(&self) -> u64 {
        self.inner().hash.finish()
    }

    /// How many there were.
    pub fn events(&self) -> u64 {
        self.inner().events
    }

    /// The last ones, a line each.
    pub fn last(&self) -> Vec<String> {
        self.inner().last.iter().map(ToString::to_string).collect()
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
