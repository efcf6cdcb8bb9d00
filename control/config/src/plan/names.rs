//! What every device has: a name, a socket, where it was declared; and that no two share these.

use crate::mistake::{Mistake, Path};
use crate::number;
use crate::spec::DaemonSpec;
use crate::spec::told::Told;

/// Longest path of a Unix socket, in bytes: `sun_path` without the final NUL.
pub const SOCKET_PATH_MAX: usize = 107;
/// Longest path that Linux takes, without the final NUL, in bytes.
pub(crate) const PATH_MAX: usize = 4095;
/// Longest name of an interface, in bytes: Linux's `IFNAMSIZ` without the final NUL.
const INTERFACE_NAME_MAX: usize = 15;

/// Longest name, in bytes.
const ID_MAX: usize = 64;

/// Where a disk, a NIC, a switch or a group was declared. Each keeps to its source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// In the configuration file.
    File {
        /// The file's name as the operator gave it.
        file: String,
        /// Its line, from 1.
        line: u32,
    },
    /// Through the API.
    Api,
}

/// As `show` prints it: `file:line` or `api`.
impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Origin::File { file, line } => write!(f, "{file}:{line}"),
            Origin::Api => f.write_str("api"),
        }
    }
}

/// A device as its neighbours see it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Named<'a> {
    /// `disk`, `nic`, `switch` or `group`.
    pub(super) kind: &'static str,
    pub(super) id: &'a str,
    pub(super) origin: &'a Origin,
    /// None for a switch or a group.
    pub(super) socket: Option<&'a str>,
}

impl Named<'_> {
    /// In a message: `disk "a" (f:1)`.
    pub(super) fn text(&self) -> String {
        format!("{} {:?} ({})", self.kind, self.id, self.origin)
    }

    /// What this device cannot share with others: its name and its socket.
    pub(super) fn clashes(
        &self,
        others: &[Named<'_>],
        daemon: Option<&DaemonSpec>,
        at: &Path,
        mistakes: &mut Vec<Mistake>,
    ) {
        let kind = self.kind;
        let mine = self.socket.filter(|mine| daemon.is_some_and(|daemon| daemon.has_api_at(mine)));
        if let Some(api) = mine {
            let wrong = format!("{api:?} is the socket of the API");
            let right = format!("give the {kind} its own socket");
            mistakes.push(Mistake::new(at.key("socket"), wrong, right));
        }
        // One of each: of a name that a thousand have, a thousand mistakes would be a million.
        if let Some(other) = others.iter().find(|other| self.id == other.id) {
            let wrong = format!("the name {:?} is taken by {}", self.id, other.text());
            let right = match other.origin {
                Origin::Api => format!(
                    "give each {kind} a name of its own, or remove the other one first: \
                     `sidecore {} rm {}`",
                    other.kind, other.id
                ),
                Origin::File { .. } => format!("give each {kind} a name of its own"),
            };
            mistakes.push(Mistake::new(at.key("id"), wrong, right));
        }
        let has_it = |other: &&Named<'_>| {
            self.id != other.id && self.socket.is_some() && self.socket == other.socket
        };
        if let Some((socket, other)) = self.socket.zip(others.iter().find(has_it)) {
            let wrong = format!("the socket {socket:?} is that of {}", other.text());
            let right = format!("give each {kind} a socket of its own");
            mistakes.push(Mistake::new(at.key("socket"), wrong, right));
        }
    }
}

/// A line that a terminal can show, however many names there are.
pub(super) fn shorten(names: &[&str]) -> String {
    let shown = names.iter().take(8).copied().collect::<Vec<_>>().join(", ");
    if names.len() > 8 { format!("{shown}, ...") } else { shown }
}

/// A name that is fit for files, commands and paths of the API.
pub(super) fn check_id(id: &str, at: &Path, mistakes: &mut Vec<Mistake>) {
    let wrong = if id.is_empty() {
        "a name cannot be empty".to_string()
    } else if id.len() > ID_MAX {
        format!("a name of {} bytes is too long", id.len())
    } else if let Some(bad) =
        id.chars().find(|c| !matches!(c, 'a'..='z' | '0'..='9' | '-' | '_' | '.'))
    {
        format!("the name {id:?} has {bad:?}, which is not possible in a name")
    } else if let Some(first @ ('-' | '_' | '.')) = id.chars().next() {
        format!("the name {id:?} begins with {first:?}, not with a letter or digit")
    } else {
        return;
    };
    let right = "a name has 1 to 64 of the lower-case letters a-z, digits, '-', '_' and '.', and begins \
                 with a letter or digit";
    mistakes.push(Mistake::new(at.clone(), wrong, right));
}

/// The socket of a device of that name. Nothing when the path is no path, or when it would be made
/// of a name that is wrong itself.
pub(super) fn resolve_socket(
    (id, written): (&str, Option<&str>),
    run_dir: &str,
    folder: Option<&str>,
    at: &Path,
    mistakes: &mut Vec<Mistake>,
) -> Option<String> {
    let at = at.key("socket");
    match written {
        Some(written) => absolute_file(written, folder, SOCKET_PATH_MAX, &at, mistakes),
        None if !mistakes.is_empty() => None,
        None => absolute(&format!("{run_dir}/{id}.sock"), folder, SOCKET_PATH_MAX, &at, mistakes),
    }
}

/// The socket of a VMM's QMP, if one is named.
pub(super) fn resolve_qmp(
    written: Option<&str>,
    folder: Option<&str>,
    at: &Path,
    mistakes: &mut Vec<Mistake>,
) -> Option<String> {
    absolute_file(written?, folder, SOCKET_PATH_MAX, &at.key("qmp"), mistakes)
}

/// Refuses numbers of a table that are outside of their bounds.
pub(super) fn check_numbers<T: Told>(spec: &T, at: &Path, mistakes: &mut Vec<Mistake>) {
    for (number, written) in T::NUMBERS.iter().zip(spec.numbers()) {
        if let Some(written) = written {
            check_bounds(written, number.bounds, &at.key(number.name), mistakes);
        }
    }
}

/// Refuses a number outside of its bounds. Readers of files and bodies have done so; others might make
/// a spec by hand.
pub(super) fn check_bounds(
    value: u32,
    (least, most): (u32, u32),
    at: &Path,
    mistakes: &mut Vec<Mistake>,
) {
    if !(least..=most).contains(&value) {
        let wrong = format!("{value} is out of bounds");
        let right = number::allowed(at.field(), least.into(), most.into());
        mistakes.push(Mistake::new(at.clone(), wrong, right));
    }
}

/// [`absolute`], of what is no folder: `image.raw/` is none, though its parts are those of `image.raw`.
pub(super) fn absolute_file(
    written: &str,
    folder: Option<&str>,
    longest: usize,
    at: &Path,
    mistakes: &mut Vec<Mistake>,
) -> Option<String> {
    if written.ends_with('/') || written.ends_with("/.") {
        let wrong = format!("{written:?} is the name of a folder");
        mistakes.push(Mistake::new(
            at.clone(),
            wrong,
            "write the path of the file, without a '/' at its end",
        ));
        return None;
    }
    absolute(written, folder, longest, at, mistakes)
}

/// An absolute path without `.` and doubled slashes, so that equal places read the same. `..` is
/// kept, since only the file system knows what it means behind a symbolic link.
pub(super) fn absolute(
    written: &str,
    folder: Option<&str>,
    longest: usize,
    at: &Path,
    mistakes: &mut Vec<Mistake>,
) -> Option<String> {
    let joined = match (written.starts_with('/'), folder) {
        (true, _) => written.to_string(),
        (false, Some(folder)) if !written.is_empty() => format!("{folder}/{written}"),
        _ => {
            let wrong = format!("{written:?} is not an absolute path");
            let right = "write the whole path, beginning with '/'";
            mistakes.push(Mistake::new(at.clone(), wrong, right));
            return None;
        }
    };
    let parts = joined.split('/').filter(|part| !part.is_empty() && *part != ".");
    let path: String = parts.flat_map(|part| ["/", part]).collect();
    if path.is_empty() {
        let wrong = format!("{written:?} is not a path of a file");
        mistakes.push(Mistake::new(at.clone(), wrong, "write the whole path"));
        return None;
    }
    if path.chars().any(char::is_control) {
        // Logs and terminals would take it for lines and commands of their own.
        let wrong = format!("the path {written:?} has control characters");
        let right = "rename it: a path has no line ends, tabs, escapes or the like";
        mistakes.push(Mistake::new(at.clone(), wrong, right));
        return None;
    }
    if path.len() > longest {
        let wrong = format!("the path {path:?} has {} bytes", path.len());
        let right = match longest == SOCKET_PATH_MAX {
            true => {
                format!("a Unix socket's path has at most {longest} bytes; choose a shorter one")
            }
            false => format!("a path has at most {longest} bytes"),
        };
        mistakes.push(Mistake::new(at.clone(), wrong, right));
        return None;
    }
    Some(path)
}

/// Refuses what Linux does not take as the name of an interface.
pub(super) fn check_interface(name: &str, at: &Path, mistakes: &mut Vec<Mistake>) {
    // A `%` would have the kernel find a name (`tap%d`), which nobody would then know.
    let possible = |c: char| c.is_ascii_graphic() && !matches!(c, '/' | ':' | '%');
    let is_dots = matches!(name, "." | "..");
    let right = format!(
        "the name of an interface has 1 to {INTERFACE_NAME_MAX} printable ASCII characters without \
         '/', ':' and '%'"
    );
    if name.is_empty() || name.len() > INTERFACE_NAME_MAX || is_dots || !name.chars().all(possible)
    {
        let wrong = format!("{name:?} cannot be the name of an interface");
        mistakes.push(Mistake::new(at.clone(), wrong, right));
    }
}
