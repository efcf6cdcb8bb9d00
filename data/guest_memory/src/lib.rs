//! The only door to memory that a guest or a front-end can change while we look at it.
//!
//! Three things live here: [`GuestMap`], the memory of one guest as one unchanging table of mapped
//! regions, and [`Pairs`], a run of entries in it; [`Area`], a contiguous piece of shared memory with a
//! fixed address (a ring, an in-flight record, a RAM disk), and [`Entries`], a row of them in one; and [`DirtyLog`], the marks that live
//! migration reads. Not here: what the bytes mean (`virtqueue`, `device`), and who may map what (`vhost_user`).
//!
//! Called by every crate of `data/`; made by `manager`.
//!
//! # What is promised
//!
//! - A [`Span`] or an offset is checked against its mapping on every access (of [`Pairs`] and
//!   [`Entries`] once, and then the number of the entry), so no value that a
//!   guest chose reaches memory outside what its front-end shared. A failed check does nothing and
//!   says so by its return value; nothing here panics.
//! - Every read is a copy. No Rust reference into shared memory is ever made, because the other
//!   side may write at any time.
//! - Every write through a map or an area that has a [`DirtyLog`] marks the pages it touched, after
//!   the bytes are written.
//!
//! - Memory that its front-end takes away reads as zeroes and makes the [`Health`] of that connection
//!   lost; nobody else notices ([`recover_from_sigbus`]).
//!
//! A map is replaced whole, never edited: whoever holds an `Arc` of it keeps its mappings alive.
#![expect(unsafe_code, reason = "raw access to mappings shared with other processes")]

mod area;
mod dirty_log;
mod entries;
mod faults;
mod health;
mod map;
mod mapping;
mod node;
mod pairs;

pub use area::Area;
pub use dirty_log::{DirtyLog, LOG_PAGE_SIZE};
pub use entries::{Entries, Entry};
pub use faults::recover_from_sigbus;
pub use health::{Health, Loss};
pub use map::{GuestMap, REGIONS_MAX, Region, Span, prefetch_value};
pub use mapping::{MapError, Mapping, Seal};
pub use node::Pages;
pub use pairs::Pairs;
