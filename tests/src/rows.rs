//! Numbers for `./x bench recover`: what a test measured goes into the file that `RECOVER_ROWS` names,
//! as the benches print it.

use std::io::Write;

use anyhow::Result;
use testing::report::Row;
use testing::server::Who;

/// Adds one, in `unit`, from all that was measured; nothing without the file.
///
/// # Errors
/// The file cannot be written.
pub fn add(name: &str, unit: &'static str, values: &[f64]) -> Result<()> {
    let Some(file) = std::env::var_os("RECOVER_ROWS") else { return Ok(()) };
    let mut file = std::fs::File::options().create(true).append(true).open(file)?;
    let row = Row::new(format!("recover.{name}"), Who::Sidecore, unit, values);
    Ok(writeln!(file, "{}", row.to_json()?)?)
}
