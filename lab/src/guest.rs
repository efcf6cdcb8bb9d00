//! In a guest that is measured: takes orders from a serial port and answers them.

use std::path::Path;

/// Does what is ordered until the port is closed.
///
/// # Errors
/// The port cannot be opened.
pub fn serve(_port: &Path) -> anyhow::Result<()> {
    anyhow::bail!("not yet")
}
