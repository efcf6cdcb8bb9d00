//! The table of groups, in the order in which they are listed. Each has a file of its own for its cases.

mod durable;
mod foreign;
mod frontend;
mod guest;
mod hostile;
mod migrate;
mod net;
mod recover;
pub mod remote;
mod service;
mod unit;

use crate::suite::{Case, Group};

/// All groups.
pub const GROUPS: &[Group] = &[
    unit::GROUP,
    SIM,
    guest::GROUP,
    net::GROUP,
    foreign::GROUP,
    frontend::GROUP,
    hostile::GROUP,
    FUZZ,
    recover::GROUP,
    remote::GROUP,
    migrate::GROUP,
    service::GROUP,
    durable::GROUP,
    BENCH,
    LAB,
    MUTANTS,
    COVERAGE,
];

const SIM: Group = Group::new("sim", "the whole system simulated", &[Case::shell("seeds")]);

const FUZZ: Group = Group::new("fuzz", "any bytes, guided by coverage", &[Case::shell("")]);

const BENCH: Group = Group::new("bench", "what a request costs", &[Case::shell("")]);

const LAB: Group =
    Group::new("lab", "the lab: guests on real KVM, and their exits", &[Case::shell("")]);

const MUTANTS: Group =
    Group::new("mutants", "the sources with one rule removed", &[Case::shell("")]).only_by_name();

const COVERAGE: Group =
    Group::new("coverage", "lines of virtqueue, device and vhost_user", &[Case::shell("")])
        .only_by_name();
