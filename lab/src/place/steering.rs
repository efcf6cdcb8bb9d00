//! Where frames for a guest went by what its vCPUs did, as the daemon counts it, between the markers of a load.
//!
//! Not how it decides. Of configurations whose NICs have several pairs (`configurations`).

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

/// Who is asked, and whether frames are to be redirected.
#[derive(Debug)]
pub(crate) struct Steering {
    pub(crate) sidecore: PathBuf,
    /// The socket of its API.
    pub(crate) api: PathBuf,
    pub(crate) redirects: bool,
}

/// Frames of the first guest so far, or in a load.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
pub(crate) struct Steered {
    /// To another queue than their flow's.
    pub(crate) redirected: u64,
    /// To the flow's own though its vCPU had no CPU.
    pub(crate) stayed: u64,
}

#[derive(Deserialize)]
struct Shown {
    #[serde(default)]
    run_state: Option<RunState>,
}

#[derive(Deserialize)]
struct RunState {
    #[serde(default)]
    problem: Option<String>,
    #[serde(flatten)]
    steered: Steered,
}

impl Steering {
    /// What the daemon has counted so far.
    ///
    /// # Errors
    /// It does not say, or frames are to be redirected and cannot be.
    pub(crate) fn so_far(&self) -> Result<Steered> {
        let mut command = Command::new(&self.sidecore);
        command.arg("--api").arg(&self.api).args(["nic", "show", "n0", "--json"]);
        let output = command.output().with_context(|| format!("{command:?}"))?;
        let wrong = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "the daemon does not show its NIC: {}", wrong.trim());
        self.read(&output.stdout)
    }

    fn read(&self, said: &[u8]) -> Result<Steered> {
        let shown: Shown = serde_json::from_slice(said).context("a NIC as the daemon shows it")?;
        let Some(state) = shown.run_state else {
            ensure!(!self.redirects, "the daemon knows nothing of the guest's vCPUs");
            return Ok(Steered::default());
        };
        let problem = state.problem.filter(|_| self.redirects);
        ensure!(problem.is_none(), "nothing is redirected: {}", problem.unwrap_or_default());
        Ok(state.steered)
    }

    /// Of a load, from what was counted before it. One in which nothing was redirected would compare nothing.
    ///
    /// # Errors
    /// Nothing was redirected that was to be, or something that was not.
    pub(crate) fn since(&self, before: Steered) -> Result<Steered> {
        let steered = self.so_far()?.less(before);
        steered.suits(self.redirects)?;
        Ok(steered)
    }
}

impl Steered {
    fn less(self, before: Steered) -> Steered {
        Steered {
            redirected: self.redirected.saturating_sub(before.redirected),
            stayed: self.stayed.saturating_sub(before.stayed),
        }
    }

    fn suits(self, redirects: bool) -> Result<()> {
        let Steered { redirected, stayed } = self;
        if redirects {
            ensure!(redirected > 0, "nothing was redirected, and {stayed} frames stayed");
        } else {
            ensure!(redirected == 0, "{redirected} frames were redirected that were to stay");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steering(redirects: bool) -> Steering {
        Steering { sidecore: PathBuf::new(), api: PathBuf::new(), redirects }
    }

    #[test]
    fn what_the_daemon_shows_is_read_and_what_it_lacks_is_told() -> Result<()> {
        let said = |redirects, text: &str| {
            let read = steering(redirects).read(text.as_bytes());
            read.map_err(|error| error.to_string())
        };
        let shown = r#"{"id":"n0","run_state":{"redirect":"always","redirected":7,"stayed":2,"avoided_us":9}}"#;
        assert_eq!(said(true, shown), Ok(Steered { redirected: 7, stayed: 2 }));
        let none = r#"{"id":"n0"}"#;
        assert_eq!(said(false, none), Ok(Steered::default()));
        let why = "the daemon knows nothing of the guest's vCPUs";
        assert_eq!(said(true, none), Err(why.to_string()));
        let problem = shown.replace("\"redirected\"", "\"problem\":\"no BTF\",\"redirected\"");
        assert_eq!(said(true, &problem), Err("nothing is redirected: no BTF".to_string()));
        assert!(said(false, &problem).is_ok());
        Ok(())
    }

    #[test]
    fn a_load_in_which_nothing_was_redirected_is_none() {
        let (some, none) =
            (Steered { redirected: 9, stayed: 5 }, Steered { redirected: 0, stayed: 4 });
        let load = some.less(none);
        assert_eq!(load, Steered { redirected: 9, stayed: 1 });
        let said = |steered: Steered, redirects| {
            steered.suits(redirects).map_err(|error| error.to_string())
        };
        assert_eq!(said(load, true), Ok(()));
        assert_eq!(said(none, false), Ok(()));
        let why = "nothing was redirected, and 4 frames stayed";
        assert_eq!(said(none, true), Err(why.to_string()));
        let why = "9 frames were redirected that were to stay";
        assert_eq!(said(load, false), Err(why.to_string()));
    }
}
