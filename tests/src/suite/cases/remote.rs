//! Disks and NICs of other machines.
//!
//! | module | what |
//! |---|---|
//! | `client` | a machine without guests |
//! | `guest` | a guest whose IOhost dies; also of `./x demo remote` |
//! | `moves` | a guest that moves |
//! | `world` | the machines, as network namespaces |

mod client;
pub mod guest;
mod moves;
pub mod world;

use std::fmt::Display;

use anyhow::{Result, ensure};
use testing::bed::{Bed, Need};

use crate::suite::{Case, Group};

const PROGRAM: &str = "remote";

/// The group.
pub(super) const GROUP: Group = Group::new(
    PROGRAM,
    "disks and NICs of other machines: either daemon killed, a second IOhost, a bad wire; with root a \
     real guest, one that moves, and a machine without guests",
    &[
        Case::raw(PROGRAM, "driver").module("remote"),
        Case::raw(PROGRAM, "nics").module("remote_nic"),
        Case::raw(PROGRAM, "shards").module("remote_shards"),
        Case::raw(PROGRAM, "upgrade").module("remote_upgrade").threads(2),
        Case::raw(PROGRAM, "ethernet").needs(&[Need::Root]).usually(25),
        Case::raw(PROGRAM, "xdp").needs(&[Need::Root]).usually(25),
        Case::run("guest", guest::guest).needs(&[Need::Root]).usually(60),
        Case::run("client", client::client).needs(&[Need::Root]).usually(60),
        Case::run("moves", moves::moves).needs(&[Need::Root]).usually(40),
    ],
);

/// Records a check that the following ones rest upon.
///
/// # Errors
/// It did not hold.
fn must<T: Display>(bed: &Bed, check: &str, result: Result<T>) -> Result<()> {
    ensure!(bed.check(check, result), "`{check}` failed: what comes after it was not done");
    Ok(())
}
