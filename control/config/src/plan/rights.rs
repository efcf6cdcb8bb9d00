//! Who may open a socket: resolved from what a device says and what `[daemon]` says for all, and checked
//! as far as it can be without asking this host for its users.

use crate::mistake::{Mistake, Path};
use crate::spec::{DaemonSpec, DiskSpec, Mode, NicSpec, SocketMode, SocketRights};

/// Longest name of a user or group, in bytes (Linux, `LOGIN_NAME_MAX`).
const NAME_MAX: usize = 255;

/// What one device says of its socket.
#[derive(Clone, Copy)]
pub(super) struct Written<'a> {
    pub(super) mode: Mode,
    pub(super) owner: Option<&'a String>,
    pub(super) group: Option<&'a String>,
    pub(super) rights: Option<SocketMode>,
}

macro_rules! written {
    ($spec:ident) => {
        impl<'a> From<&'a $spec> for Written<'a> {
            fn from(spec: &'a $spec) -> Written<'a> {
                let (owner, group) = (spec.socket_owner.as_ref(), spec.socket_group.as_ref());
                Written { mode: spec.mode, owner, group, rights: spec.socket_mode }
            }
        }
    };
}

written!(DiskSpec);
written!(NicSpec);

impl Written<'_> {
    /// With what `[daemon]` says for devices that say nothing.
    pub(super) fn resolve(
        self,
        daemon: &DaemonSpec,
        at: &Path,
        mistakes: &mut Vec<Mistake>,
    ) -> SocketRights {
        let Written { mode, owner, group, rights } = self;
        check_names([("socket_owner", owner), ("socket_group", group)], at, mistakes);
        if mode == Mode::Connect {
            let given = [
                ("socket_owner", owner.is_some()),
                ("socket_group", group.is_some()),
                ("socket_mode", rights.is_some()),
            ];
            for (name, _) in given.into_iter().filter(|(_, is_given)| *is_given) {
                let wrong =
                    format!("with mode = \"connect\" the socket is the VMM's, and has no `{name}`");
                let right = format!("take `{name}` out, or write mode = \"listen\"");
                mistakes.push(Mistake::new(at.key(name), wrong, right));
            }
            return SocketRights::default();
        }
        // A group of its own is there to be used, whatever holds for others.
        let usual = if group.is_some() { None } else { daemon.socket_mode };
        let owner = owner.or(daemon.socket_owner.as_ref());
        let group = group.or(daemon.socket_group.as_ref());
        SocketRights::new(owner, group, rights.or(usual))
    }
}

/// Checks what `[daemon]` says of sockets.
pub(super) fn check_daemon(spec: &DaemonSpec, at: &Path, mistakes: &mut Vec<Mistake>) {
    let names = [
        ("api_owner", spec.api_owner.as_ref()),
        ("api_group", spec.api_group.as_ref()),
        ("api_read_owner", spec.api_read_owner.as_ref()),
        ("api_read_group", spec.api_read_group.as_ref()),
        ("socket_owner", spec.socket_owner.as_ref()),
        ("socket_group", spec.socket_group.as_ref()),
    ];
    check_names(names, at, mistakes);
    let of_read = [
        ("api_read_owner", spec.api_read_owner.is_some()),
        ("api_read_group", spec.api_read_group.is_some()),
        ("api_read_mode", spec.api_read_mode.is_some()),
    ];
    for (name, is_given) in of_read {
        if is_given && spec.api_read.is_none() {
            let wrong = format!("there is `{name}`, but no `api_read`");
            let right = format!("take `{name}` out, or name the socket with `api_read`");
            mistakes.push(Mistake::new(at.key(name), wrong, right));
        }
    }
}

fn check_names<const N: usize>(
    names: [(&str, Option<&String>); N],
    at: &Path,
    mistakes: &mut Vec<Mistake>,
) {
    for (key, name) in names {
        let Some(name) = name else { continue };
        let fits = !name.is_empty() && name.len() <= NAME_MAX;
        let is_name = |c: char| !c.is_control() && !c.is_whitespace() && !":,/".contains(c);
        // A number of -1 means "as it is" to the kernel.
        let digits = name.chars().all(|c| c.is_ascii_digit());
        let is_id = !digits || name.parse::<u32>().is_ok_and(|id| id != u32::MAX);
        if !(fits && is_id && name.chars().all(is_name)) {
            let what = if key.ends_with("owner") { "user" } else { "group" };
            let wrong = format!("{name:?} is no name of a {what}");
            let right = format!("write a {what}'s name or number, or leave `{key}` out");
            mistakes.push(Mistake::new(at.key(key), wrong, right));
        }
    }
}

#[cfg(test)]
mod tests;
