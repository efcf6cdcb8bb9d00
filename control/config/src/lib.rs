//! What the operator asked for: told once, checked once, and compared.
//!
//! [`spec`] is the one schema of the configuration file, the API and the command line; its field
//! comments are the help text of all three. [`plan`] is what will run: a spec with every default
//! filled in and every mistake refused. [`diff`] turns two plans into an ordered list of changes.
//! [`api`] is what the operator's requests and their answers look like, [`routes`] their HTTP form,
//! [`openapi`] and [`docs`] their description; [`saved`] how devices made
//! through the API are kept. Not here: opening, reading, or asking the system anything; whoever
//! calls brings the text and the list of cpus. That is why this crate builds without an OS.
//!
//! Called by `manager` and by the program.
#![forbid(unsafe_code)]
#![recursion_limit = "256"]

pub mod api;
pub mod diff;
pub mod docs;
pub mod key;
pub mod mac;
pub mod mistake;
pub mod near;
pub mod number;
pub mod openapi;
pub mod plan;
pub mod read;
pub mod routes;
pub mod saved;
mod schema;
pub mod size;
pub mod spec;
pub mod target;
mod word;

pub use diff::{Change, Difference, diff, links_after};
pub use mac::Mac;
pub use mistake::{Mistake, Refusal};
pub use plan::{
    DiskPlan, GroupPlan, HostPlan, LimitPlan, NicPeer, NicPlan, NullPlan, Origin, Plan, Source,
    SwitchPlan, UplinkPlan, VlanPlan,
};
pub use size::Size;
pub use spec::{DiskSpec, GroupSpec, NicSpec, Spec, SwitchSpec, UplinkSpec};
pub use target::Target;
