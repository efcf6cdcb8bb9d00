//! Any name at all: it leads somewhere, or is refused, and never outside of where the kernel says that it leads.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use names::{
    Kept, Mounts, Purpose, Refused, SocketPlace, kernel_text, kind_of_image, open_image, real_name,
};
use proptest::prelude::*;
use rustix::fs::OFlags;

/// A folder with folders, files and links of all kinds in it.
fn site() -> tempfile::TempDir {
    let site = tempfile::tempdir().expect("a folder");
    let at = |name: &str| site.path().join(name);
    fs::create_dir_all(at("a/b")).expect("folders");
    for file in ["f", "a/f", "a/b/f"] {
        fs::write(at(file), file).expect("a file");
    }
    for (target, link) in [
        ("a", "to-a"),
        ("a/f", "to-f"),
        ("..", "a/up"),
        ("loop", "loop"),
        ("none", "dangling"),
        ("/", "a/root"),
        ("../to-a/b", "a/b/round"),
    ] {
        symlink(target, at(link)).expect("a link");
    }
    site
}

/// A path of such steps.
fn paths() -> impl Strategy<Value = String> {
    let steps =
        ["a", "b", "f", ".", "..", "", "to-a", "to-f", "up", "loop", "dangling", "round", "x"];
    proptest::collection::vec(proptest::sample::select(steps.to_vec()), 0..9)
        .prop_map(|steps| steps.join("/"))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// What is opened is what the kernel would open, had it looked alone; and what it would not open is refused.
    #[test]
    fn an_image_is_what_the_kernel_finds_by_that_name(path in paths()) {
        let site = site();
        // A file's folder is no folder: `f/..` leads nowhere, for us as for the kernel.
        let whole = PathBuf::from(format!("{}/{path}", site.path().display()));
        let opened = open_image(&whole, true, OFlags::RDONLY);
        let theirs = fs::canonicalize(&whole).ok().filter(|real| real.is_file());
        let real = |fd: &std::os::fd::OwnedFd| {
            let place = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(fd));
            fs::read_link(place).expect("a name")
        };
        match (&opened, &theirs) {
            (Ok(fd), Some(theirs)) => prop_assert_eq!(&real(fd), theirs),
            (Err(_), None) => {}
            // The walk takes a path by its steps: what ends with a slash is no file's for the kernel.
            (Ok(_), None) => prop_assert!(whole.as_os_str().to_string_lossy().ends_with(['/', '.'])),
            (Err(why), Some(theirs)) => prop_assert!(false, "{why}, and it is {}", theirs.display()),
        }
        prop_assert_eq!(kind_of_image(&whole, true).is_ok_and(|kind| kind.is_some()), opened.is_ok());
    }

    /// A socket has one name, however a file spells it, so that two spellings are one guest.
    #[test]
    fn a_name_is_the_same_however_it_is_spelled(path in paths()) {
        let site = site();
        let whole = site.path().join(path.trim_start_matches('/')).join("s.sock");
        let real = real_name(&whole);
        prop_assert_eq!(real_name(&real), real.clone(), "it is not the last word");
        if let Ok(folder) = fs::canonicalize(whole.parent().expect("a folder"))
            && folder.is_dir()
        {
            prop_assert_eq!(real, folder.join("s.sock"));
        }
    }

    /// Nobody is asked, and it always has an answer.
    #[test]
    fn every_path_is_answered_for_by_something(path in "[a-z./ -]{0,60}") {
        let mounts = Mounts::read();
        let medium = mounts.medium_of(Path::new(&path)).to_string();
        prop_assert!(medium.starts_with('/'), "{medium}");
    }

    /// Only what is in the kernel's folders is its word.
    #[test]
    fn a_text_of_the_kernels_is_in_its_own_folders(path in "(/(proc|sys|etc|tmp))?(/(self|\\.\\.|\\.|stat|hostname)){0,4}") {
        if kernel_text(&path).is_ok() {
            prop_assert!(path.starts_with("/proc/") || path.starts_with("/sys/"), "{path}");
            prop_assert!(!path.contains(".."), "{path}");
        }
    }
}

#[test]
fn links_that_lead_round_are_refused_and_not_followed_for_ever() {
    let site = site();
    let refused = open_image(&site.path().join("loop"), true, OFlags::RDONLY);
    assert!(
        matches!(refused, Err(Refused::Os { source: rustix::io::Errno::LOOP, .. })),
        "{refused:?}"
    );
    // A path of as many steps as nobody writes.
    let long = format!("{}{}", site.path().display(), "/a/..".repeat(4096));
    open_image(Path::new(&long), true, OFlags::RDONLY).expect_err("it has no end");
    assert_eq!(real_name(Path::new("/")), Path::new("/"));
}

#[test]
fn a_place_for_a_socket_is_made_with_its_folder_and_found_only_where_it_is() {
    let site = site();
    let path = site.path().join("run/vm/s.sock");
    SocketPlace::find(&path, Purpose::Socket).expect_err("its folder is not there");
    let place = SocketPlace::make(&path, Purpose::Socket).expect("made");
    assert!(site.path().join("run/vm").is_dir());
    assert_eq!(place.address(), path);
    assert!(place.taken().expect("looked at").is_none());
    place.remove().expect("nothing to remove");
    let listener = std::os::unix::net::UnixListener::bind(place.address()).expect("a socket");
    assert!(place.taken().expect("looked at").is_some());
    place.remove().expect("removed");
    assert!(!path.exists());
    drop(listener);
    // What is no socket is neither taken for one nor removed.
    fs::write(&path, "text").expect("a file");
    let why = place.remove().expect_err("it is no socket");
    assert!(why.to_string().ends_with("s.sock is a file, not a socket"), "{why}");
    assert!(path.exists());
    for path in ["/", "..", ""] {
        SocketPlace::make(Path::new(path), Purpose::Socket).expect_err(path);
    }
    // The folder stays the same one, whatever is renamed meanwhile.
    fs::remove_file(&path).expect("removed");
    fs::rename(site.path().join("run/vm"), site.path().join("run/other")).expect("renamed");
    let bound = std::os::unix::net::UnixListener::bind(site.path().join("run/other/s.sock"));
    let _bound = bound.expect("a socket");
    assert!(place.taken().expect("looked at").is_some());
    assert!(Kept::in_folder(site.path().join("run/vm"), 9).names().expect("none").is_empty());
}
