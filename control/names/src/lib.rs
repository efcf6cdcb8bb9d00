//! The one place of control that opens by name.
//!
//! A path is walked step by step, each step opened from the one before it and looked at: whoever else
//! than root and the daemon's own user could change a step could lead the daemon to a file of another
//! tenant, or of root. Such a step is refused in words ([`Refused`]). Links are followed where only
//! root or the daemon's user can have put them, so `/dev/disk/by-id`, the names of LVM and an
//! administrator's own links work. Nothing here waits for a FIFO or a lease, and nothing is read
//! before its kind is known, or without a bound. A file system that does not answer is waited for:
//! callers that may not wait ask on another thread. Why it is so: docs/decisions/0017-names.md.
//!
//! Not here: files of `/proc` and `/sys` with fixed names, and what is read of an image (`backend`).
#![forbid(unsafe_code)]

mod devices;
mod file;
mod kept;
mod medium;
mod refused;
mod socket;
mod spot;
mod walk;

#[cfg(test)]
mod tests;

pub use devices::{as_device, is_among_devices};
pub use file::{
    ImageKind, OwnText, can_make_image, kernel_text, kind_of_image, look_at_own, open_image,
    open_or_make_image, read_text, sync_image, unmake_image,
};
pub use kept::{Kept, Locking, make_folder, may_make_in};
pub use medium::{Medium, Mounts};
pub use refused::{ACTIVATE, Refused};
pub use socket::{Socket, SocketPlace};
pub use spot::{Spot, Spots};
pub use walk::real_name;

/// What a name is for, and with that whose folders it may lead through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The daemon's own: state, keys, the API's socket. Every step is root's or the daemon's user's.
    Own,
    /// An image.
    Image {
        /// It may lie in the folder of one other user, if that user owns it.
        user_folder: bool,
    },
    /// A socket that a VMM connects to or listens on. It may lie in the folder of one other user.
    Socket,
}

impl Purpose {
    /// Whether a folder of another user may be entered.
    fn lets_users_in(self) -> bool {
        matches!(self, Purpose::Image { user_folder: true } | Purpose::Socket)
    }
}
