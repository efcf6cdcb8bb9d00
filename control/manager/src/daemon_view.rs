//! What operators see of the daemon itself. Called by `calls`.

use config::api::{Answer, ConfinementView, DaemonView, StateView};
use confine::Landlock;

use crate::rooms::Rooms;
use crate::state::check_folder;

/// The daemon itself.
pub(crate) fn show(rooms: &Rooms) -> Answer {
    let defects = rooms.turn.defects.views().into_iter().chain(rooms.cores.defects.views());
    Answer::Daemon(Box::new(DaemonView {
        pid: std::process::id(),
        file: rooms.options.path.clone(),
        confinement: confinement(),
        bounds: rooms.bounds.view(),
        state: state(rooms),
        defects: defects.collect(),
    }))
}

fn state(rooms: &Rooms) -> StateView {
    let folder = rooms.plan.daemon.state_dir.clone();
    let problem = check_folder(&folder).err().map(|why| why.to_string());
    let disks = rooms.devices.values().filter_map(|device| device.disk());
    let unkept = disks.filter(|disk| disk.bond.unkept_why().is_some());
    StateView { folder, problem, unkept: unkept.map(|disk| disk.plan.id.clone()).collect() }
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
