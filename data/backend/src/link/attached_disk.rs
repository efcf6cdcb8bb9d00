//! One remote disk of a client's link: its attachment, and what is under way of it.
//!
//! A request is one or more *chunks*, each a slot of the attachment. A chunk whose queue has left is an *orphan*: its
//! slot waits for its end, and nobody is told. Not the protocol (`remote`). Called by `client`.

use remote::client::{AttachSpec, Event, Finished, Over, Standing};
use request::Tag;

/// How a disk stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// It is asked for, or had: requests wait in its slots.
    Wanted,
    /// It is only asked what it is.
    Looked,
    /// Requests failed, since nothing was heard for too long: it is asked for anew in the next session.
    Silent,
    /// It is given back.
    Leaving,
    /// It is over for good.
    Over,
}

/// What is under way in one slot.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chunk {
    /// Whose queue; 0: nobody's any more.
    pub(super) user: u32,
    tag: Tag,
    /// Bytes of the request that come before.
    pub(super) skip: u64,
}

const NOTHING: Chunk =
    Chunk { user: 0, tag: Tag { queue: u16::MAX, slot: u16::MAX, generation: u32::MAX }, skip: 0 };

/// What control is to hear of a disk, the newest of it, one word at a time: so an IOhost that has news without end fills
/// nothing.
#[derive(Debug, Default)]
pub(super) struct Words {
    stands: Option<Event>,
    other: Option<Event>,
    /// One was said and not heard yet: whether it was how the disk stands.
    is_said: Option<bool>,
}

impl Words {
    /// How the disk stands, that it is served or refused, or news of it.
    pub(super) fn put(&mut self, event: Event) {
        match (event, &mut self.other) {
            (Event::Stands { .. }, _) => self.stands = Some(event),
            (Event::News { news: new, .. }, Some(Event::Bound { news, .. })) => *news = new,
            (_, other) => *other = Some(event),
        }
    }

    /// The next one, if the one before was heard.
    pub(super) fn next(&mut self) -> Option<Event> {
        if self.is_said.is_some() {
            return None;
        }
        let stands = self.stands.take();
        let is_stands = stands.is_some();
        let word = stands.or_else(|| self.other.take())?;
        self.is_said = Some(is_stands);
        Some(word)
    }

    /// Whether there is one that may be said.
    pub(super) fn may_go(&self) -> bool {
        self.is_said.is_none() && (self.stands.is_some() || self.other.is_some())
    }
}

/// The disk.
#[derive(Debug)]
pub(super) struct AttachedDisk {
    pub(super) spec: AttachSpec,
    /// The client's number of it, while there is one.
    pub(super) attachment: Option<u16>,
    pub(super) state: State,
    /// It is bound, as far as is known.
    pub(super) is_bound: bool,
    /// Nothing of its attachment can be executed any more.
    pub(super) is_over: bool,
    chunks: Box<[Chunk]>,
    free: Vec<u16>,
    orphans: usize,
    /// Bytes of writes that were begun and have not ended.
    pub(super) promised: u64,
    /// Control keeps how the disk stands: requests may go.
    may_begin: bool,
    /// What control is to hear of it.
    pub(super) words: Words,
    /// How the disk stands, for the attachment that follows this one.
    pub(super) standing: Option<Standing>,
    /// Whatever is there when it is bound next is what its guest is on.
    pub(super) accepts: bool,
}

impl AttachedDisk {
    pub(super) fn new(spec: AttachSpec, state: State) -> AttachedDisk {
        AttachedDisk {
            spec,
            attachment: None,
            state,
            is_bound: false,
            is_over: false,
            chunks: vec![NOTHING; usize::from(spec.requests_max())].into(),
            free: (0..spec.requests_max()).rev().collect(),
            orphans: 0,
            promised: 0,
            accepts: false,
            may_begin: false,
            words: Words::default(),
            standing: None,
        }
    }

    /// Whether a chunk may be submitted, or would be refused at once. Not before control says so; and not beside orphans: a write among them may still
    /// be executed, after whatever is done once more or comes later.
    #[inline]
    pub(super) fn has_room(&self) -> bool {
        match self.state {
            State::Wanted => self.may_begin && self.orphans == 0 && !self.free.is_empty(),
            State::Looked | State::Silent | State::Leaving | State::Over => true,
        }
    }

    /// The client's number of it, while requests go there.
    pub(super) fn wanted(&self) -> Option<u16> {
        self.attachment.filter(|_| self.state == State::Wanted)
    }

    /// Whether it is wanted, and waits for a former attachment of its device to end.
    pub(super) fn waits(&self) -> bool {
        self.state == State::Wanted && self.attachment.is_none()
    }

    /// Whether nothing is under way.
    pub(super) fn is_idle(&self) -> bool {
        self.free.len() == self.chunks.len()
    }

    /// A place for a chunk, by which [`Finished::tag`] names it.
    pub(super) fn begin(&mut self, user: u32, tag: Tag, skip: u64) -> Option<u64> {
        let at = self.free.pop()?;
        *self.chunks.get_mut(usize::from(at))? = Chunk { user, tag, skip };
        Some(at.into())
    }

    /// It was not submitted after all, or its slot is given back.
    pub(super) fn end(&mut self, at: u64) {
        let Some(chunk) = self.chunks.get_mut(at as usize) else { return };
        if chunk.user == 0 {
            self.orphans = self.orphans.saturating_sub(1);
        }
        *chunk = NOTHING;
        self.free.push(at as u16);
    }

    pub(super) fn chunk(&self, finished: &Finished) -> Option<Chunk> {
        self.chunks.get(usize::try_from(finished.tag).ok()?).copied()
    }

    /// Whose request a chunk is of, if it is still somebody's.
    pub(super) fn tag(&self, finished: &Finished) -> Option<Tag> {
        self.chunk(finished).filter(|chunk| chunk.user != 0).map(|chunk| chunk.tag)
    }

    /// Makes orphans of all that this user has under way: how many.
    pub(super) fn leave(&mut self, user: u32) -> usize {
        let mut count = 0;
        for chunk in self.chunks.iter_mut().filter(|chunk| chunk.user == user) {
            chunk.user = 0;
            count += 1;
        }
        self.orphans += count;
        count
    }

    /// Its attachment has ended.
    pub(super) fn over(&mut self, why: Over) {
        (self.is_bound, self.is_over) = (false, true);
        self.state = match (self.state, why) {
            (State::Leaving, _) => State::Leaving,
            (_, Over::Silent) => State::Silent,
            _ => State::Over,
        };
    }

    /// Control has heard the last word: how the disk stands is kept then. The attachment that is to know it, if there is
    /// no newer word of that.
    pub(super) fn heard(&mut self) -> Option<u16> {
        let is_stands = self.words.is_said.take().unwrap_or(false);
        self.may_begin |= is_stands;
        self.attachment.filter(|_| is_stands && self.words.stands.is_none())
    }

    /// It is asked for anew, or (`attachment` is none) cannot be.
    pub(super) fn renew(&mut self) {
        // How it stands then is kept first.
        self.may_begin = false;
        self.is_over = self.attachment.is_none();
        self.state = if self.is_over { State::Over } else { State::Wanted };
    }
}
