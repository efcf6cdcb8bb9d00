//! What operators see of the daemon itself. Called by `calls`.

use config::api::{Answer, ConfinementView, DaemonView};
use confine::Landlock;

use crate::rooms::Rooms;

/// The daemon itself.
pub(crate) fn show(rooms: &Rooms) -> Answer {
    let defects = rooms.turn.defects.views().into_iter().chain(rooms.cores.defects.views());
    Answer::Daemon(DaemonView {
        pid: std::process::id(),
        file: rooms.options.path.clone(),
        confinement: confinement(),
        bounds: rooms.bounds.view(),
        defects: defects.collect(),
    })
}

fn confinement() -> ConfinementView {
    let Some(confined) = confine::confined() else { return ConfinementView::default() };
    let files = match confined.landlock {
        Landlock::Off => "off",
        Landlock::Missing => "missing",
        Landlock::Folders => "folders",
    };
    ConfinementView {
        mode: confined.mode.word().to_string(),
        capabilities: confine::capability_names(confined.capabilities),
        files: files.to_string(),
        rings: backend::rings_are_restricted(),
    }
}
