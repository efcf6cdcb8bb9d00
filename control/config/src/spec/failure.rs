//! What becomes of requests that a disk cannot do for now.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What becomes of a request that fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[cfg_attr(feature = "cli", derive(clap::ValueEnum))]
#[serde(rename_all = "lowercase")]
pub enum OnFailure {
    /// It waits, is tried again from time to time, and goes on by itself.
    Wait,
    /// Its guest is told of an error.
    Error,
}

words! { OnFailure { Wait => "wait", Error => "error" } }
