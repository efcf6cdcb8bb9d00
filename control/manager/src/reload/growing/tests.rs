//! What is left is shared by all that grows and all that is added, or nothing is done.

use config::api::ErrorKind;

use super::super::check_file;
use crate::trial::{Trial, refused};

const TRACE: &str = "[[disk.stage]]\nkind = \"trace\"\nentries = 65536\n";
/// What that takes of a disk of two queues.
const TAKES: u64 = 2 * (65_536 * 64 + (32 << 10));

fn disk(id: &str, size: &str, more: &str) -> String {
    format!("[[disk]]\nid = \"{id}\"\nbackend = \"memory\"\nsize = \"{size}\"\nqueues = 2\n{more}")
}

fn both(first: &str, second: &str) -> String {
    format!("{}{}", disk("a", "1M", first), disk("b", "1M", second))
}

/// An answer of a reload, of one that only says what it would do, and of an upgrade.
fn refused_by_all(trial: &mut Trial, text: &str, words: &str) {
    let before = trial.rooms().plan.clone();
    let promised = trial.daemon.bounds().memory_bytes.promised;
    let said = [refused(trial.dry(text)), refused(trial.reload(text, true))];
    let heirs = refused(check_file(trial.rooms(), true));
    for (kind, why) in said.into_iter().chain([heirs]) {
        assert_eq!(kind, ErrorKind::Refused, "{why}");
        assert!(why.contains(words) && why.contains("KiB of memory"), "{why}");
    }
    assert_eq!(trial.rooms().plan, before, "nothing is changed");
    assert_eq!(trial.daemon.bounds().memory_bytes.promised, promised);
}

#[test]
fn traces_of_many_disks_are_promised_as_a_sum() {
    let mut trial = Trial::of(&both("", ""));
    let _others = trial.rooms().bounds.leave_memory(TAKES + TAKES / 2);
    refused_by_all(&mut trial, &both(TRACE, TRACE), "disk b: ");
    trial.reload(&both("", TRACE), false).expect("there is enough for one");
    assert_eq!(trial.rooms().bounds.view().memory_bytes.promised, promised_to_both() + TAKES);
    // What one gives back is not there before the other has it.
    refused_by_all(&mut trial, &both(TRACE, ""), "disk a: ");
    trial.reload(&both("", ""), false).expect("it needs less");
    trial.reload(&both(TRACE, ""), false).expect("there is enough for one");
}

#[test]
fn what_is_added_and_what_becomes_larger_is_of_the_same_sum() {
    let mut trial = Trial::of(&both("", ""));
    let _others = trial.rooms().bounds.leave_memory(TAKES + TAKES / 2);
    let added = disk("c", "6M", "");
    refused_by_all(&mut trial, &format!("{}{added}", both(TRACE, "")), "disk \"c\"");
    let larger = format!("{}{}", disk("a", "1M", TRACE), disk("b", "8M", ""));
    refused_by_all(&mut trial, &larger, "disk b: ");
    // The size of one that is set otherwise, too, is in that.
    let larger = format!("{}{}", disk("a", "8M", TRACE), disk("b", "1M", ""));
    refused_by_all(&mut trial, &larger, "disk a: ");
    trial.reload(&format!("{}{added}", both("", "")), false).expect("there is enough for it");
}

/// Two disks of 1 MiB and two queues.
fn promised_to_both() -> u64 {
    2 * ((1 << 20) + ((64 + 2 * 200) << 10))
}
