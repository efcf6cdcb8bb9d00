//! The table of groups, in the order in which they are listed. Each has a file of its own for its cases.

mod bench;
mod coverage;
mod durable;
mod foreign;
mod frontend;
mod fuzz;
mod guest;
mod hostile;
mod lab;
mod migrate;
mod mutants;
mod net;
mod recover;
pub mod remote;
mod service;
mod sim;
mod unit;

use crate::suite::{Built, Case, Group, Takes};

/// All groups.
pub const GROUPS: &[Group] = &[
    unit::GROUP,
    sim::GROUP,
    guest::GROUP,
    net::GROUP,
    foreign::GROUP,
    frontend::GROUP,
    hostile::GROUP,
    fuzz::GROUP,
    recover::GROUP,
    remote::GROUP,
    migrate::GROUP,
    service::GROUP,
    durable::GROUP,
    bench::GROUP,
    lab::GROUP,
    mutants::GROUP,
    coverage::GROUP,
];

/// A case in shell that takes the whole machine, and builds what it needs.
const fn alone(name: &'static str) -> Case {
    Case::shell(name).takes(Takes::Machine).needs_built(Built::Nothing)
}
