//! What hostile guests and front-ends do, by the rows of `docs/security.md`, as data: each
//! row has a test of its own beside one neighbour, and all of them in turn sit among many tenants
//! (`tests/tests/hostile/crowd.rs`).
//!
//! | module | rows | are |
//! |---|---|---|
//! | `split`, `packed`, `blk` | A, B, C | what is wrong in a ring or a request |
//! | `storms` | A29 to A32, C10, C13, attacks 4 and 10 | what lasts |
//! | `front_end`, `connection`, `coming` | E | what is wrong in a message or a connection |
//! | `rings`, `memory`, `lost_memory`, `races` | E, C16, P23 | what changes under a device that runs |
//!
//! Not here: what must not happen to others (`hostile_bed`, `neighbour`), misdeeds of disks, and those that
//! only an operator can make happen.

#[expect(missing_docs, reason = "a row's name says it")]
pub mod blk;
#[expect(missing_docs, reason = "a row's name says it")]
pub mod coming;
#[expect(missing_docs, reason = "a row's name says it")]
pub mod connection;
#[expect(missing_docs, reason = "a row's name says it")]
pub mod front_end;
#[expect(missing_docs, reason = "a row's name says it")]
pub mod lost_memory;
#[expect(missing_docs, reason = "a row's name says it")]
pub mod memory;
#[expect(missing_docs, reason = "a row's name says it")]
pub mod packed;
#[expect(missing_docs, reason = "a row's name says it")]
pub mod races;
#[expect(missing_docs, reason = "a row's name says it")]
pub mod rings;
mod rows;
#[expect(missing_docs, reason = "a row's name says it")]
pub mod split;
#[expect(missing_docs, reason = "a row's name says it")]
pub mod storms;

use std::fmt;

use anyhow::Result;

use crate::door::Door;
use crate::hostile_bed::{Expect, KEPT_MIN, row, storm};
use crate::hostile_guest::{Guest, Layout};
use crate::neighbour::Neighbour;

/// The disk of most misdeeds.
pub const MEMORY: &str = "backend = \"memory\"\nsize = \"4M\"\nqueues = 2";
/// One on a file.
pub const FILE: &str = "backend = \"file\"\npath = \"bad.img\"\nsize = \"64M\"\nqueues = 2";
/// One that takes the largest requests.
pub const LARGE: &str = "backend = \"memory\"\nsize = \"1G\"\nqueues = 2";
/// One that may only be read.
pub const READ_ONLY: &str = "backend = \"memory\"\nsize = \"4M\"\nqueues = 2\nreadonly = true";
/// One whose front-ends may take their memory away.
pub const UNSEALED: &str =
    "backend = \"memory\"\nsize = \"4M\"\nqueues = 2\nallow_unsealed_memory = true";

/// The disks of somebody who does all of them, one after the other: names, and the rest of their `[[disk]]`.
pub const SEATS: [(&str, &str); 5] = [
    ("memory", MEMORY),
    ("file", FILE),
    ("large", LARGE),
    ("read-only", READ_ONLY),
    ("unsealed", UNSEALED),
];

/// What a guest does in a ring that is over at once; the number is the variant.
pub type RingAct = Box<dyn FnMut(&mut Guest, usize) -> Result<Expect>>;
/// What a guest does for the length of a window; it leaves nothing in flight.
pub type Busy = Box<dyn FnMut(&mut Guest) -> Result<()>>;

/// A misdeed in a ring that is over at once.
pub struct RingRow {
    /// The rest of its disk's `[[disk]]`.
    pub disk: &'static str,
    /// What its queues are like.
    pub layout: Layout,
    /// How many kinds of it there are.
    pub variants: usize,
    /// The misdeed.
    pub act: RingAct,
}

/// On the usual disk.
fn ring(
    layout: Layout,
    variants: usize,
    act: impl FnMut(&mut Guest, usize) -> Result<Expect> + 'static,
) -> RingRow {
    RingRow { disk: MEMORY, layout, variants, act: Box::new(act) }
}

/// A misdeed that lasts, and the good guest that is as busy.
pub struct Storm {
    /// The rest of its disk's `[[disk]]`.
    pub disk: &'static str,
    /// What its queues are like.
    pub layout: Layout,
    /// What part of its rate beside the good guest a neighbour must keep.
    pub kept_min: f64,
    /// As busy with what is right.
    pub good: Busy,
    /// The misdeed.
    pub bad: Busy,
}

impl Storm {
    fn new(
        disk: &'static str,
        layout: Layout,
        good: impl FnMut(&mut Guest) -> Result<()> + 'static,
        bad: impl FnMut(&mut Guest) -> Result<()> + 'static,
    ) -> Storm {
        Storm { disk, layout, kept_min: KEPT_MIN, good: Box::new(good), bad: Box::new(bad) }
    }
}

/// What a front-end does that comes, does wrong, and goes.
pub type FrontEndAct = fn(&Door<'_>) -> Result<()>;

/// One of the three.
pub enum How {
    /// In a ring, over at once.
    Ring(RingRow),
    /// In a ring, without end.
    Storm(Storm),
    /// A whole connection, to a disk of that description.
    FrontEnd(&'static str, FrontEndAct),
}

impl How {
    /// The rest of its disk's `[[disk]]`.
    pub fn disk(&self) -> &'static str {
        match self {
            How::Ring(row) => row.disk,
            How::Storm(storm) => storm.disk,
            How::FrontEnd(disk, _) => disk,
        }
    }
}

/// A misdeed, by the name of its row's test.
pub struct Misdeed {
    /// The row's number, and what it is.
    pub name: &'static str,
    /// What is done.
    pub how: How,
}

impl fmt::Debug for Misdeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl Misdeed {
    /// As a test of its own: on a new daemon, beside one neighbour, which must not notice.
    ///
    /// # Errors
    /// What was not as it must be.
    #[expect(clippy::disallowed_macros, reason = "what was measured is for the record")]
    pub fn beside_one(self) -> Result<()> {
        // Sockets' paths are short.
        let (name, short) = (self.name, self.name.split('_').next().unwrap_or_default());
        match self.how {
            How::Ring(misdeed) => println!("{name}: {}", row(short, misdeed)?),
            How::Storm(misdeed) => println!("{name}: {}", storm(short, misdeed)?),
            How::FrontEnd(disk, act) => {
                let mut neighbour = Neighbour::start(short, disk)?;
                act(&neighbour.door())?;
                neighbour.is_unharmed()?;
                neighbour.finish()?;
            }
        }
        Ok(())
    }
}

/// All there are, in the order of `docs/security.md`.
pub fn all() -> Vec<Misdeed> {
    let mut all = Vec::new();
    macro_rules! take {
        ($($file:ident)*) => { $( $crate::misdeeds!($file all); )* };
    }
    take!(split packed blk storms front_end connection coming rings memory races lost_memory);
    all
}
