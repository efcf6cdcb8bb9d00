//! How an operator says that he insists, in words for those who are refused.
//!
//! Not here: what is refused without (`in_use`, `sizes`).

/// What does it all the same.
pub(crate) const INSIST: &str = "`--force` (`force=true` in the API)";
