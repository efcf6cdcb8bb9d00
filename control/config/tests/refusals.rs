//! Every refusal of a file: exactly where, what, and what would be right.
//!
//! `refusals/*.txt` have the cases, each a title, a file and what is said of it: `-> line:column: place: what is wrong`,
//! and below what would be right. A case that is refused for more, or less, or otherwise fails.

use config::mistake::Located;
use config::plan::load;
use cpus::HostCpus;

/// One case: its title, the file, and what is said.
struct Case {
    title: String,
    text: String,
    said: String,
}

fn cases(all: &str) -> Vec<Case> {
    let case = |block: &str| {
        let (title, rest) = block.split_once('\n').expect("a title and a file");
        let at = rest.find("\n->").map_or(rest.len(), |at| at + 1);
        let (text, said) = rest.split_at(at);
        Case { title: title.to_string(), text: text.to_string(), said: said.to_string() }
    };
    all.split("## ").filter(|block| !block.is_empty()).map(case).collect()
}

/// What is said of a file.
fn refusal(text: &str) -> String {
    let host = HostCpus { online: vec![0, 1, 2, 3], auto: vec![3, 2, 1], auto_count: 1 };
    let Err(refusal) = load(text, "f", "/etc", &host, None) else { return "it is taken\n".into() };
    let line = |located: &Located| {
        let Located { line, column, mistake, .. } = located;
        format!("-> {line}:{column}: {mistake}\n   {}\n", mistake.right)
    };
    refusal.mistakes.iter().map(|kind| line(&kind.first)).collect()
}

fn check(file: &str, all: &str) {
    let cases = cases(all);
    assert!(!cases.is_empty());
    let wrong = cases.iter().filter(|case| refusal(&case.text) != case.said);
    let told = wrong.map(|case| format!("## {}\n{}{}", case.title, case.text, refusal(&case.text)));
    let told = told.collect::<String>();
    assert!(told.is_empty(), "of {file} it is said otherwise:\n{told}");
    let mut titles: Vec<&str> = cases.iter().map(|case| case.title.as_str()).collect();
    titles.sort_unstable();
    titles.dedup();
    assert_eq!(titles.len(), cases.len(), "a title of {file} is there twice");
}

#[test]
fn what_is_no_file_is_refused() {
    check("files.txt", include_str!("refusals/files.txt"));
}

#[test]
fn what_no_daemon_can_be_is_refused() {
    check("daemon.txt", include_str!("refusals/daemon.txt"));
}

#[test]
fn what_no_disk_can_be_is_refused() {
    check("disks.txt", include_str!("refusals/disks.txt"));
}

#[test]
fn what_no_nic_or_switch_can_be_is_refused() {
    check("nics.txt", include_str!("refusals/nics.txt"));
}

#[test]
fn what_no_link_can_be_is_refused() {
    check("links.txt", include_str!("refusals/links.txt"));
}
