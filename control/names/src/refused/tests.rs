//! Each refusal names the step and says what to do, and is of the kind that its caller goes by.

use std::io::ErrorKind::{InvalidData, NotFound, PermissionDenied};

use super::*;

/// A refusal, the kind of its error, and its words.
type Case = (Refused, io::ErrorKind, &'static str);

/// Of steps that others could change.
fn of_steps() -> Vec<Case> {
    let step = || PathBuf::from("/srv/a");
    let image = Purpose::Image { user_folder: false };
    vec![
        (
            Refused::Os { step: step(), source: Errno::NOENT },
            NotFound,
            "/srv/a: No such file or directory (os error 2)",
        ),
        (
            Refused::Foreign { step: step(), uid: 7, purpose: image },
            PermissionDenied,
            "/srv/a belongs to user 7, who could put anything there: if the image is user 7's own, say \
             `allow_user_folder` for this disk; otherwise move it, or `chown root` the folder",
        ),
        (
            Refused::Foreign { step: step(), uid: 7, purpose: Purpose::Own },
            PermissionDenied,
            "/srv/a belongs to user 7, who could put anything there: `chown root` it, or name another folder",
        ),
        (
            Refused::InShared { step: step(), uid: 7 },
            PermissionDenied,
            "/srv/a belongs to user 7 and lies where every user may make names: move it to a folder that only \
             one user may write to",
        ),
        (
            Refused::Writable { step: step(), mode: 0o1777 },
            PermissionDenied,
            "/srv/a has mode 1777, so others than its owner can change what is in it: `chmod g-w,o-w` it",
        ),
    ]
}

/// Of what is there.
fn of_what_is_there() -> Vec<Case> {
    let step = || PathBuf::from("/srv/a");
    vec![
        (
            Refused::Link { step: step(), uid: 7 },
            PermissionDenied,
            "/srv/a is a link of user 7, or in a folder of that user, and is not followed: name what it leads to",
        ),
        (
            Refused::NotOwners { step: step(), uid: 8, owner: 7 },
            PermissionDenied,
            "/srv/a belongs to user 8, but lies in a folder of user 7: in there only what is user 7's own is \
             used; `chown` it, or move it",
        ),
        (
            Refused::SecondName { step: step() },
            PermissionDenied,
            "/srv/a has more than one name and lies where every user may make names: move it to a folder that \
             only one user may write to",
        ),
        (
            Refused::Kind { step: step(), is: "a FIFO", wanted: "a file" },
            InvalidData,
            "/srv/a is a FIFO, not a file",
        ),
        (
            Refused::Pseudo { step: step() },
            PermissionDenied,
            "/srv/a is in a file system of the kernel's own: name a file or block device",
        ),
        (
            Refused::NotMade { step: step(), owner: 7 },
            PermissionDenied,
            "/srv/a is missing, and nothing is made in a folder of user 7: have that user make it, with `truncate \
             -s SIZE`",
        ),
        (
            Refused::NoNew { step: step(), source: Errno::PERM },
            PermissionDenied,
            "/srv/a is missing, and its folder takes no new file: Operation not permitted (os error 1); let the \
             daemon's user write to that folder (`ls -ld`, `lsattr -d`), or name another one",
        ),
        (
            Refused::TooLong { step: step(), bytes_max: 9 },
            InvalidData,
            "/srv/a has more than 9 bytes: it is not what it should be",
        ),
        (Refused::NoText { step: step() }, InvalidData, "/srv/a is not UTF-8"),
    ]
}

#[test]
fn each_refusal_says_which_step_and_what_to_do() {
    for (refused, kind, text) in of_steps().into_iter().chain(of_what_is_there()) {
        assert_eq!(refused.to_string(), text);
        let is_missing = kind == NotFound;
        assert_eq!((refused.is_missing(), refused.errno().is_some()), (is_missing, is_missing));
        let error = io::Error::from(refused);
        assert_eq!((error.kind(), error.to_string().as_str()), (kind, text));
    }
}
