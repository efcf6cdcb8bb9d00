//! Names and addresses of the guests' networks, one for each guest, and the namespace in which they are.
//!
//! Not who serves a NIC (`nics`).

use std::process::Command;

use anyhow::{Context, Result, ensure};

/// What a guest is to its network: its number, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seat(pub(crate) usize);

impl Seat {
    /// The interface of the place that leads to it.
    pub(crate) fn tap(self) -> String {
        format!("lab{}", self.0)
    }

    /// The place's address on it.
    pub(crate) fn place(self) -> String {
        format!("10.77.{}.1", self.0)
    }

    /// The guest's.
    pub(crate) fn guest(self) -> String {
        format!("10.77.{}.2", self.0)
    }

    pub(crate) fn mac(self) -> String {
        format!("52:54:00:00:{:02x}:02", self.0)
    }
}

/// Runs `ip` with these words.
///
/// # Errors
/// What it says.
pub(crate) fn ip(words: &str) -> Result<()> {
    let output = Command::new("ip").args(words.split(' ')).output().context("ip")?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success(), "ip {words}: {}", said.trim());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guests_have_networks_of_their_own() {
        let (one, other) = (Seat(0), Seat(3));
        assert_eq!((one.tap().as_str(), one.mac().as_str()), ("lab0", "52:54:00:00:00:02"));
        assert_eq!((other.place().as_str(), other.guest().as_str()), ("10.77.3.1", "10.77.3.2"));
        assert_ne!(one.mac(), other.mac());
    }
}
