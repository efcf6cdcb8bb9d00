//! Which program this is: its version, and the commit that it was built from where git knew it (`build.rs`).
//!
//! Not here: what is shown of it. Used by `cli`, `serve` and `doctor`.

/// The version of the workspace.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The commit, with `-dirty` when the sources were not as committed; nothing of a tarball.
pub(crate) const COMMIT: Option<&str> = match env!("SIDECORE_COMMIT").is_empty() {
    true => None,
    false => Some(env!("SIDECORE_COMMIT")),
};

/// Both, as `--version` says them.
pub(crate) const TOLD: &str = env!("SIDECORE_VERSION");
