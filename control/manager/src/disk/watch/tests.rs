//! What operators are told of images that others change under a running guest.

use std::fs::File;
use std::time::Duration;

use config::api::Call;

use crate::trial::Trial;
use crate::trial::vmm::{Vmm, WRITE};

const MIB: u64 = 1 << 20;
const FILE: &str = "[[disk]]\nid = \"a\"\npath = \"{}/a.img\"\nsize = \"1M\"\n";

fn told(trial: &mut Trial) -> String {
    trial.pass(Duration::from_secs(3));
    trial.disk("a").problem.unwrap_or_default()
}

/// (what is done to it, what is told, what puts it right)
type Case = (&'static str, fn(&Trial), &'static str, fn(&Trial));

fn set_len(trial: &Trial, len: u64) {
    let image = File::options().write(true).open(trial.path("a.img")).expect("an image");
    image.set_len(len).expect("set");
}

fn rename(trial: &Trial, from: &str, to: &str) {
    std::fs::rename(trial.path(from), trial.path(to)).expect("renamed");
}

#[test]
fn what_becomes_of_an_image_is_told_within_seconds_and_when_it_is_over() {
    let cases: [Case; 4] = [
        (
            "removed",
            |it| rename(it, "a.img", "aside"),
            "was removed or renamed",
            |it| rename(it, "aside", "a.img"),
        ),
        (
            "replaced",
            |it| {
                rename(it, "a.img", "aside");
                std::fs::write(it.path("a.img"), vec![0; MIB as usize]).expect("another");
            },
            "is another image than the one that the disk is on",
            |it| rename(it, "aside", "a.img"),
        ),
        ("cut", |it| set_len(it, MIB / 2), "was cut to 512K", |it| set_len(it, MIB)),
        ("grown", |it| set_len(it, 3 * MIB), "has grown to 3M", |it| set_len(it, MIB)),
    ];
    let mut trial = Trial::of(FILE);
    let mut vmm = Vmm::served(&mut trial, "a", 1);
    assert_eq!(told(&mut trial), "");
    for (what, does, words, undoes) in cases {
        does(&trial);
        let told_of = told(&mut trial);
        assert!(told_of.contains(words), "{what}: {told_of}");
        assert!(!vmm.is_cut_off(&mut trial), "{what}: its guest goes on");
        undoes(&trial);
        assert_eq!(told(&mut trial), "", "{what}: it is right again");
    }
    assert_eq!(vmm.does(&mut trial, WRITE, 0, 1), Some(0));
}

#[test]
fn what_to_do_about_it_is_in_the_words() {
    let mut trial = Trial::of(FILE);
    let _vmm = Vmm::served(&mut trial, "a", 1);
    set_len(&trial, 2 * MIB + 700);
    assert!(told(&mut trial).ends_with("`sidecore disk resize a 2097664` gives it the rest"));
    std::fs::remove_file(trial.path("a.img")).expect("removed");
    let words = told(&mut trial);
    // What has no name is to be had by the daemon's descriptor alone.
    let at = words.find("/proc/").expect("how to save it");
    let path: String = words[at..].chars().take_while(|it| !it.is_whitespace()).collect();
    assert_eq!(std::fs::metadata(&path).expect("it is there").len(), 2 * MIB + 700, "{words}");
}

/// A file system that does not answer keeps a look, and nobody who asks.
#[test]
fn a_look_that_takes_long_holds_nobody_up() {
    let mut trial = Trial::of(FILE);
    let mut vmm = Vmm::served(&mut trial, "a", 1);
    trial.pass(Duration::from_secs(2));
    trial.slow(Duration::from_secs(60));
    trial.pass(Duration::from_secs(3));
    std::fs::remove_file(trial.path("a.img")).expect("removed");
    let began = trial.now();
    assert!(trial.ask(Call::ListDisks).is_ok());
    assert_eq!(trial.now().since(began), 0);
    assert_eq!(vmm.does(&mut trial, WRITE, 0, 1), Some(0));
    trial.pass(Duration::from_secs(20));
    assert_eq!(trial.disk("a").problem, None, "nobody has looked yet");
    trial.slow(Duration::ZERO);
    trial.pass(Duration::from_secs(60));
    assert!(trial.disk("a").problem.is_some());
}
