//! Disks made through the API, as they are kept between two runs of the daemon.
//!
//! Text to specs and back, nothing else: `manager` writes the text to a temporary file, syncs it and
//! renames it. What is read back is not trusted: it was on a disk, and another version may have
//! written it. The disks are specs, not plans, so that a restart plans them anew.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::mistake::{Mistake, Path};
use crate::schema;
use crate::spec::{DISKS_MAX, DiskSpec};

/// The version that is written, and the highest that is read.
pub const VERSION: u64 = 1;

const FORMAT: &str = "sidecore-state";

/// The file of version 1.
#[derive(Serialize, Deserialize)]
struct Saved<'a> {
    format: &'a str,
    version: u64,
    disks: Vec<DiskSpec>,
}

/// Why a text is no saved state. Each says what to do; the daemon leaves the file as it is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SavedError {
    /// Not JSON: cut off or overwritten.
    #[error(
        "the saved state is damaged ({0}); put a copy of it back, or move the file away and add \
         the disks again with `sidecore disk add`"
    )]
    Damaged(String),
    /// Some other JSON.
    #[error("this is not a saved state of sidecore: `format` is not \"sidecore-state\"")]
    NotOurs,
    /// Written by a newer program.
    #[error(
        "the saved state has version {found}, and this program reads up to {VERSION}; install the \
         newer program again, or move the file away and add the disks again"
    )]
    Newer {
        /// The version that was found.
        found: u64,
    },
}

/// The text to keep.
pub fn write(disks: &[DiskSpec]) -> String {
    let saved = Saved { format: FORMAT, version: VERSION, disks: disks.to_vec() };
    let mut text = serde_json::to_string_pretty(&saved).unwrap_or_default();
    text.push('\n');
    text
}

/// The disks of a kept text.
pub fn read(text: &str) -> Result<Vec<DiskSpec>, SavedError> {
    let damaged = |mistakes: Vec<Mistake>| {
        let all: Vec<String> = mistakes.iter().map(Mistake::to_string).collect();
        SavedError::Damaged(all.join("; "))
    };
    let mut value: Value =
        serde_json::from_str(text).map_err(|e| SavedError::Damaged(e.to_string()))?;
    if value["format"] != FORMAT {
        return Err(SavedError::NotOurs);
    }
    match value["version"].as_u64() {
        Some(VERSION) => {}
        Some(found) if found > VERSION => return Err(SavedError::Newer { found }),
        _ => {
            return Err(SavedError::Damaged("`version` is missing or no version".to_string()));
        }
    }
    let Some(Value::Array(disks)) = value.get_mut("disks").map(Value::take) else {
        return Err(SavedError::Damaged("`disks` is not a list".to_string()));
    };
    if disks.len() > DISKS_MAX {
        return Err(SavedError::Damaged(format!("{} disks are too many", disks.len())));
    }
    let read = |(index, disk)| schema::read(disk, &Path::disk(index)).map_err(damaged);
    disks.into_iter().enumerate().map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk() -> DiskSpec {
        DiskSpec { path: Some("/a.img".into()), readonly: true, ..DiskSpec::new("a") }
    }

    #[test]
    fn what_is_written_reads_back() {
        let disks = vec![disk(), DiskSpec::new("b")];
        assert_eq!(read(&write(&disks)).unwrap(), disks);
        assert_eq!(read(&write(&[])).unwrap(), []);
    }

    #[test]
    fn the_form_of_version_1_stays_readable() {
        let text = r#"{"format":"sidecore-state","version":1,"disks":[
            {"id":"a","mode":"listen","path":"/a.img","readonly":true,"queues":1,"share":100,
             "allow_unsealed_memory":false}]}"#;
        assert_eq!(read(text).unwrap(), [disk()]);
    }

    #[test]
    fn every_cut_of_a_state_is_refused() {
        let text = write(&[disk()]);
        for end in 0..text.trim_end().len() {
            assert!(matches!(read(&text[..end]), Err(SavedError::Damaged(_))), "{end}");
        }
    }

    #[test]
    fn other_states_are_refused_by_reason() {
        for (text, why) in [
            ("{}", "this is not a saved state of sidecore: `format` is not \"sidecore-state\""),
            (
                r#"{"format":"sidecore-state","version":2,"disks":[]}"#,
                "the saved state has version 2, and this program reads up to 1; install the newer \
                 program again, or move the file away and add the disks again",
            ),
            (
                r#"{"format":"sidecore-state","version":1,"disks":[{"id":"a","queues":0,"x":1}]}"#,
                "the saved state is damaged (disk[1].queues: 0 is out of bounds; `x` is not a \
                 field of disk[1]); put a copy of it back, or move the file away and add the disks \
                 again with `sidecore disk add`",
            ),
        ] {
            assert_eq!(read(text).unwrap_err().to_string(), why);
        }
    }
}
