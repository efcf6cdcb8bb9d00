//! Every example of every help and of the manual, typed at a daemon that runs.
//!
//! Before each there is what its names say: a few disks and NICs, a switch, a group. Paths of the host are paths in the
//! test's folder.

use std::io::{Read, Write};
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;

use crate::harness::{Daemon, PROGRAM, json, run};
use crate::helps::{Leaf, leaves, typed};

/// What is not typed here, and what shows that it works.
const ELSEWHERE: [(&str, &str); 6] = [
    ("sidecore upgrade", "recover/upgrade: the daemon of a test must not leave its process"),
    ("sidecore client ", "remote/client: it takes a kernel with VDUSE"),
    ("sidecore exits ", "guest/exits: it takes a VM of KVM"),
    ("sidecore serve --config sidecore.toml", "it is how each daemon of these tests is started"),
    ("sidecore serve --config /etc/sidecore/sidecore.toml", "likewise"),
    ("SIDECORE_LOG=debug sidecore serve", "likewise"),
];
/// What a daemon may refuse for what the machine lacks or no guest does here, and a word of what it says then.
const MAY_BE_REFUSED: [(&str, &str); 12] = [
    ("sidecore disk move", "there is nothing to move"),
    ("sidecore disk move vm1-root --to 1", "there is no sidecore 1"),
    ("sidecore nic move vm1-net --to 1", "there is no sidecore 1"),
    ("sidecore disk clear vm1-root", "nothing to clear"),
    ("sidecore disk accept vm1-root", "nothing to accept"),
    ("sidecore disk add vm1-data --path /dev/vg0/vm1", "cannot open /dev/vg0/vm1"),
    ("sidecore disk add", "file system"),
    ("sidecore disk resize", "file system"),
    ("sidecore nic add vm2-net --tap", "sc-t1"),
    ("sidecore nic add vm3-net --interface", "sc-none"),
    ("sidecore switch add lan --uplink", "sc-"),
    ("sidecore doctor --vmm", "root"),
];
/// What the manual's host has, and what that is here: nothing of this host's is opened.
const PLACES: [(&str, &str); 11] = [
    ("serve --check", "serve --check --config FOLDER/sidecore.toml"),
    ("/etc/sidecore/", "FOLDER/"),
    ("/srv/", "FOLDER/"),
    ("/usr/local/share/man/man1", "FOLDER/man1"),
    ("--vmm libvirt-qemu", "--vmm nobody"),
    ("--vmm vm1", "--vmm nobody"),
    ("tap=lan0", "tap=sc-t0"),
    ("--tap vm2", "--tap sc-t1"),
    ("tap=mgmt", "tap=sc-t2"),
    ("interface=eth1", "interface=sc-none"),
    ("--interface eth1", "--interface sc-none"),
];
/// Words of commands after which all is made anew for the next example.
const CHANGING: [&str; 9] =
    ["add", "rm", "set", "resize", "move", "link", "clear", "accept", "reload"];
/// A stage of these disks, but where an example adds one.
const STAGE: &str = r#", "stage": [{"kind": "trace"}]"#;
const STAGED: [&str; 2] = ["vm1-root", "vm2-root"];
/// What is there before each example: the kind, its name, and the rest of what makes it.
const THERE: [(&str, &str, &str); 8] = [
    ("switches", "lan", ""),
    ("switches", "big", ""),
    ("groups", "tenant1", ""),
    ("disks", "vm1-root", r#", "path": "FOLDER/vm1-root.img", "size": "1M""#),
    ("disks", "vm1-data", r#", "path": "FOLDER/vm1-data.img", "size": "1M", "queues": 4"#),
    ("disks", "vm2-root", r#", "path": "FOLDER/vm2-root.img", "size": "4G""#),
    ("nics", "vm1-net", r#", "switch": "lan""#),
    ("nics", "vm2-net", r#", "switch": "lan""#),
];

#[test]
fn each_example_works_at_a_daemon_that_runs() {
    let daemon = Daemon::start("");
    let bed = Bed::new(&daemon);
    let leaves = leaves();
    let of_helps = leaves.iter().flat_map(Leaf::examples);
    let manual = of_the_manual();
    assert!(manual.len() > 20, "the manual's fences are no longer found: {manual:?}");
    let mut used = [false; ELSEWHERE.len() + MAY_BE_REFUSED.len()];
    let (mut wrong, mut is_as_made) = (Vec::new(), false);
    for example in of_helps.chain(manual) {
        let elsewhere = |(start, _): &(&str, &str)| match start.ends_with(' ') {
            true => example.starts_with(start),
            false => example.split(" && ").last() == Some(*start) || example == *start,
        };
        if let Some(at) = ELSEWHERE.iter().position(elsewhere) {
            used[at] = true;
            continue;
        }
        let changes = example.split(' ').any(|word| CHANGING.contains(&word));
        if changes || !is_as_made {
            bed.set_up(&example);
        }
        is_as_made = !changes;
        let (code, out, error) = bed.types(&example);
        if code == 0 {
            continue;
        }
        let refused = |(start, word): &(&str, &str)| {
            example.starts_with(start) && (error.contains(word) || out.contains(word))
        };
        match MAY_BE_REFUSED.iter().position(refused) {
            Some(at) => used[ELSEWHERE.len() + at] = true,
            None => wrong.push(format!("{example}: {code}\n{out}{error}")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let idle: Vec<_> = ELSEWHERE.iter().zip(used).filter(|(_, used)| !used).collect();
    assert!(idle.is_empty(), "no example is that: {idle:?}");
}

/// Lines of the manual's fences that are commands.
fn of_the_manual() -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut pages = vec![root.join("README.md")];
    let docs = std::fs::read_dir(root.join("docs")).unwrap();
    pages.extend(docs.map(|page| page.unwrap().path()));
    pages.sort();
    let mut lines = Vec::new();
    for page in pages.iter().filter(|page| page.extension().is_some_and(|end| end == "md")) {
        let text = std::fs::read_to_string(page).unwrap();
        let mut is_code = false;
        for line in text.lines() {
            is_code ^= line.starts_with("```");
            let line = line.trim_start_matches("sudo ");
            if is_code && line.starts_with("sidecore ") {
                lines.push(typed(line));
            }
        }
    }
    lines
}

/// A folder in which `sidecore` is the program, and its daemon.
struct Bed<'a> {
    daemon: &'a Daemon,
}

impl Bed<'_> {
    fn new(daemon: &Daemon) -> Bed<'_> {
        let folder = daemon.folder.path();
        std::fs::create_dir(folder.join("bin")).unwrap();
        symlink(PROGRAM, folder.join("bin/sidecore")).unwrap();
        for image in ["vm1.img", "golden.img"] {
            std::fs::write(folder.join(image), [0; 1 << 16]).unwrap();
        }
        Bed { daemon }
    }

    /// There is what the names of an example are, but for what it makes; nothing is in the way of what it removes.
    fn set_up(&self, example: &str) {
        for kind in ["disks", "nics", "groups", "switches"] {
            let list = self.asks("GET", kind, "");
            for one in list[kind].as_array().unwrap() {
                let path = format!("{kind}/{}?force=true", one["id"].as_str().unwrap());
                let path = if kind.starts_with(['g', 's']) {
                    path.replace("?force=true", "")
                } else {
                    path
                };
                assert!(self.asks("DELETE", &path, "")["error"].is_null(), "{path}");
            }
        }
        let words: Vec<&str> = example.split(' ').collect();
        let (kind, verb, id) = match words[..] {
            ["sidecore", kind, verb @ ("add" | "rm"), id, ..] => (kind, verb, id),
            _ => ("", "", ""),
        };
        for (kinds, name, rest) in THERE {
            let is_itself = !kind.is_empty() && kinds.starts_with(kind) && name == id;
            let is_on_it = kind == "switch" && rest.contains(&format!("\"switch\": \"{id}\""));
            if is_on_it || (is_itself && verb == "add") {
                continue;
            }
            let mut rest = rest.replace("FOLDER", self.place());
            if STAGED.contains(&name) && !example.contains("stage add") {
                rest += STAGE;
            }
            // An example before may have made its image longer.
            let path = if kinds == "disks" { "disks?force=true" } else { kinds };
            let made = self.asks("POST", path, &format!("{{\"id\": \"{name}\"{rest}}}"));
            assert_eq!(made["id"], name, "{made}");
        }
    }

    fn place(&self) -> &str {
        self.daemon.folder.path().to_str().unwrap()
    }

    /// Asks the API itself: there are some thousand calls.
    fn asks(&self, method: &str, path: &str, body: &str) -> serde_json::Value {
        let mut api = UnixStream::connect(self.daemon.folder.path().join("run/api.sock")).unwrap();
        let length = body.len();
        let head =
            format!("{method} /v1/{path} HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n");
        let asked =
            format!("{head}Content-Type: application/json\r\nConnection: close\r\n\r\n{body}");
        api.write_all(asked.as_bytes()).unwrap();
        let mut answer = String::new();
        api.read_to_string(&mut answer).unwrap();
        json(answer.split_once("\r\n\r\n").unwrap().1)
    }

    /// What a shell makes of a line.
    fn types(&self, example: &str) -> (i32, String, String) {
        let here = PLACES.iter().fold(example.to_string(), |line, (there, here)| {
            line.replace(there, &here.replace("FOLDER", self.place()))
        });
        let here = match here.contains("--for ") {
            true => here.replace("--for 60s", "--for 100ms"),
            // It goes on until it is told to end.
            false => here.replace("disk trace ", "disk trace --for 100ms "),
        };
        let mut line = here.split(" > ").next().unwrap().trim_start_matches("sudo ");
        let has_jq = Command::new("jq").arg("--version").output().is_ok();
        if line.contains("| jq") && !has_jq {
            // Past the harness, in one piece; `./x test` counts it.
            let why = format!("skipped: jq is not installed, which an example pipes to: {line}\n");
            std::io::stderr().write_all(why.as_bytes()).unwrap();
            line = line.split(" | jq").next().unwrap();
        }
        let folder = self.daemon.folder.path();
        let path = format!("{}/bin:{}", self.place(), std::env::var("PATH").unwrap_or_default());
        let mut shell = Command::new("bash");
        shell.args(["-o", "pipefail", "-c", line]).current_dir(folder);
        run(shell.env("PATH", path).env("SIDECORE_API", folder.join("run/api.sock")))
    }
}
