//! What a guest can set so that it exits less, as data; and how that is looked at, set, tried and taken back.
//!
//! Pure: whatever is read, written or kept goes through [`System`], which `sidecore-tune` and tests implement.
//!
//! | module | what |
//! |---|---|
//! | `rule`, `table` | the rules |
//! | `place`, `value` | where a setting is, and what is understood of its text |
//! | `guest` | what there is in the guest, and what stands against changing it |
//! | `check` | rules against a guest: findings, and the changes that they ask for |
//! | `journal` | what was changed, on disk before it was |
//! | `change` | changes made, and taken back |
//! | `trial` | A and B in turns, and which is better |
//! | `ethtool` | the kernel's messages about a NIC, as bytes |
//! | `page` | the rules as a page |
#![forbid(unsafe_code)]

pub mod change;
pub mod check;
pub mod ethtool;
pub mod guest;
pub mod journal;
pub mod page;
pub mod place;
pub mod rule;
pub mod system;
pub mod table;
pub mod trial;
pub mod value;

pub use place::Place;
pub use system::{System, Trouble};
