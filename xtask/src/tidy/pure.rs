//! Crates that make no OS call, and the proof: neither their sources nor anything in their
//! dependency tree names one; and where rustc can, they are built for a machine without an OS.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, ensure};

use crate::tidy::Finding;
use crate::tidy::code::has_word;
use crate::tidy::source::Source;

/// Package, and its folder.
const PURE: [(&str, &str); 8] = [
    ("schedule", "data/schedule"),
    ("frame", "data/frame"),
    ("switch", "data/switch"),
    ("control", "control/core"),
    ("vhost_user", "control/vhost_user"),
    ("config", "control/config"),
    ("cpus", "host/cpus"),
    ("tuning", "guest/tuning"),
];

/// Packages that call the OS.
const OS_PACKAGES: [&str; 12] = [
    "libc",
    "rustix",
    "nix",
    "tokio",
    "mio",
    "async-io",
    "io-uring",
    "socket2",
    "linux-raw-sys",
    "errno",
    "getrandom",
    "guest_memory",
];

/// Parts of `std` that call the OS, or that mean nothing without one.
const OS_NAMES: [&str; 12] = [
    "std::fs",
    "std::net",
    "std::thread",
    "std::process",
    "std::os",
    "std::env",
    "std::io::stdin",
    "std::io::stdout",
    "std::io::stderr",
    "std::time::Instant",
    "std::time::SystemTime",
    "std::sync::mpsc",
];

/// A machine that has no OS.
const BARE_TARGET: &str = "wasm32-unknown-unknown";

/// Names of the OS in the shipped code of a pure crate.
pub(crate) fn names(source: &Source) -> Vec<Finding> {
    if !PURE.iter().any(|(_, folder)| source.is_in(&[folder])) {
        return Vec::new();
    }
    let mut findings = Vec::new();
    for (number, path) in paths(source) {
        if let Some(name) = OS_NAMES.iter().find(|name| has_word(&path, name)) {
            let message = format!(
                "`{name}` in a crate that makes no OS call: take the value as an argument, or move \
                 the call to its caller"
            );
            findings.push(source.finding("pure", number, message));
        }
    }
    findings
}

/// Every path of the shipped code, `use` trees written out, with its line.
fn paths(source: &Source) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut tree: Option<(usize, String)> = None;
    for (number, code) in source.shipped() {
        let trimmed = code.trim();
        let is_use = trimmed.starts_with("use ") || trimmed.contains(" use ");
        match &mut tree {
            Some((_, text)) => text.push_str(trimmed),
            None if is_use => tree = Some((number, trimmed.to_owned())),
            None => found.push((number, code.to_owned())),
        }
        if trimmed.contains(';')
            && let Some((start, text)) = tree.take()
        {
            found.extend(write_out(&text).into_iter().map(|path| (start, path)));
        }
    }
    found
}

/// `use a::{b, c::{d}};` as `use a::b`, `use a::c::d`.
fn write_out(tree: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut prefixes = vec![String::new()];
    let mut name = String::new();
    for c in tree.chars() {
        let prefix = prefixes.last().cloned().unwrap_or_default();
        match c {
            '{' => prefixes.push(prefix + &std::mem::take(&mut name)),
            '}' | ',' | ';' => {
                if !name.trim().is_empty() {
                    found.push(prefix + name.trim());
                }
                name.clear();
                if c == '}' {
                    prefixes.pop();
                }
            }
            c => name.push(c),
        }
    }
    found
}

/// Packages that call the OS, in the dependency tree of a pure crate.
///
/// # Errors
/// When `cargo tree` cannot be run.
pub(crate) fn dependencies(root: &Path) -> anyhow::Result<Vec<Finding>> {
    let mut findings = Vec::new();
    for (package, folder) in PURE {
        let tree = cargo(root, &["tree", "-p", package, "-e", "normal,build", "--prefix", "none"])?;
        findings.extend(os_packages(package, folder, &tree));
    }
    Ok(findings)
}

/// What `cargo tree` printed, read.
fn os_packages(package: &str, folder: &str, tree: &str) -> Vec<Finding> {
    let mut names: Vec<&str> = tree.lines().filter_map(|line| line.split(' ').next()).collect();
    names.sort_unstable();
    names.dedup();
    let found = names.into_iter().filter(|name| OS_PACKAGES.contains(name));
    found
        .map(|name| Finding {
            path: format!("{folder}/Cargo.toml"),
            line: 1,
            rule: "pure",
            message: format!(
                "`{package}` makes no OS call, but depends on `{name}` (`cargo tree -p {package} \
                 -i {name}` says how): leave it to the caller"
            ),
        })
        .collect()
}

/// Builds the pure crates for a machine without an OS, where that target is installed; says what
/// was done.
///
/// # Errors
/// When they do not build.
pub(crate) fn build_without_os(root: &Path) -> anyhow::Result<Vec<String>> {
    let names: Vec<&str> = PURE.iter().map(|(package, _)| *package).collect();
    let names = names.join(", ");
    if !has_bare_target() {
        return Ok(vec![format!(
            "{names}: no OS in their names and dependencies ({BARE_TARGET} is not installed, so they \
             were not also built for it; `rustup target add {BARE_TARGET}`)"
        )]);
    }
    let mut args = vec!["build", "--quiet", "--target", BARE_TARGET];
    args.extend(PURE.iter().flat_map(|(package, _)| ["-p", package]));
    cargo(root, &args).with_context(|| format!("{names} must build for {BARE_TARGET}"))?;
    Ok(vec![format!("{names}: built for {BARE_TARGET}")])
}

/// Asks rustc where the target's library would be; rustup need not exist.
fn has_bare_target() -> bool {
    let asked =
        Command::new("rustc").args(["--print", "target-libdir", "--target", BARE_TARGET]).output();
    asked.is_ok_and(|output| {
        let folder = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        output.status.success() && Path::new(&folder).is_dir()
    })
}

fn cargo(root: &Path, args: &[&str]) -> anyhow::Result<String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo).args(args).current_dir(root).output();
    let output = output.with_context(|| format!("running cargo {}", args.join(" ")))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "cargo {}: {said}", args.join(" "));
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_the_os_are_found_in_any_form() {
        let text = "use std::{fmt, os::fd::OwnedFd};\nuse std::{\n    collections::HashMap,\n    \
                    net,\n};\nfn a() { std::fs::read(p) }\n// std::env\n#[cfg(test)]\nuse std::fs;\n";
        let source = Source::new("data/schedule/src/a.rs", text);
        let found: Vec<String> = names(&source).iter().map(ToString::to_string).collect();
        let end = "in a crate that makes no OS call: take the value as an argument, or move the \
                   call to its caller [pure]";
        assert_eq!(
            found,
            [
                format!("data/schedule/src/a.rs:1: `std::os` {end}"),
                format!("data/schedule/src/a.rs:2: `std::net` {end}"),
                format!("data/schedule/src/a.rs:6: `std::fs` {end}"),
            ]
        );
        assert_eq!(names(&Source::new("host/src/a.rs", text)), []);
    }

    #[test]
    fn packages_that_call_the_os_are_found() {
        let tree = "config v0.1.0\nserde v1.0.0\nlibc v0.2.1\nlibc v0.2.1 (*)\n";
        let found: Vec<String> =
            os_packages("config", "control/config", tree).iter().map(ToString::to_string).collect();
        assert_eq!(
            found,
            [
                "control/config/Cargo.toml:1: `config` makes no OS call, but depends on `libc` (`cargo \
              tree -p config -i libc` says how): leave it to the caller [pure]"
            ]
        );
    }
}
