//! Keys that are pressed while `top` is on the screen: a terminal gives each at once, and shows none of them.

use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcsetattr,
};

/// Ctrl-C, which is no signal meanwhile, so that the terminal is left as it was.
const INTERRUPT: u8 = 3;

/// What was pressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    /// Nothing.
    None,
    /// `q`, Ctrl-C, or the terminal has gone.
    Quit,
    /// `?` or `h`.
    Help,
    Other,
}

/// The terminal's keys, until this is dropped.
pub(super) struct Keys {
    before: Termios,
}

impl Keys {
    /// Takes them, if the input is a terminal.
    pub(super) fn take() -> Option<Keys> {
        let before = tcgetattr(std::io::stdin()).ok()?;
        let mut now = before.clone();
        now.local_modes -= LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG;
        now.special_codes[SpecialCodeIndex::VMIN] = 1;
        now.special_codes[SpecialCodeIndex::VTIME] = 0;
        tcsetattr(std::io::stdin(), OptionalActions::Now, &now).ok()?;
        Some(Keys { before })
    }

    /// The key that is pressed within that time.
    pub(super) fn within(&self, time: Duration) -> Key {
        let time = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() };
        self.next(Some(&time))
    }

    /// The next key.
    pub(super) fn any(&self) -> Key {
        self.next(None)
    }

    fn next(&self, time: Option<&Timespec>) -> Key {
        let stdin = std::io::stdin();
        match poll(&mut [PollFd::new(&stdin, PollFlags::IN)], time) {
            Ok(0) | Err(_) => return Key::None,
            Ok(_) => {}
        }
        // More than one at a time is one: what an arrow key sends.
        let mut bytes = [0; 16];
        let read = rustix::io::read(&stdin, &mut bytes).unwrap_or(0);
        meant(bytes.get(..read).unwrap_or_default())
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, &self.before);
    }
}

fn meant(bytes: &[u8]) -> Key {
    match bytes {
        [] | [b'q' | b'Q' | INTERRUPT, ..] => Key::Quit,
        [b'?' | b'h' | b'H', ..] => Key::Help,
        _ => Key::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_mean_what_they_mean_elsewhere() {
        assert_eq!((meant(b"q"), meant(b"\x03"), meant(b"")), (Key::Quit, Key::Quit, Key::Quit));
        assert_eq!((meant(b"?"), meant(b"h")), (Key::Help, Key::Help));
        assert_eq!((meant(b"x"), meant(b"\x1b[A")), (Key::Other, Key::Other));
    }
}
