//! What an upgrade says of the file: what a reload of the same file says, and what it does besides.

use config::api::TakenFileView;

use super::check_file;
use crate::trial::Trial;

const GROUP: &str = "[[group]]\nid = \"g\"\n";

fn memory(id: &str, more: &str) -> String {
    format!("[[disk]]\nid = \"{id}\"\nbackend = \"memory\"\nsize = \"1M\"\n{more}")
}

fn file(id: &str, more: &str) -> String {
    format!("[[disk]]\nid = \"{id}\"\npath = \"{{}}/{id}.img\"\n{more}")
}

fn taken(trial: &mut Trial, text: &str) -> TakenFileView {
    trial.write(text);
    check_file(trial.rooms(), false).expect("an heir may have it")
}

#[test]
fn an_upgrade_says_what_a_reload_of_the_same_file_says() {
    let before = [memory("a", "limit_iops = 9\ngroup = \"g\"\n"), file("b", "size = \"1M\"\n")];
    let before = format!("{GROUP}limit_iops = 7\n{}{}", before[0], before[1]);
    let after = format!("{GROUP}{}{}", memory("a", ""), memory("c", ""));
    let mut trial = Trial::of(&before);
    assert_eq!(taken(&mut trial, &before).changes, [""; 0]);
    let heirs = taken(&mut trial, &after);
    assert_eq!(trial.disk("a").service.limit_iops, Some(9), "nothing is done before");
    let done = trial.reload(&after, false).expect("it is done");
    assert_eq!((&heirs.changes, heirs.put_into_force.len()), (&done.changes, 0));
    assert_eq!(
        heirs.changes,
        [
            "removed disk b",
            "set group g: limit_iops 7 becomes no limit",
            "set disk a: limit_iops 9 becomes no limit, group g becomes none",
            "added disk c",
        ]
    );
}

#[test]
fn what_an_upgrade_alone_puts_into_force_is_told_and_what_it_takes_in_place_is_set() {
    let before = file("b", "size = \"1M\"\n");
    let mut trial = Trial::of(&before);
    trial.write(&file("b", "allow_user_folder = true\nsize = \"1M\"\n"));
    let whole = trial.file().replacen("[sidecores]\n", "[sidecores]\nurgency = \"off\"\n", 1);
    trial.write_whole(whole);
    let heirs = check_file(trial.rooms(), false).expect("an heir may have it");
    assert_eq!(heirs.not_compared, None);
    assert_eq!(heirs.changes, ["set disk b: allow_user_folder \"false\" becomes \"true\""]);
    assert_eq!(heirs.put_into_force, ["sidecores.urgency"]);
    // A word that this program does not know may be the new one's.
    let heirs = taken(&mut trial, &file("b", "not_yet = 1\n"));
    let why = heirs.not_compared.expect("it says so");
    assert!(why.contains("not_yet"), "{why}");
    assert_eq!(heirs.changes, [""; 0]);
}
