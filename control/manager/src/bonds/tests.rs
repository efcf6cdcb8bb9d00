//! What is kept of images, and what cannot be read.

use super::*;

fn of_state(folder: &Path) -> Bonds {
    Bonds::in_folder(folder.to_str().expect("text"))
}

fn image(name: &str) -> Image {
    let text = format!(
        r#"{{"name":"{name}","boot":"b","bytes":512,"what":{{"kind":"file","device":[8,1],"inode":7}}}}"#
    );
    serde_json::from_str(&text).expect("an image")
}

fn none(_: &str) -> bool {
    false
}

#[test]
fn what_is_kept_is_found_by_the_next_daemon() {
    let folder = tempfile::tempdir().expect("a folder");
    let bonds = of_state(folder.path());
    assert_eq!(bonds.of("vm1"), Remembered::Nothing);
    bonds.keep("vm1", &image("/a"), none).expect("kept");
    bonds.keep("vm1.new", &image("/b"), none).expect("kept");
    let again = of_state(folder.path());
    assert_eq!(again.of("vm1"), Remembered::Image(image("/a")));
    assert_eq!(again.of("vm1.new"), Remembered::Image(image("/b")));
    again.forget("vm1").expect("forgotten");
    again.forget("vm1").expect("nothing to forget");
    assert_eq!(again.of("vm1"), Remembered::Nothing);
}

#[test]
fn what_cannot_be_read_is_not_taken_for_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let bonds = of_state(folder.path());
    bonds.keep("vm1", &image("/a"), none).expect("kept");
    let path = folder.path().join("images/vm1");
    let text = std::fs::read_to_string(&path).expect("text");
    for damaged in [
        String::new(),
        text[..text.len() / 2].to_string(),
        text.replace("\"version\":1", "\"version\":2"),
        text.replace(FORMAT, "sidecore-state"),
        "x".repeat(1 << 20),
    ] {
        std::fs::write(&path, &damaged).expect("written");
        let found = bonds.of("vm1");
        assert!(matches!(found, Remembered::Unreadable(_)), "{found:?}");
        let bond = Bond::new(None, found);
        assert!(matches!(bond.judge("vm1", 0, true), Verdict::Other(_)), "a running driver");
        assert_eq!(bond.judge("vm1", 0, false), Verdict::Remember);
    }
}

#[test]
fn only_so_many_are_kept_and_of_those_that_are_there_all() {
    let folder = tempfile::tempdir().expect("a folder");
    let bonds = of_state(folder.path());
    let images = folder.path().join("images");
    std::fs::create_dir_all(&images).expect("a folder");
    for number in 0..FILES_MAX {
        std::fs::write(images.join(format!("d{number}")), "").expect("written");
    }
    bonds.keep("vm1", &image("/a"), |id| id != "d77").expect("kept");
    assert_eq!(std::fs::read_dir(&images).expect("entries").count(), FILES_MAX);
    assert_eq!(bonds.of("vm1"), Remembered::Image(image("/a")));
    assert_eq!(bonds.of("d77"), Remembered::Nothing);
}

#[test]
fn the_state_of_a_daemon_that_remembered_nothing_is_told_from_a_new_one() {
    let folder = tempfile::tempdir().expect("a folder");
    assert!(!of_state(folder.path()).may_have_missed(true), "there is nothing yet");
    std::fs::write(folder.path().join("disks.json"), "").expect("written");
    let mut bonds = of_state(folder.path());
    assert!(bonds.may_have_missed(false) && bonds.may_have_missed(true));
    bonds.begin();
    assert!(!bonds.may_have_missed(false), "a disk that is added later");
    assert!(bonds.may_have_missed(true), "one that others had until now");
    assert!(!of_state(folder.path()).may_have_missed(true), "the next daemon");
}
