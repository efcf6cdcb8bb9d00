//! What operators see of the daemon itself. Called by `calls`.

use config::api::{
    Answer, ApiError, ConfinementView, DaemonView, ErrorKind, LaunchersView, StateView,
};
use confine::Landlock;

use crate::api::Reply;
use crate::calls::STOPPING;
use crate::rooms::Rooms;
use crate::state::Told;

/// Shows the daemon itself, as soon as the folder of its state was looked at.
pub(crate) fn ask(rooms: &mut Rooms, reply: Reply) {
    let told = rooms.folder.ask(reply, rooms.state.lock_id(), rooms.turn.now());
    told.into_iter().for_each(|told| answer(rooms, told));
}

/// Answers those for whom that was, or who have waited for too long.
pub(crate) fn go_on(rooms: &mut Rooms) {
    let told = rooms.folder.take(rooms.turn.now());
    told.into_iter().for_each(|told| answer(rooms, told));
}

/// The daemon ends, and who waits is answered.
pub(crate) fn stop(rooms: &mut Rooms) {
    for reply in rooms.folder.take_all() {
        reply.answer(Err(ApiError::new(ErrorKind::Busy, STOPPING, "ask the next one")));
    }
}

fn answer(rooms: &Rooms, Told { replies, problem }: Told) {
    let view = show(rooms, problem);
    replies.into_iter().for_each(|reply| reply.answer(Ok(view.clone())));
}

fn show(rooms: &Rooms, problem: Option<String>) -> Answer {
    let defects = rooms.turn.defects.views().into_iter().chain(rooms.cores.defects.views());
    Answer::Daemon(Box::new(DaemonView {
        pid: std::process::id(),
        file: rooms.options.path.clone(),
        confinement: confinement(),
        bounds: rooms.bounds.view(),
        state: state(rooms, problem),
        launchers: launchers(rooms),
        defects: defects.collect(),
    }))
}

fn launchers(rooms: &Rooms) -> LaunchersView {
    let Some(launcher) = &rooms.options.launcher else { return LaunchersView::default() };
    LaunchersView {
        started: launcher.ends().count() as u16,
        living: launcher.living() as u16,
        pids: launcher.pids(),
        program: launcher.program().display().to_string(),
    }
}

fn state(rooms: &Rooms, problem: Option<String>) -> StateView {
    let folder = rooms.plan.daemon.state_dir.clone();
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
