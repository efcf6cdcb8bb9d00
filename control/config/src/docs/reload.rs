//! What a reload does with each field of the file that is different: a column of `docs/config.md`.
//!
//! What really happens is `diff`'s to say; a test here holds the two together. Called by `docs`.

use crate::spec::told::Told;
use crate::spec::{DiskSpec, NicSpec};

/// What a changed field takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AtReload {
    /// It holds at once, and nobody is disturbed.
    InPlace,
    /// The device is removed and made anew.
    Anew,
    /// The daemon has to be started again, or another process to take over.
    Restart,
    /// The daemon has to be started again.
    RestartOnly,
}

impl AtReload {
    /// As the column has it.
    pub(super) fn word(self) -> &'static str {
        match self {
            AtReload::InPlace => "in place",
            AtReload::Anew => "anew",
            AtReload::Restart => "restart",
            AtReload::RestartOnly => "restart only",
        }
    }
}

/// What the column means.
pub(super) const MEANING: &str = "What `sidecore reload` does with a field that is different: *in place*: it \
    holds at once, and what runs goes on; *anew*: the disk, NIC, switch, group or uplink is removed and made \
    anew, so that a guest sees its device go; *restart*: the file is accepted, the command and the log name \
    the field, and it holds from the next `sidecore upgrade`, or when the daemon is started again; *restart only*: \
    the same, but `sidecore upgrade` refuses it, except an `api_read` where there was none.";

/// What a field of the table below `header` takes.
pub(super) fn at_reload(header: &str, field: &str) -> AtReload {
    match (header, field) {
        ("[[link]]", "client") | ("[[link.client]]", _) => AtReload::InPlace,
        (
            "[daemon]",
            "api_owner" | "api_group" | "api_mode" | "api_read_owner" | "api_read_group"
            | "api_read_mode" | "socket_owner" | "socket_group" | "socket_mode",
        ) => AtReload::InPlace,
        ("[daemon]", "api" | "api_read" | "state_dir") => AtReload::RestartOnly,
        ("[daemon]" | "[[link]]", _) => AtReload::Restart,
        ("[sidecores]", "policy" | "es2" | "elvis") => AtReload::InPlace,
        ("[sidecores]", _) => AtReload::Restart,
        (_, "id") => AtReload::Anew,
        ("[[disk]]", field) if DiskSpec::ANEW.contains(&field) => AtReload::Anew,
        ("[[nic]]", field) if NicSpec::ANEW.contains(&field) => AtReload::Anew,
        ("[[switch.uplink]]", "tap" | "interface" | "via" | "remote") => AtReload::Anew,
        _ => AtReload::InPlace,
    }
}

#[cfg(test)]
mod tests {
    use schemars::{JsonSchema, schema_for};

    use super::*;
    use crate::api::upgrade_refuses;
    use crate::diff::{Difference, diff};
    use crate::plan::{Plan, load};
    use crate::spec::{DaemonSpec, SidecoresSpec};
    use cpus::HostCpus;

    fn plan(text: &str, running: Option<&Plan>) -> Plan {
        let host = HostCpus { online: vec![0, 1], auto: vec![1], auto_count: 1 };
        load(text, "f", "/etc", &host, running)
            .unwrap_or_else(|refusal| panic!("{text}: {refusal}"))
    }

    /// What `diff` makes of one table with one field more.
    fn found(before: &str, after: &str) -> AtReload {
        let running = plan(before, None);
        let wanted = plan(after, Some(&running));
        assert_ne!(running, wanted, "{after}");
        let Difference { changes, restart_needed } = diff(&running, &wanted);
        let is_anew = changes.iter().any(|change| change.to_string().starts_with("removed"));
        // What nobody is told of was forgotten.
        assert!(!changes.is_empty() || !restart_needed.is_empty(), "no change: {after}");
        match (restart_needed.is_empty(), is_anew) {
            (false, _) if restart_needed.iter().all(|field| upgrade_refuses(field)) => {
                AtReload::RestartOnly
            }
            (false, _) => AtReload::Restart,
            (true, true) => AtReload::Anew,
            (true, false) => AtReload::InPlace,
        }
    }

    /// Each field of a table has its word, but for `others`, which do not go with `base`. `lines` are what
    /// `base`, which ends in the table, lacks or has otherwise.
    fn check<T: JsonSchema>(header: &str, base: &str, lines: &[&str], others: &[&str]) {
        let schema = schema_for!(T).to_value();
        let names = schema["properties"].as_object().into_iter().flatten().map(|(name, _)| name);
        for field in names.filter(|name| !others.contains(&name.as_str())) {
            let is_of = |line: &&&str| line.split([' ', '.']).next() == Some(field);
            let line = lines.iter().find(is_of).unwrap_or_else(|| panic!("no line for {field}"));
            let kept = base.lines().filter(|old| old.split(' ').next() != Some(field));
            let after = kept.collect::<Vec<_>>().join("\n") + "\n" + line;
            assert_eq!(at_reload(header, field), found(base, &after), "{header} {field}");
            // The same of one that is taken out of the file, or has its earlier value again.
            assert_eq!(at_reload(header, field), found(&after, base), "{header} {field}, back");
        }
    }

    #[test]
    fn the_column_says_what_the_difference_does() {
        let lines = [
            "api = \"/a\"",
            "run_dir = \"/b\"",
            "state_dir = \"/c\"",
            "image_folders = [\"/d\"]",
            "api_owner = \"u\"",
            "api_group = \"g\"",
            "api_mode = \"0660\"",
            "api_read = \"/s\"",
            "api_read_owner = \"u\"",
            "api_read_group = \"g\"",
            "api_read_mode = \"0666\"",
            "socket_owner = \"u\"",
            "socket_group = \"g\"",
            "socket_mode = \"0660\"",
        ];
        let base = "disk=[{ id = \"a\", path = \"/d/a\" }]\n[daemon]\napi_read = \"/r\"\n";
        check::<DaemonSpec>("[daemon]", base, &lines, &[]);
        let lines = [
            "cpus = \"0\"",
            "min = 2",
            "max = 1",
            "policy = \"poll\"",
            "es2.quota_disk = 7",
            "elvis.rate_in = 20000",
            "urgency = \"off\"",
        ];
        let base = "disk=[{ id = \"a\", path = \"/a\" }, { id = \"b\", path = \"/b\", policy = \"elvis\" }]\n\
                    [sidecores]\ncpus = \"0-1\"\npolicy = \"es2\"\n";
        check::<SidecoresSpec>("[sidecores]", base, &lines, &[]);
    }

    /// Lines that disks and NICs have alike.
    const ALIKE: [&str; 15] = [
        "id = \"b\"",
        "socket = \"/s\"",
        "mode = \"connect\"",
        "socket_owner = \"u\"",
        "socket_group = \"g\"",
        "socket_mode = \"0660\"",
        "queues = 2",
        "share = 7",
        "policy = \"poll\"",
        "latency_target_us = 50",
        "moderate_us = 50",
        "limit_bytes = \"2M\"",
        "limit_burst_ms = 9",
        "group = \"g\"",
        "allow_unsealed_memory = true",
    ];

    #[test]
    fn the_column_says_what_the_difference_does_to_disks_and_nics() {
        let base = "group=[{ id = \"g\" }]\n[[disk]]\nid = \"a\"\npath = \"/a\"\n\
                    limit_bytes = \"1M\"\nlimit_iops = 9\n";
        let lines = [
            "path = \"/b\"",
            "cache = \"page\"",
            "allow_user_folder = true",
            "size = \"1M\"",
            "readonly = true",
            "serial = \"S\"",
            "limit_iops = 7",
            "block_size = 4096",
            "drain_timeout = 9",
            "on_full = \"error\"",
            "on_error = \"wait\"",
            "migratable = true",
            "format = \"raw\"",
            "stage = [{ kind = \"trace\" }]",
        ];
        let lines = [&lines[..], &ALIKE].concat();
        check::<DiskSpec>("[[disk]]", base, &lines, &["backend", "link", "remote"]);
        let base = "group=[{ id = \"g\" }]\nswitch=[{ id = \"s\" }, { id = \"t\" }]\n[[nic]]\n\
                    id = \"a\"\nswitch = \"s\"\ntrunk = [3]\nlimit_bytes = \"1M\"\n\
                    limit_packets = 9\n";
        let lines = [
            "switch = \"t\"",
            "mac = \"02:00:00:00:00:01\"",
            "trunk = [4]",
            "native = 9",
            "macs_max = 7",
            "spoof = \"deny\"",
            "redirect = \"always\"",
            "vcpus = [0]",
            "qmp = \"/q\"",
            "mtu = 9000",
            "guest_offloads = false",
            "link = \"down\"",
            "limit_packets = 7",
        ];
        let lines = [&lines[..], &ALIKE].concat();
        let others =
            ["vlan", "tap", "interface", "via", "by_link", "remote", "null", "size", "rate"];
        check::<NicSpec>("[[nic]]", base, &lines, &others);
    }
}
