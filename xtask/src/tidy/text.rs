//! What must not stand in any text of the repository, code or not.

use crate::tidy::Finding;
use crate::tidy::code::has_word;
use crate::tidy::source::Source;

/// Homes of people and machines: a path below them exists nowhere else.
const HOMES: [&str; 4] = ["/home/", "/Users/", "/root/", "C:\\Users"];

/// Hosts that packages come from: they are set up once on a machine, not in a repository. Each in
/// two parts, because this file is text of the repository too.
const REGISTRIES: [(&str, &str); 8] = [
    ("index.crates", ".io"),
    ("static.crates", ".io"),
    ("crates.io", "-index"),
    ("registry.npmjs", ".org"),
    ("pypi", ".org"),
    ("files.pythonhosted", ".org"),
    ("proxy.golang", ".org"),
    ("deb.debian", ".org"),
];

/// Marks of work that is not finished.
const UNFINISHED: [&str; 7] =
    ["TODO", "FIXME", "XXX", "HACK", "Being built", "Being written", "not implemented yet"];

/// What starts a daemon, and where the harness does: there its user, its limits and its end are seen to.
const SERVES: (&str, &str) = ("\"ser", "ve\"");
const HARNESS: [&str; 3] = ["bench", "testing", "tests"];
const STARTS: &str = "testing/src/daemon.rs";

/// What a test says that leaves something out, where nobody would see it.
const SKIPS: (&str, &str) = ("println!(\"ski", "pped: ");

/// Written by cargo, with the registry's name in each entry.
const LOCK_FILE: &str = "Cargo.lock";

pub(crate) fn check(source: &Source) -> Vec<Finding> {
    if source.path.rsplit('/').next() == Some(LOCK_FILE) {
        return Vec::new();
    }
    let serves = format!("{}{}", SERVES.0, SERVES.1);
    let skips = format!("{}{}", SKIPS.0, SKIPS.1);
    let may_not_serve = source.is_rust() && source.is_in(&HARNESS) && !source.is_in(&[STARTS]);
    let mut findings = Vec::new();
    let mut add = |rule, number, message| findings.push(source.finding(rule, number, message));
    for (index, line) in source.text.lines().enumerate() {
        if let Some(home) = HOMES.iter().find(|home| names_home(line, home)) {
            let message = format!("`{home}`: a path of one machine; name it from the repository");
            add("machine-path", index + 1, message);
        }
        let mut hosts = REGISTRIES.iter().map(|(name, end)| format!("{name}{end}"));
        if let Some(host) = hosts.find(|host| line.contains(host)) {
            let message = format!("`{host}`: a package host; leave it to the machine's settings");
            add("registry-host", index + 1, message);
        }
        if may_not_serve && line.contains(&serves) {
            let message = format!(
                "`{serves}`: daemons of tests are started in {STARTS} alone: say how in its `Config`"
            );
            add("daemon", index + 1, message);
        }
        if source.is_rust() && line.contains(&skips) {
            let message = "libtest keeps what a test that passes prints: say it past the harness, as \
                           `testing::lacking::left_out` does";
            add("skip", index + 1, message.to_owned());
        }
        if let Some(mark) = UNFINISHED.iter().find(|mark| has_word(line, mark)) {
            let message =
                format!("`{mark}`: finish it, or write an issue and say what is true now");
            add("unfinished", index + 1, message);
        }
    }
    findings
}

/// Whether `home` starts a path; `/home/` within `a/home/b` does not.
fn names_home(line: &str, home: &str) -> bool {
    line.match_indices(home).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || "._-/}*)".contains(c))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(text: &str) -> Vec<String> {
        check(&Source::new("a.md", text)).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn paths_of_one_machine_are_found() {
        assert_eq!(
            messages("see\n/home/ann/x and"),
            ["a.md:2: `/home/`: a path of one machine; name it from the repository [machine-path]"]
        );
        assert_eq!(messages("../home/x, $HOME/home/y, https://a.org/home/z"), [""; 0]);
    }

    #[test]
    fn package_hosts_are_found() {
        let host = format!("{}{}", "pypi", ".org");
        let said = format!(
            "a.md:1: `{host}`: a package host; leave it to the machine's settings [registry-host]"
        );
        assert_eq!(messages(&format!("from https://{host}/x")), [said]);
        assert_eq!(check(&Source::new(LOCK_FILE, &format!("https://{host}/x"))), []);
    }

    #[test]
    fn a_daemon_is_started_in_one_place() {
        let text = format!("command.arg({}{});", SERVES.0, SERVES.1);
        let found = |path| check(&Source::new(path, &text));
        let said =
            found("tests/tests/durable/a.rs").iter().map(ToString::to_string).collect::<String>();
        assert!(said.contains("are started in testing/src/daemon.rs alone"), "{said}");
        assert_eq!(found(STARTS), []);
        assert_eq!(found("bin/sidecore/src/machine.rs"), []);
    }

    #[test]
    fn what_a_test_leaves_out_is_not_said_where_nobody_sees_it() {
        let text = format!("e{}{}{{why}}\");", SKIPS.0, SKIPS.1);
        let found = check(&Source::new("tests/tests/durable/a.rs", &text));
        let said = found.iter().map(ToString::to_string).collect::<String>();
        assert!(said.contains("say it past the harness"), "{said}");
        assert_eq!(check(&Source::new("a.md", &text)), []);
    }

    #[test]
    fn unfinished_work_is_found() {
        assert_eq!(
            messages("mktemp /tmp/a.XXXXXX\n# FIXME later"),
            ["a.md:2: `FIXME`: finish it, or write an issue and say what is true now [unfinished]"]
        );
    }
}
