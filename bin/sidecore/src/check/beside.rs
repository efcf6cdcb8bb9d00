//! The daemon that runs with a file that is checked, or in whose place one with that file would be started.
//!
//! Nothing is locked and nothing changed. Not here: what that daemon would do with the file (`reload`).

use std::path::Path;

use config::Plan;
use config::api::DaemonView;
use config::routes::Method;

use crate::client::Client;
use crate::failure::Failure;

/// A daemon that has the file's `api` or `state_dir`.
pub(super) struct Beside {
    /// As it says itself.
    pub(super) pid: u32,
    /// It was started with this very file.
    pub(super) is_of_file: bool,
    pub(super) client: Client,
}

impl Beside {
    /// The one that a daemon with that file would take the place of; nothing, where none runs that can be seen.
    ///
    /// # Errors
    /// What a start would say: another daemon has its `api` or its `state_dir`, and not both.
    pub(super) fn of(path: &Path, plan: &Plan) -> Result<Option<Beside>, Failure> {
        let at_api = Beside::at(&plan.daemon.api, path);
        let keeper = manager::check::keeper(plan);
        let keeps = |beside: &Beside| keeper.as_ref().is_some_and(|keeper| keeper.is(beside.pid));
        if let Some(beside) = at_api.filter(|beside| beside.is_of_file || keeps(beside)) {
            return Ok(Some(beside));
        }
        // One of this file, with another `api` until it is started anew.
        let keeps_it = keeper.as_ref().and_then(|keeper| Beside::at(keeper.api()?, path));
        if let Some(beside) = keeps_it.filter(|beside| beside.is_of_file) {
            return Ok(Some(beside));
        }
        if let Some(refusal) = keeper.and_then(|keeper| keeper.refusal()) {
            return Err(Failure::host(refusal.to_string(), HINT));
        }
        manager::check::api_sockets(plan).map_err(|error| Failure::host(error, HINT))?;
        Ok(None)
    }

    /// The daemon that answers at that socket.
    fn at(api: &str, path: &Path) -> Option<Beside> {
        let client = Client::new(api.to_string());
        let DaemonView { pid, file, .. } = client.ask(Method::Get, "/v1/daemon").ok()?;
        let real = |path: &Path| path.canonicalize().ok();
        let is_of_file = real(path).is_some() && real(path) == real(Path::new(&file));
        Some(Beside { pid, is_of_file, client })
    }
}

/// What is right besides.
const HINT: &str = "stop that one, or give this one its own `api`, `run_dir` and `state_dir` in [daemon]; a file for the daemon that runs \
                    has the `api` and the `state_dir` of that one";
