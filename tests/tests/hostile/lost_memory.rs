//! Row C16, and E8, E17 and E18 of `docs/security.md`: memory that its front-end lends and
//! takes away, and descriptors on which a write would wait. Attacks 1 and 2 of
//! `docs/decisions/0004-known-attacks.md`.
//!
//! None of it may end the daemon or hold its sidecore; the queue or the connection ends, the next
//! front-end is served. What each row does is in `tests::misdeeds::lost_memory`.

#![expect(clippy::disallowed_macros, reason = "what was measured is for the record")]

use std::time::Duration;

use anyhow::Result;
use testing::daemon::pause;
use tests::hostile_bed::Bed;
use tests::hostile_guest::Layout;
use tests::misdeeds::MEMORY;
use tests::misdeeds::lost_memory::{LOST, LOST_BYTES, huge_pages_that_are_not_there, request_in};

tests::misdeeds!(lost_memory tests);

#[test]
fn e17_again_and_again_beside_a_neighbour() -> Result<()> {
    let bed = Bed::start_apart("e17-again", MEMORY)?;
    let shown = bed.compare(
        || {
            pause(Duration::from_millis(4));
            Ok(())
        },
        || {
            bed.then_pause(|| {
                let mut guest = bed.guest(Layout::default())?;
                guest.lend(LOST, LOST_BYTES, huge_pages_that_are_not_there()?)?;
                guest.header(1, 0);
                guest.offer(&request_in(1, 1))?;
                guest.end()?;
                Ok(())
            })
        },
    )?;
    println!("e17: {shown}");
    bed.finish()
}
