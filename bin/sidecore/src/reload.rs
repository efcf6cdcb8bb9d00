//! `reload`: the file read again by the daemon, and what that does or would do, to whom.

use std::fmt::Write as _;

use config::api::{
    ActionView, ApiError, EffectView, ErrorKind, NotOpenView, ReloadView, TakenFileView,
};
use config::routes::Method;

use crate::cli::ReloadArgs;
use crate::client::Client;
use crate::failure::Failure;
use crate::output::Output;
use crate::table::{Align, Room, Table};

/// How an effect ends by which an image is made.
const MADE: &str = "an empty one is made";

/// What is said of another `api_read`.
const API_READ: &str = "a restart of the daemon puts it into force; `sidecore upgrade` does where there was none, and refuses \
                        another one";
/// What puts another `run_dir` into force: devices whose sockets are in it become others.
const RUN_DIR: &str = "a restart puts it into force; `sidecore upgrade` does as well, unless a guest uses a device \
                       whose socket is there";

/// `reload`
pub(crate) fn run(args: ReloadArgs, client: &Client, output: &Output) -> Result<(), Failure> {
    let done: ReloadView = match (args.dry_run, args.force) {
        (true, _) => dry_run(client)?,
        (_, true) => client.ask(Method::Post, "/v1/reload?force=true")?,
        _ => client.ask(Method::Post, "/v1/reload")?,
    };
    output.show(&done, |done| text(done, output.room))?;
    not_open(&done).map_or(Ok(()), Err)
}

/// That some device is not open after a reload, whatever else was done: whoever goes on has to know.
fn not_open(done: &ReloadView) -> Option<Failure> {
    let count = done.not_open.len();
    if done.dry_run || count == 0 {
        return None;
    }
    let error = match count {
        1 => "1 device is not open".to_string(),
        _ => format!("{count} devices are not open"),
    };
    let hint = "the file was read, and all else is done";
    Some(Failure::Refused(ApiError::new(ErrorKind::Refused, error, hint)))
}

/// What a reload would do, of the daemon that runs. One that does not know the question reloads nothing.
///
/// # Errors
/// It cannot be asked, or would refuse the file.
pub(crate) fn dry_run(client: &Client) -> Result<ReloadView, Failure> {
    client.ask(Method::Get, "/v1/reload")
}

/// What an upgrade took over from the file, for people.
pub(crate) fn taken_text(taken: &TakenFileView) -> String {
    let TakenFileView { file, changes, put_into_force, not_compared } = taken;
    if let Some(why) = not_compared {
        return format!(
            "{file}: in force; what is different is not told, since the process before it does not know all of it \
             ({why})\n"
        );
    }
    if changes.is_empty() && put_into_force.is_empty() {
        return format!("{file}: nothing changed\n");
    }
    let changes = changes.iter().map(|change| format!("{change}\n"));
    let fields =
        put_into_force.iter().map(|name| format!("{name} is different, and in force now\n"));
    changes.chain(fields).collect()
}

/// For people.
pub(crate) fn text(done: &ReloadView, room: Room) -> String {
    let mut text = match (done.dry_run, done.changes.is_empty()) {
        _ if done.upgrade_needed.is_some() => upgrade_text(done),
        // What is different and waits is said below.
        (_, true) if !done.restart_needed.is_empty() => String::new(),
        (false, true) => format!("{}: nothing changed\n", done.file),
        (true, true) => format!("{}: a reload would change nothing\n", done.file),
        (false, false) => done.changes.iter().map(|change| format!("{change}\n")).collect(),
        (true, false) => effects_text(done, room),
    };
    let made = done.effects.iter().filter(|effect| !done.dry_run && effect.what.ends_with(MADE));
    for EffectView { id, .. } in made {
        let _ = writeln!(text, "disk {id}: its image was missing, and an empty one was made");
    }
    for NotOpenView { kind, id, problem, .. } in &done.not_open {
        let _ = writeln!(text, "{} {id} is not open: {problem}", kind.word());
    }
    for name in &done.restart_needed {
        let what = match name.as_str() {
            "daemon.run_dir" => RUN_DIR,
            "daemon.api_read" => API_READ,
            name if config::api::upgrade_refuses(name) => {
                "a restart of the daemon puts it into force, and `sidecore upgrade` refuses it"
            }
            _ => "`sidecore upgrade`, or a restart, puts it into force",
        };
        let _ = writeln!(text, "{name} is different: {what}");
    }
    text
}

/// What an upgrade would do, and a reload would not.
fn upgrade_text(done: &ReloadView) -> String {
    let how = match done.restart_needed.iter().any(|name| config::api::upgrade_refuses(name)) {
        true => "a restart of the daemon",
        false => "`sidecore upgrade`, or a restart,",
    };
    let why = done.upgrade_needed.as_deref().unwrap_or_default();
    let mut text =
        format!("{}: {how} puts it into force, and a reload refuses it: {why}\n", done.file);
    done.changes.iter().for_each(|change| text += &format!("{change}\n"));
    text
}

fn effects_text(done: &ReloadView, room: Room) -> String {
    let columns = ["WHAT", "DEVICE", "GUEST", "HOW"];
    let columns: Vec<_> = columns.into_iter().map(|name| (name, Align::Left)).collect();
    let mut table = Table::new(&columns, &[]);
    for effect in &done.effects {
        let EffectView { kind, id, action, what, .. } = effect;
        let guest = match (effect.guest, effect.guest_loses) {
            (_, true) => "loses it",
            (true, false) => "keeps it",
            (false, false) => "-",
        };
        let name = format!("{} {id}", kind.word());
        let action = match action {
            ActionView::Added => "add",
            ActionView::Removed => "remove",
            ActionView::Remade => "remake",
            ActionView::Changed => "change",
        };
        table.row(vec![action.to_string(), name, guest.to_string(), what.clone()]);
    }
    let mut text = format!("{}: nothing was changed; a reload would do this:\n\n", done.file);
    text.push_str(&table.text(room));
    let lost = done.effects.iter().filter(|effect| effect.guest_loses).count();
    if lost > 0 {
        let _ = writeln!(
            text,
            "\n{lost} of these take something from a guest: `sidecore reload` refuses, and \
             `sidecore reload --force` does it"
        );
    }
    let misfits = done.effects.iter().filter(is_misfit).count();
    if misfits > 0 {
        let _ = writeln!(
            text,
            "\n{misfits} of these have a size that does not fit: `sidecore reload` refuses, and `sidecore reload \
             --force` does it"
        );
    }
    text
}

/// Why a daemon would not give a disk a size that does not fit what it is made of, if it is told to.
pub(crate) fn misfit(done: &ReloadView) -> Option<Failure> {
    let misfit = done.effects.iter().find(is_misfit)?;
    let hint = "correct `size`, or say `sidecore reload --force`, which does it all the same";
    Some(Failure::Refused(ApiError::new(ErrorKind::Conflict, misfit.what.clone(), hint)))
}

/// Why a device of that daemon's is not open, which nothing in the file changes and nobody tries again.
pub(crate) fn failed(done: &ReloadView, pid: u32) -> Option<Failure> {
    let is_other = |shut: &NotOpenView| done.effects.iter().any(|effect| effect.id == shut.id);
    let NotOpenView { kind, id, problem, .. } =
        done.not_open.iter().find(|shut| !shut.retried && !is_other(shut))?;
    let error = format!("{} {id:?} of process {pid} is not open: {problem}", kind.word());
    Some(Failure::host(error, "put that right, then `sidecore reload`"))
}

fn is_misfit(effect: &&EffectView) -> bool {
    effect.needs_force && !effect.guest_loses
}

#[cfg(test)]
mod tests {
    use config::api::ThingView;

    use super::*;

    #[test]
    fn a_dry_run_says_what_becomes_of_each_and_of_its_guest() {
        let effect = |id: &str, action, (guest, guest_loses), what: &str| EffectView {
            kind: ThingView::Disk,
            id: id.to_string(),
            action,
            guest,
            guest_loses,
            needs_force: guest_loses || what.ends_with("has 1G"),
            what: what.to_string(),
        };
        let view = ReloadView {
            file: "f".to_string(),
            changes: vec!["remove disk a".to_string()],
            effects: vec![
                effect("a", ActionView::Remade, (true, true), "source \"/a\" becomes \"/b\""),
                effect("b", ActionView::Changed, (true, false), "resize disk b to 2G"),
                effect("c", ActionView::Added, (false, false), "add disk c"),
                effect("d", ActionView::Changed, (false, false), "the whole file system has 1G"),
            ],
            dry_run: true,
            ..ReloadView::default()
        };
        let expected = "f: nothing was changed; a reload would do this:\n\n\
             WHAT    DEVICE  GUEST     HOW\n\
             remake  disk a  loses it  source \"/a\" becomes \"/b\"\n\
             change  disk b  keeps it  resize disk b to 2G\n\
             add     disk c  -         add disk c\n\
             change  disk d  -         the whole file system has 1G\n\n\
             1 of these take something from a guest: `sidecore reload` refuses, and `sidecore reload \
             --force` does it\n\n\
             1 of these have a size that does not fit: `sidecore reload` refuses, and `sidecore reload --force` does \
             it\n";
        assert_eq!(text(&view, Room::Whole), expected);
        let restart_needed = vec!["daemon.run_dir".to_string()];
        let moved = ReloadView { file: "f".into(), restart_needed, ..ReloadView::default() };
        let expected = "daemon.run_dir is different: a restart puts it into force; `sidecore upgrade` does as \
             well, unless a guest uses a device whose socket is there\n";
        assert_eq!(text(&moved, Room::Whole), expected);
        let nothing = ReloadView { file: "f".into(), dry_run: true, ..ReloadView::default() };
        assert_eq!(text(&nothing, Room::Whole), "f: a reload would change nothing\n");
    }
}
