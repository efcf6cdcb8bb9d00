//! How a daemon is started: what its file says, and what its process may.
//!
//! Not the start itself, nor what the file's parts mean (`docs/config.md`).

use std::path::{Path, PathBuf};

use anyhow::Result;

use super::Daemon;

/// What `setpriv` takes to start a process as a user without any rights.
const NOBODY: &[&str] = &[
    "--reuid",
    "65534",
    "--regid",
    "65534",
    "--clear-groups",
    "--inh-caps=-all",
    "--bounding-set=-all",
];

/// How a daemon is started: by default with the rights and limits of the test, and one sidecore, on processor 0.
#[derive(Clone, Debug)]
pub struct Config {
    pub(super) name: String,
    devices: String,
    sidecores: String,
    daemon: String,
    limits: Vec<String>,
    through: Vec<String>,
    pub(super) program: Option<PathBuf>,
    pub(super) is_nobody: bool,
    pub(super) is_installed: bool,
    pub(super) is_quick: bool,
}

impl Config {
    /// The default; `name` tells daemons of one process apart, and `devices` ends the file.
    pub(super) fn new(name: &str, devices: &str) -> Config {
        Config {
            name: name.to_owned(),
            devices: devices.to_owned(),
            sidecores: String::new(),
            daemon: String::new(),
            limits: Vec::new(),
            through: Vec::new(),
            program: None,
            is_nobody: false,
            is_installed: false,
            is_quick: false,
        }
        .cpus("0")
    }

    /// Starts it, and waits until it is ready.
    ///
    /// # Errors
    /// It did not start; what it said is in the message.
    pub fn start(self) -> Result<Daemon> {
        Daemon::begin_with(self)
    }

    /// With a sidecore on each of `cpus` (as in the file), all of them in use.
    #[must_use]
    pub fn cpus(self, cpus: &str) -> Config {
        let min = count(cpus).map(|count| format!("min = {count}\n")).unwrap_or_default();
        self.sidecores(&format!("cpus = \"{cpus}\"\n{min}"))
    }

    /// With these lines in the part `[sidecores]` of the file, and no others.
    #[must_use]
    pub fn sidecores(mut self, lines: &str) -> Config {
        lines.clone_into(&mut self.sidecores);
        self
    }

    /// With these lines more in the part `[daemon]` of the file.
    #[must_use]
    pub fn daemon(mut self, lines: &str) -> Config {
        lines.clone_into(&mut self.daemon);
        self
    }

    /// With other devices.
    #[must_use]
    pub fn devices(mut self, devices: &str) -> Config {
        devices.clone_into(&mut self.devices);
        self
    }

    /// With so much of something at most: `nofile`, `memlock`, ... of `prlimit`.
    #[must_use]
    pub fn limit(mut self, what: &str, most: u64) -> Config {
        self.limits.push(format!("--{what}={most}:{most}"));
        self
    }

    /// As a user without any rights. Takes root.
    #[must_use]
    pub fn as_nobody(mut self) -> Config {
        self.is_nobody = true;
        self
    }

    /// Through a program that ends by becoming what follows on its command line.
    #[must_use]
    pub fn through(mut self, program: &[&str]) -> Config {
        self.through.extend(program.iter().map(ToString::to_string));
        self
    }

    /// Started directly again, after [`Config::through`].
    #[must_use]
    pub fn directly(mut self) -> Config {
        self.through.clear();
        self
    }

    /// All of it on these processors.
    #[must_use]
    pub fn pinned(self, cpus: &str) -> Config {
        self.through(&["taskset", "-c", cpus])
    }

    /// By this program; `None`, by [`super::sidecore_binary`].
    #[must_use]
    pub fn program(mut self, program: Option<&Path>) -> Config {
        self.program = program.map(Path::to_owned);
        self
    }

    /// From a copy of the program in its own folder, which [`Daemon::install`] replaces.
    #[must_use]
    pub fn installed(mut self) -> Config {
        self.is_installed = true;
        self
    }

    /// Not waited for: whoever connects looks until it listens, and a killer finds it at any step of its start.
    #[must_use]
    pub fn quick(mut self) -> Config {
        self.is_quick = true;
        self
    }

    /// What the file says.
    pub(super) fn text(&self) -> String {
        let Config { daemon, sidecores, devices, .. } = self;
        format!(
            "[daemon]\napi = \"api.sock\"\nrun_dir = \".\"\nstate_dir = \"state\"\n{daemon}\n\
             [sidecores]\n{sidecores}\n{devices}"
        )
    }

    /// What of its command line comes between `setpriv` and the program.
    pub(super) fn words(&self) -> impl Iterator<Item = &str> {
        // So that a killed test leaves none behind: it dies with the thread that starts it.
        let dies: &[&str] = &["--pdeathsig", "KILL"];
        let rights = if self.is_nobody { NOBODY } else { &[] };
        let limits = (!self.limits.is_empty()).then_some("prlimit");
        let more = self.limits.iter().chain(&self.through).map(String::as_str);
        dies.iter().chain(rights).copied().chain(limits).chain(more)
    }
}

/// How many cpus a list names.
fn count(cpus: &str) -> Option<usize> {
    let number = |text: &str| text.parse::<usize>().ok();
    let piece = |piece: &str| match piece.split_once('-') {
        Some((first, last)) => (number(last)? + 1).checked_sub(number(first)?),
        None => number(piece).map(|_| 1),
    };
    cpus.split(',').map(piece).sum()
}
