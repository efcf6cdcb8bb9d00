//! A disk that clients of a link may have: whether one has it, and how far it is with letting it go.
//!
//! Not here: which client, and at which shard. `H` is what a client has of it, `S` a sync that is under way.
//!
//! | | give | take back | leave | part | sync | end |
//! |---|---|---|---|---|---|---|
//! | free | held | - | waits | - | - | - |
//! | held | held | free | waits | - | - | free |
//! | waits | held | waits, with nothing | waits | parts | syncs | free |
//! | parts | held | - | waits | - | - | free |
//! | syncs | held | - | waits | - | - | free |

/// A disk as its link has it.
#[derive(Debug)]
pub struct Loan<H, S>(State<H, S>);

#[derive(Debug)]
enum State<H, S> {
    Free,
    Held(H),
    /// Until its queue is back. One that was lent by an earlier process has nothing.
    Waits(Option<H>),
    /// With its locks, which follow its clients.
    Parts,
    Syncs(S),
}

impl<H, S> Default for Loan<H, S> {
    fn default() -> Loan<H, S> {
        Loan(State::Free)
    }
}

impl<H, S> Loan<H, S> {
    /// A client has it.
    pub fn give(&mut self, held: H) {
        self.0 = State::Held(held);
    }

    /// Whoever was to have it does not get it.
    pub fn take_back(&mut self) {
        match &mut self.0 {
            State::Held(_) => self.0 = State::Free,
            State::Waits(held) => *held = None,
            State::Free | State::Parts | State::Syncs(_) => {}
        }
    }

    /// Nobody has it any more: it waits for its queue.
    pub fn leave(&mut self) {
        self.0 = match std::mem::replace(&mut self.0, State::Free) {
            State::Held(held) => State::Waits(Some(held)),
            State::Waits(held) => State::Waits(held),
            State::Free | State::Parts | State::Syncs(_) => State::Waits(None),
        };
    }

    /// Its queue is back, and its locks go with what was written. False: that is not what it is about.
    #[must_use]
    pub fn part(&mut self) -> bool {
        let waits = self.waits();
        if waits {
            self.0 = State::Parts;
        }
        waits
    }

    /// Its queue is back, and what was written is being made stable. False: that is not what it is about.
    #[must_use]
    pub fn sync(&mut self, sync: S) -> bool {
        let waits = self.waits();
        if waits {
            self.0 = State::Syncs(sync);
        }
        waits
    }

    /// It is let go of.
    pub fn end(&mut self) {
        self.0 = State::Free;
    }

    /// What a client has of it that has not let it go.
    pub fn held(&self) -> Option<&H> {
        match &self.0 {
            State::Held(held) => Some(held),
            _ => None,
        }
    }

    /// What a client has of it, or had when it let it go.
    pub fn last_held(&mut self) -> Option<&mut H> {
        match &mut self.0 {
            State::Held(held) | State::Waits(Some(held)) => Some(held),
            _ => None,
        }
    }

    /// Whether its queue is what letting it go waits for.
    pub fn waits(&self) -> bool {
        matches!(self.0, State::Waits(_))
    }

    /// Whether its locks go.
    pub fn parts(&self) -> bool {
        matches!(self.0, State::Parts)
    }

    /// The sync that it waits for.
    pub fn syncs(&self) -> Option<&S> {
        match &self.0 {
            State::Syncs(sync) => Some(sync),
            _ => None,
        }
    }

    /// Whether it is being let go of.
    pub fn is_leaving(&self) -> bool {
        matches!(self.0, State::Waits(_) | State::Parts | State::Syncs(_))
    }
}
