//! The guest as this crate sees it: files, parameters of NICs, and one journal.

use crate::place::Place;

/// Bytes of a setting's file that are read at most.
pub const SETTING_BYTES_MAX: usize = 4096;
/// Bytes of a table of the kernel's (`/proc/interrupts`, `/proc/cpuinfo`): 1,024 vCPUs have about 2 MiB.
pub const TABLE_BYTES_MAX: usize = 4 << 20;
/// Names of a folder that are read at most.
pub const NAMES_MAX: usize = 65_536;
/// Bytes of a journal: 4,000 changes have 2 MiB.
pub const JOURNAL_BYTES_MAX: usize = 16 << 20;

/// Why something could not be read or written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Trouble {
    /// There is no such thing.
    #[error("is not there")]
    Absent,
    /// Text without an end that is understood.
    #[error("is longer than anything that is understood")]
    TooLong,
    /// The system's word.
    #[error("{0}")]
    Refused(String),
}

/// What can be asked and changed. Paths begin at the guest's `/`, without it.
pub trait System {
    /// The bytes of a regular file: no more than `most`, or [`Trouble::TooLong`].
    fn bytes(&mut self, path: &str, most: usize) -> Result<Vec<u8>, Trouble>;
    /// The names in a folder, sorted; no more than [`NAMES_MAX`].
    fn names(&mut self, folder: &str) -> Result<Vec<String>, Trouble>;
    /// Where a symbolic link leads, as it is written.
    fn link(&mut self, path: &str) -> Result<String, Trouble>;
    /// A parameter of a NIC: its value, as text.
    fn parameter(&mut self, nic: &str, parameter: &str) -> Result<String, Trouble>;
    /// Writes a setting, whole.
    fn write(&mut self, place: &Place, value: &str) -> Result<(), Trouble>;
    /// The bytes of the journal; none if there is no journal.
    fn journal(&mut self) -> Result<Vec<u8>, Trouble>;
    /// Appends to the journal; it is on disk when this returns.
    fn note(&mut self, line: &str) -> Result<(), Trouble>;
    /// Shortens the journal; that is on disk when this returns.
    fn cut(&mut self, length: usize) -> Result<(), Trouble>;
    /// Removes the journal.
    fn forget(&mut self) -> Result<(), Trouble>;
}

/// A file's text; bytes that are no text are replaced.
///
/// # Errors
/// It cannot be read.
pub fn text(system: &mut dyn System, path: &str, most: usize) -> Result<String, Trouble> {
    Ok(String::from_utf8_lossy(&system.bytes(path, most)?).into_owned())
}
