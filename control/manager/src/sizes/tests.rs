//! A size that the file names no more: the image's own, as the next start has it.

use config::api::{ActionView, Call, ErrorKind, ReloadView};

use crate::trial::vmm::{Vmm, WRITE};
use crate::trial::{Trial, refused};

const MIB: u64 = 1 << 20;

fn disk(size: &str) -> String {
    format!("[[disk]]\nid = \"a\"\npath = \"{{}}/a.img\"\n{size}")
}

/// A disk of the first of its image's two MiB, which became longer while it was served.
fn of_a_part() -> Trial {
    let trial = Trial::of(&disk("size = \"1M\"\n"));
    let image = std::fs::OpenOptions::new().write(true).open(trial.path("a.img"));
    image.and_then(|image| image.set_len(2 * MIB)).expect("a longer image");
    trial
}

#[test]
fn a_size_that_is_no_longer_named_becomes_the_image_s_own() {
    let mut trial = of_a_part();
    let mut vmm = Vmm::served(&mut trial, "a", 1);
    let effects = trial.dry(&disk("")).expect("it could be done");
    let told: Vec<_> = effects.iter().map(|it| (it.what.as_str(), it.action)).collect();
    assert_eq!(told, [("resize disk a to 2M", ActionView::Changed)]);
    assert!(effects.iter().all(|it| it.guest && !it.guest_loses), "{effects:?}");
    assert_eq!(trial.disk("a").size_bytes, Some(MIB), "a look changes nothing");
    let done = trial.reload(&disk(""), false).expect("it is done");
    assert_eq!(done.changes, ["resized disk a to 2M"]);
    assert_eq!(trial.disk("a").size_bytes, Some(2 * MIB));
    assert_eq!(vmm.does(&mut trial, WRITE, 4095, 1), Some(0), "its guest has all of it");
    // From then on that is nothing new.
    for _ in 0..2 {
        let again = trial.reload(&disk(""), false).expect("it is done");
        assert_eq!(again, ReloadView { file: again.file.clone(), ..ReloadView::default() });
    }
}

/// Its image has become shorter than what its guest has.
#[test]
fn an_image_s_own_size_that_takes_from_a_guest_is_refused_as_a_smaller_size_is() {
    let mut trial = Trial::of(&disk("size = \"2M\"\n"));
    Vmm::served(&mut trial, "a", 1);
    let mut vmm = Vmm::served(&mut trial, "a", 1);
    let image = std::fs::OpenOptions::new().write(true).open(trial.path("a.img"));
    image.and_then(|image| image.set_len(MIB)).expect("a shorter image");
    let (kind, why) = refused(trial.reload(&disk(""), false));
    assert_eq!(kind, ErrorKind::Conflict);
    let expected = "it would take from guests what they use: disk \"a\" (resize disk a to 1M)";
    assert!(why.starts_with(expected), "{why}");
    let (_, why) = refused(trial.ask(Call::Upgrade { force: false }));
    assert!(why.starts_with(&format!("the daemon was not replaced: {expected}")), "{why}");
    assert_eq!(trial.disk("a").size_bytes, Some(2 * MIB));
    assert_eq!(vmm.does(&mut trial, WRITE, 0, 1), Some(0));
}

/// An heir would serve it so, with a line in the log alone.
#[test]
fn an_upgrade_refuses_a_new_disk_that_does_not_fit_its_image_as_a_reload_does() {
    let mut trial = Trial::of(&disk(""));
    let image = std::fs::File::create(trial.path("b.img"));
    image.and_then(|image| image.set_len(4 * MIB)).expect("an image");
    let other = "[[disk]]\nid = \"b\"\npath = \"{}/b.img\"\nsize = \"1M\"\n";
    let both = format!("{}{other}", disk(""));
    let (kind, at_reload) = refused(trial.reload(&both, false));
    assert_eq!(kind, ErrorKind::Conflict);
    let (kind, why) = refused(trial.ask(Call::Upgrade { force: false }));
    assert_eq!(kind, ErrorKind::Conflict, "{why}");
    let expected = "the daemon was not replaced: disk \"b\" would have 1M, and its image has 4M; ";
    assert!(why.starts_with(expected), "{why}");
    assert!(why.contains("`--force`") && at_reload.contains("`--force`"), "{why} {at_reload}");
    // With another field that an heir alone puts into force, too.
    let sidecores = "[sidecores]\ncpus = \"0-1\"\nmin = 2\nurgency = \"off\"\n";
    trial.write(&format!("{sidecores}{both}"));
    let (_, why) = refused(trial.ask(Call::Upgrade { force: false }));
    assert!(why.starts_with(expected), "{why}");
    // Of an operator who insists it is not that which is in the way.
    let (_, why) = refused(trial.ask(Call::Upgrade { force: true }));
    assert!(!why.contains("would have"), "{why}");
}

/// One that is not open is opened as the file says then.
#[test]
fn a_disk_that_is_not_open_is_told_of_without_a_look() {
    let both = |more: &str| {
        let other = "[[disk]]\nid = \"m\"\nbackend = \"memory\"\nsize = \"1M\"\n";
        format!("{}{other}", disk(&format!("{more}readonly = true\n")))
    };
    let folder = Trial::of(&disk("size = \"2M\"\n")).die();
    std::fs::write(folder.path().join("a.img"), "short").expect("no image");
    let mut trial = Trial::start(&both("size = \"1M\"\n"), folder).expect("it starts");
    assert!(trial.disk("a").problem.is_some(), "{:?}", trial.disk("a"));
    let done = trial.reload(&both(""), false).expect("it is done");
    assert_eq!(done.changes, ["set disk a: size 1M becomes that of its image"]);
}
