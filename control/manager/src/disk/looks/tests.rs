//! What could not be kept of a guest's image is tried again, and told until it is.

use std::time::Duration;

use crate::trial::Trial;
use crate::trial::vmm::{Vmm, WRITE};

const FILE: &str = "[[disk]]\nid = \"a\"\npath = \"{}/a.img\"\nsize = \"1M\"\n";

#[test]
fn what_could_not_be_kept_is_kept_as_soon_as_that_can_be() {
    let mut trial = Trial::of(FILE);
    let images = trial.path("state/images");
    std::fs::remove_dir(&images).expect("an empty folder");
    std::fs::write(&images, "a file in its place").expect("written");
    let mut vmm = Vmm::served(&mut trial, "a", 1);
    assert_eq!(vmm.does(&mut trial, WRITE, 0, 1), Some(0), "its guest is served all the same");
    let problem = trial.disk("a").problem.expect("it is told");
    assert!(problem.contains("cannot be kept: after a restart of the daemon"), "{problem}");
    trial.pass(Duration::from_secs(5));
    assert!(trial.disk("a").problem.is_some());
    std::fs::remove_file(&images).expect("removed");
    trial.pass(Duration::from_secs(2));
    assert_eq!(trial.disk("a").problem, None);
    assert!(images.join("a").exists());
}
