//! The API's sockets made again, whose files were removed or are another's: nobody could come to the daemon any more.
//!
//! Control makes them, and the API's thread answers at the new ones. Not here: who asks for that (`reload`, and
//! whoever takes over).

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use config::spec::{DaemonSpec, SocketRights};
use tracing::{error, info, warn};

use super::{Listening, NewSocket, Role, listen};
use crate::rights::{Accounts, Rights};

/// A socket of the API whose name does not lead to it.
#[derive(Debug)]
pub(crate) struct Lost {
    role: Role,
    path: PathBuf,
    rights: SocketRights,
}

impl Lost {
    /// What is to be done about it.
    pub(crate) fn to_do(&self) -> String {
        self.told("make")
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
    /// Those that nobody can come to by their names. Looks at the file system.
    pub(crate) fn lost(&self, daemon: &DaemonSpec) -> Vec<Lost> {
        let api = (Role::Operates, &daemon.api, daemon.api_rights(), &self.api);
        let read = daemon.api_read.as_ref().zip(self.read.as_ref());
        let read = read.map(|(path, socket)| (Role::Shows, path, daemon.api_read_rights(), socket));
        let all = [Some(api), read].into_iter().flatten();
        let lost = all.filter(|(_, path, _, socket)| !listen::is_at(Path::new(path), socket));
        lost.map(|(role, path, rights, _)| Lost { role, path: path.into(), rights }).collect()
    }

    /// Makes those again. Whoever is connected stays. What was made, and what could not be, in words; both are in the
    /// log.
    pub(crate) fn make_again(
        &mut self,
        daemon: &DaemonSpec,
        accounts: &mut Accounts,
    ) -> (Vec<String>, Vec<String>) {
        let (mut made, mut undone) = (Vec::new(), Vec::new());
        for lost in self.lost(daemon) {
            let path = lost.path.display();
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
        let _ = self.again.send(NewSocket { role: lost.role, listener });
        Ok(())
    }
}
