//! How long a vCPU keeps a CPU that it shares with others, where time is emulated.
//!
//! Nothing is changed where it is not. Used by the place, for guests of several vCPUs.

use std::path::PathBuf;

use anyhow::{Context, Result};

/// The scheduler's, in nanoseconds.
const SLICE: &str = "/sys/kernel/debug/sched/base_slice_ns";
/// An emulated guest takes a millisecond to answer, and ten where its emulator has to wait: a part of this, as of the
/// kernel's 4 ms on a processor.
const EMULATED_NS: &str = "60000000";

/// Slices are longer as long as this lives.
#[derive(Debug)]
pub(crate) struct Slices {
    file: PathBuf,
    before: String,
}

impl Slices {
    /// # Errors
    /// The kernel does not have them there.
    pub(crate) fn of_emulated() -> Result<Slices> {
        Slices::stretched(PathBuf::from(SLICE))
    }

    fn stretched(file: PathBuf) -> Result<Slices> {
        let name = || format!("slices of the scheduler: {}", file.display());
        let before = std::fs::read_to_string(&file).with_context(name)?;
        std::fs::write(&file, EMULATED_NS).with_context(name)?;
        Ok(Slices { file, before })
    }
}

impl Drop for Slices {
    fn drop(&mut self) {
        // One that stays so is seen by guests of an emulated machine that ends soon.
        let _ = std::fs::write(&self.file, self.before.trim());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_longer_for_a_time() -> Result<()> {
        let dir = tempfile::tempdir()?;
        let file = dir.path().join("base_slice_ns");
        std::fs::write(&file, "2800000\n")?;
        let slices = Slices::stretched(file.clone())?;
        assert_eq!(std::fs::read_to_string(&file)?, EMULATED_NS);
        drop(slices);
        assert_eq!(std::fs::read_to_string(&file)?, "2800000");
        let none = Slices::stretched(dir.path().join("none")).map_err(|error| error.to_string());
        assert!(none.is_err_and(|said| said.starts_with("slices of the scheduler: ")));
        Ok(())
    }
}
