//! The exemptions, all of them. Each has a reason; one that is no longer needed is a finding.

use crate::tidy::Finding;

/// One file that may break one rule.
struct Exemption {
    path: &'static str,
    rule: &'static str,
    #[expect(dead_code, reason = "for the reader: no exemption without a reason")]
    reason: &'static str,
}

const EXEMPTIONS: &[Exemption] = &[
    Exemption {
        path: "xtask/src/tidy/text.rs",
        rule: "machine-path",
        reason: "names what it looks for",
    },
    Exemption {
        path: "xtask/src/tidy/text.rs",
        rule: "unfinished",
        reason: "names what it looks for",
    },
    Exemption {
        path: "data/sidecore/src/alarm.rs",
        rule: "unsafe",
        reason: "a timer that signals one thread, and a handler that does nothing",
    },
    Exemption {
        path: "control/vduse/src/sys.rs",
        rule: "unsafe",
        reason: "the ioctls of VDUSE, which have no safe form",
    },
    Exemption {
        path: "data/runstate/src/mapping.rs",
        rule: "unsafe",
        reason: "the memory of a map of the kernel's, which has no safe form",
    },
    Exemption {
        path: "host/bpf/src/sys.rs",
        rule: "unsafe",
        reason: "bpf(2) and perf_event_open(2), which have no safe form",
    },
    Exemption {
        path: "lab/src/guest/flight.rs",
        rule: "unsafe",
        reason: "io_uring takes addresses of memory that must stay",
    },
    Exemption {
        path: "tests/src/blkio_client.rs",
        rule: "unsafe",
        reason: "libblkio hands out completions as uninitialised places that it has filled",
    },
    Exemption {
        path: "control/manager/src/upgrade.rs",
        rule: "names",
        reason: "/dev/null, which is nobody's to change",
    },
    Exemption {
        path: "control/manager/src/upgrade/heir.rs",
        rule: "names",
        reason: "/dev/null, which is nobody's to change",
    },
    Exemption {
        path: "host/confine/src/files.rs",
        rule: "names",
        reason: "opens nothing: where links lead, to say why landlock refuses it",
    },
    Exemption {
        path: "control/vduse/src/create.rs",
        rule: "names",
        reason: "devices of the kernel in /dev and /sys, by a client that its user starts",
    },
    Exemption {
        path: "control/vduse/src/spec.rs",
        rule: "names",
        reason: "in the folder of a client, which its user starts and names",
    },
    Exemption {
        path: "control/vduse/src/device.rs",
        rule: "names",
        reason: "in the folder of a client, which its user starts and names",
    },
    Exemption {
        path: "bin/sidecore/src/overview.rs",
        rule: "sleep",
        reason: "what it waits for is time: the share of it that was busy, between two looks",
    },
];

/// Takes out what is exempt; returns a finding for each exemption that nothing needed.
pub(crate) fn apply(findings: &mut Vec<Finding>) -> Vec<Finding> {
    apply_table(EXEMPTIONS, findings)
}

fn apply_table(table: &[Exemption], findings: &mut Vec<Finding>) -> Vec<Finding> {
    let mut needless = Vec::new();
    for exemption in table {
        let before = findings.len();
        findings.retain(|f| !(f.path == exemption.path && f.rule == exemption.rule));
        if findings.len() == before {
            needless.push(Finding {
                path: exemption.path.to_owned(),
                line: 1,
                rule: "exemption",
                message: format!(
                    "exempt from `{}` without need: take the line out of xtask/src/tidy/exempt.rs",
                    exemption.rule
                ),
            });
        }
    }
    needless
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exemption_that_nothing_needs_is_found() {
        let exemption = |rule| Exemption { path: "a.rs", rule, reason: "a test" };
        let finding = |path: &str, rule| {
            let (path, message) = (path.to_owned(), String::new());
            Finding { path, line: 9, rule, message }
        };
        let mut findings =
            vec![finding("a.rs", "clock"), finding("a.rs", "sleep"), finding("b.rs", "clock")];
        let needless = apply_table(&[exemption("clock"), exemption("lock")], &mut findings);
        assert_eq!(findings, [finding("a.rs", "sleep"), finding("b.rs", "clock")]);
        let needless: Vec<String> = needless.iter().map(ToString::to_string).collect();
        assert_eq!(
            needless,
            ["a.rs:1: exempt from `lock` without need: take the line out of \
              xtask/src/tidy/exempt.rs [exemption]"]
        );
    }
}
