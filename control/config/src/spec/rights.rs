//! Who may open a Unix socket of the daemon, as it is written.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{DaemonSpec, DiskChange, NicChange};

/// Who of owner, group and others may open a Unix socket, as `chmod` writes it. Opening one takes the
/// right to write to it; what else a mode could say has no meaning for a socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[cfg_attr(feature = "cli", derive(clap::ValueEnum))]
pub enum SocketMode {
    /// The owner alone.
    #[default]
    #[serde(rename = "0600")]
    #[cfg_attr(feature = "cli", value(name = "0600"))]
    Owner,
    /// The owner, and every member of the group.
    #[serde(rename = "0660")]
    #[cfg_attr(feature = "cli", value(name = "0660"))]
    Group,
}

/// The same of the socket on which the API only shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum ReadMode {
    /// The owner alone.
    #[default]
    #[serde(rename = "0600")]
    Owner,
    /// The owner, and every member of the group.
    #[serde(rename = "0660")]
    Group,
    /// Every user of this host.
    #[serde(rename = "0666")]
    Everyone,
}

words! {
    SocketMode { Owner => "0600", Group => "0660" }
}

/// Who may open one socket: what was written for it, with every default filled in. Names are not known
/// to be those of users and groups of this host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SocketRights {
    /// A user's name or number; the daemon's own user without.
    pub owner: Option<String>,
    /// A group's name or number; the daemon's own group without.
    pub group: Option<String>,
    /// Who of them.
    pub mode: SocketMode,
    /// Every user of this host may, besides.
    pub lets_all_in: bool,
}

impl SocketRights {
    /// Of what is written. A group that is named without a mode may open the socket; without either, the
    /// owner alone may.
    pub(crate) fn new(
        owner: Option<&String>,
        group: Option<&String>,
        mode: Option<SocketMode>,
    ) -> SocketRights {
        let usual = if group.is_some() { SocketMode::Group } else { SocketMode::Owner };
        let (owner, group) = (owner.cloned(), group.cloned());
        SocketRights { owner, group, mode: mode.unwrap_or(usual), lets_all_in: false }
    }

    /// The permission bits of the socket.
    pub fn bits(&self) -> u32 {
        match self.mode {
            _ if self.lets_all_in => 0o666,
            SocketMode::Owner => 0o600,
            SocketMode::Group => 0o660,
        }
    }

    /// In words, such as `user vm7, mode 0600`; nothing where it is the daemon's own user's alone.
    pub fn in_words(&self) -> Option<String> {
        let SocketRights { owner, group, .. } = self;
        let owner = owner.iter().map(|name| format!("user {name}, "));
        let group = group.iter().map(|name| format!("group {name}, "));
        let names: String = owner.chain(group).collect();
        let is_plain = names.is_empty() && self.bits() == 0o600;
        (!is_plain).then(|| format!("{names}mode {:04o}", self.bits()))
    }

    /// Whether the socket is another user's or group's than the daemon's own.
    pub fn names_somebody(&self) -> bool {
        self.owner.is_some() || self.group.is_some()
    }
}

macro_rules! sets_rights {
    ($change:ident) => {
        impl $change {
            /// Whether it is about who may open the socket.
            pub fn sets_rights(&self) -> bool {
                let $change { socket_owner, socket_group, socket_mode, .. } = self;
                socket_owner.is_some() || socket_group.is_some() || socket_mode.is_some()
            }
        }
    };
}

sets_rights!(DiskChange);
sets_rights!(NicChange);

impl DaemonSpec {
    /// Who may open the API's socket.
    pub fn api_rights(&self) -> SocketRights {
        SocketRights::new(self.api_owner.as_ref(), self.api_group.as_ref(), self.api_mode)
    }

    /// Who may open the socket on which the API only shows.
    pub fn api_read_rights(&self) -> SocketRights {
        let (owner, group) = (self.api_read_owner.as_ref(), self.api_read_group.as_ref());
        let (mode, lets_all_in) = match self.api_read_mode {
            None => (None, false),
            Some(ReadMode::Owner) => (Some(SocketMode::Owner), false),
            Some(ReadMode::Group) => (Some(SocketMode::Group), false),
            Some(ReadMode::Everyone) => (Some(SocketMode::Group), true),
        };
        SocketRights { lets_all_in, ..SocketRights::new(owner, group, mode) }
    }

    /// The path is that of one of the API's own sockets.
    pub(crate) fn has_api_at(&self, path: &str) -> bool {
        self.api == path || self.api_read.as_deref() == Some(path)
    }

    /// Takes over what a reload puts into force at once: who may open sockets. Paths stay.
    pub fn follow_rights(&mut self, wanted: &DaemonSpec) {
        self.api_owner.clone_from(&wanted.api_owner);
        self.api_group.clone_from(&wanted.api_group);
        self.api_mode = wanted.api_mode;
        self.api_read_owner.clone_from(&wanted.api_read_owner);
        self.api_read_group.clone_from(&wanted.api_read_group);
        self.api_read_mode = wanted.api_read_mode;
        self.socket_owner.clone_from(&wanted.socket_owner);
        self.socket_group.clone_from(&wanted.socket_group);
        self.socket_mode = wanted.socket_mode;
    }
}
