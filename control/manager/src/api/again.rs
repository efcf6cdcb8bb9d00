//! The API's sockets made again, whose files were removed or are another's: nobody could come to the daemon any more.
//!
//! Control makes them, and the API's thread answers at the new ones. One of which it is not known whether its name leads
//! to it is left as it is, and told of. Not here: who asks for that (`reload`, and whoever takes over).

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use config::spec::{DaemonSpec, SocketRights};
use tracing::{error, info, warn};

use super::{Listening, NewSocket, Role, Socket, listen};
use crate::rights::{Accounts, Rights};

/// A socket of the API whose name does not lead to it, or may not.
#[derive(Debug)]
pub(crate) struct Lost {
    role: Role,
    path: PathBuf,
    rights: SocketRights,
    /// Why it is not known whether its name leads to it.
    unknown: Option<io::Error>,
}

impl Lost {
    /// What is to be done about it.
    pub(crate) fn to_do(&self) -> String {
        match &self.unknown {
            None => self.told("make"),
            Some(why) => {
                let path = self.path.display();
                format!(
                    "leave the API's socket {path} as it is, since it is not known whether it was removed: {why}"
                )
            }
        }
    }

    fn told(&self, verb: &str) -> String {
        format!("{verb} the API's socket {} again, which was removed", self.path.display())
    }

    /// The field of [daemon] that names it.
    pub(crate) fn field(&self) -> &'static str {
        match self.role {
            Role::Operates => "api",
            Role::Shows => "api_read",
        }
    }
}

impl Listening {
    /// Has callers see this process as the one that listens, which is looked at when nobody answers. Those it inherited
    /// are its predecessor's until then, whose number may be another process's later.
    pub(crate) fn claim(&self) {
        for socket in [Some(&self.api), self.read.as_ref()].into_iter().flatten() {
            if let Err(error) = listen::begin(socket) {
                warn!(%error, "callers of the API still see the process before as the one that listens");
            }
        }
    }

    /// Those that nobody can come to by their names, and those of which that is not known. Looks at the file system.
    pub(crate) fn lost(&self, daemon: &DaemonSpec) -> Vec<Lost> {
        let api = (Role::Operates, &daemon.api, daemon.api_rights(), &self.api);
        let read = daemon.api_read.as_ref().zip(self.read.as_ref());
        let read = read.map(|(path, socket)| (Role::Shows, path, daemon.api_read_rights(), socket));
        let all = [Some(api), read].into_iter().flatten();
        let lost = |(role, path, rights, socket): (Role, &String, SocketRights, &OwnedFd)| {
            let unknown = match listen::is_at(Path::new(path), socket) {
                Ok(true) => return None,
                Ok(false) => None,
                Err(why) => Some(why),
            };
            Some(Lost { role, path: path.into(), rights, unknown })
        };
        all.filter_map(lost).collect()
    }

    /// Makes those again that were removed. Whoever is connected stays. What was made, and what could not be or may have
    /// to be, in words; both are in the log.
    pub(crate) fn make_again(
        &mut self,
        daemon: &DaemonSpec,
        accounts: &mut Accounts,
    ) -> (Vec<String>, Vec<String>) {
        let (mut made, mut undone) = (Vec::new(), Vec::new());
        for lost in self.lost(daemon) {
            let path = lost.path.display();
            if let Some(why) = &lost.unknown {
                let why = format!(
                    "it is not known whether the API's socket {path} was removed, and it is left as it is: {why}"
                );
                warn!("{why}");
                undone.push(why);
                continue;
            }
            let rights = Rights::of(&lost.rights, accounts).unwrap_or_else(|why| {
                error!("{path}: {why}; until then root and the daemon's user alone may ask");
                self.is_ungiven = true;
                Rights::own()
            });
            match self.make(&lost, &rights) {
                Ok(()) => {
                    info!("the API's socket {path} was removed, and is made again");
                    made.push(lost.told("made"));
                }
                Err(why) => {
                    let why = format!(
                        "the API's socket {path} was removed, and cannot be made again: {why}"
                    );
                    warn!("{why}");
                    undone.push(why);
                }
            }
        }
        (made, undone)
    }

    fn make(&mut self, lost: &Lost, rights: &Rights) -> io::Result<()> {
        let listener = listen::listen(&lost.path, rights)?;
        let own = OwnedFd::from(listener.try_clone()?);
        match lost.role {
            Role::Operates => self.api = own,
            Role::Shows => self.read = Some(own),
        }
        // A thread that has ended answers nobody, whatever the socket.
        let socket = Socket { path: lost.path.clone(), listener };
        let _ = self.again.send(NewSocket { role: lost.role, socket });
        Ok(())
    }
}
