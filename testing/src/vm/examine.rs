//! What is looked at when a guest does not do what it should: its processors, its console, and what the daemons
//! have of its disks.

use std::fmt::Write;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use super::Vm;
use crate::daemon::sidecore_binary;

/// Lines of a console that are shown.
const LINES: usize = 15;

impl Vm {
    /// Everything, as text.
    pub(super) fn examined(&self) -> String {
        let mut text = self.processors();
        for socket in self.boot.disks() {
            let _ = write!(text, "\n  {}", under_way(socket));
        }
        format!("{text}\n{}", self.last_words())
    }

    /// The state of each vCPU, by QEMU's monitor.
    fn processors(&self) -> String {
        let Ok(mut monitor) = self.monitor() else { return "QEMU's monitor is silent".to_string() };
        let status = monitor.ask("query-status", &json!({}));
        let registers =
            monitor.ask("human-monitor-command", &json!({ "command-line": "info registers -a" }));
        let words = |value: Value| value.as_str().map(picked).unwrap_or_default();
        let state = status.ok().and_then(|status| status["status"].as_str().map(String::from));
        format!("{} {}", state.unwrap_or_default(), registers.map(words).unwrap_or_default())
    }

    /// The end of its console, and of what QEMU said.
    pub(super) fn last_words(&self) -> String {
        let qemu = std::fs::read_to_string(self.file("qemu")).unwrap_or_default();
        let console = self.line().console();
        format!("its console:\n{}\nQEMU:\n{}", last_lines(&console), last_lines(&qemu))
    }
}

/// Which instruction each vCPU is at, whether interrupts are on and whether it waits for one.
fn picked(registers: &str) -> String {
    let is_wanted = |word: &&str| {
        ["CPU#", "RIP=", "EIP=", "RFL=", "EFL=", "HLT="].iter().any(|name| word.starts_with(name))
    };
    registers.split_whitespace().filter(is_wanted).collect::<Vec<_>>().join(" ")
}

/// What the daemon at that socket's folder says of its disk: its state, counters, and requests under way.
fn under_way(socket: &Path) -> String {
    let id = socket.file_stem().unwrap_or_default().to_string_lossy();
    let api = socket.with_file_name("api.sock");
    let Ok(binary) = sidecore_binary() else { return format!("{id}: no program to ask") };
    let asked = Command::new(binary).arg("--api").arg(api).args(["show", &id, "--json"]).output();
    let shown = asked.ok().and_then(|said| serde_json::from_slice::<Value>(&said.stdout).ok());
    let Some(shown) = shown else { return format!("{id}: the daemon does not answer") };
    let counters = &shown["counters"];
    let of = |name: &str| counters[name].clone();
    format!(
        "{id}: {}, {} queues, {} requests, {} kicks, {} calls, {} under way",
        shown["state"],
        shown["queues_attached"],
        of("requests"),
        of("kicks"),
        of("calls"),
        of("in_flight"),
    )
}

fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LINES)..].join("\n")
}
