//! What is checked of the sources, and the tests of the crates.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use testing::bed::{Bed, Need, tests_all};

use crate::suite::programs::{Kind, PROGRAMS, Programs};
use crate::suite::shelf::WARNINGS;
use crate::suite::tools::{command, done, said, test_command, tested};
use crate::suite::{Built, Case, Group, Takes};

/// Tests of what sidecores share, which loom runs in every interleaving.
const LOOM_TESTS: usize = 5;

/// Of a loop device.
const fn as_root(
    name: &'static str,
    program: &'static str,
    words: &'static [&'static str],
) -> Case {
    Case::of_crate(name, "backend", program, words).needs(&[Need::Root])
}

/// The group.
pub(super) const GROUP: Group = Group::new(
    "unit",
    "cargo test, rustfmt, clippy, tidy, shellcheck (with --all also loom and cargo deny)",
    &[
        Case::command("rustfmt", &["cargo", "fmt", "--all", "--check"]).takes(Takes::Little),
        Case::run("tidy", tidy).needs_built(Built::Crates).takes(Takes::Little),
        Case::command("shellcheck", &["sh", "-c", SHELLCHECK]),
        Case::command("shellcheck-guest", &["sh", "-c", SHELLCHECK_GUEST]),
        Case::run("clippy", clippy).needs_built(Built::Crates).takes(Takes::Little),
        Case::run("doors", doors).needs_built(Built::Nothing).takes(Takes::Little),
        Case::run("crates", crates).needs_built(Built::Crates).usually(110),
        Case::command("docs", DOCS).needs_built(Built::Crates).usually(20),
        as_root("lost-flush", "outside", &["--ignored", "lost"]),
        as_root("block-devices", "outside", &["--ignored", "block"]),
        as_root("held-devices", "backend", &["--ignored", "block_device"]),
        Case::run("loom", loom)
            .needs_built(Built::Nothing)
            .within(1800)
            .only_all("a build of its own, a minute or two"),
        Case::run("deny", deny).needs_built(Built::Nothing).within(1800),
    ],
);

const SHELLCHECK: &str = "shellcheck -x -a x .ci/run x.d/compiler x.d/test/*.sh tests/guest/service/run lab/guest/l1_run";
const SHELLCHECK_GUEST: &str = "shellcheck -s dash -x tests/guest/init tests/guest/scripts/*.sh \
                                lab/guest/*_init tests/guest/service/init";
/// With the compiler that has built the crates ([`crate::suite::build`]), or they were built again.
const DOCS: &[&str] =
    &["env", "RUSTC_WORKSPACE_WRAPPER=x.d/compiler", "cargo", "test", "--workspace", "--doc"];

/// The compiler warned of nothing when it built the crates, and was clippy ([`crate::suite::build`]).
fn clippy(bed: &Bed) -> Result<()> {
    let programs = std::env::var_os(PROGRAMS).context("SUITE_PROGRAMS is not set")?;
    let file = Path::new(&programs).with_file_name(WARNINGS);
    let warnings = std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
    match warnings.trim() {
        "" => bed.passed("", ""),
        warnings => bed.failed("", warnings),
    }
    Ok(())
}

/// What is checked of sources and pages.
fn tidy(bed: &Bed) -> Result<()> {
    let programs = Programs::known()?;
    bed.check("", done(Command::new(&programs.plain("xtask")?.path).arg("tidy")));
    Ok(())
}

/// What `./x` does of itself beside tests, as a user calls it. What is built for that takes as long as all else.
fn doors(bed: &Bed) -> Result<()> {
    for (check, words, says) in [
        ("help", "help", "the daemon, optimised"),
        ("build", "build", "built "),
        ("bench", "bench --help", "Usage: "),
        ("pass", "bench pass --help", "Usage: "),
    ] {
        if check != "help" && !tests_all() {
            bed.skipped(check, "builds what is shipped or measures it: ./x test --all");
            continue;
        }
        let mut door = Command::new("./x");
        let said = said(door.args(words.split(' ')).env_remove("SIDECORE"));
        let said = said.and_then(|said| {
            ensure!(said.contains(says), "it says {said:?}, not {says:?}");
            Ok("")
        });
        bed.check(check, said);
    }
    Ok(())
}

/// The tests of all crates, but those of the daemon and of what is fuzzed, which are groups of their own.
fn crates(bed: &Bed) -> Result<()> {
    let programs = Programs::known()?;
    for program in programs.all() {
        let is_unit = program.kind == Kind::Unit;
        let is_of_group = ["tests", "fuzz"].contains(&&*program.package) && !is_unit;
        if program.kind == Kind::Plain || is_of_group {
            continue;
        }
        let is_library = is_unit && program.name.replace('-', "_") == program.package;
        let check = match is_library {
            true => program.package.clone(),
            false => format!("{}/{}", program.package, program.name),
        };
        // Some programs and libraries have no tests, which is no fault of theirs.
        let list = Command::new(&program.path).args(["--list", "--format", "terse"]).output()?;
        let has_tests = String::from_utf8_lossy(&list.stdout).contains(": test");
        if has_tests && (bed.wants(&check) || bed.wants(&program.package)) {
            tested(bed, &check, &mut test_command(&[], program, &[]))?;
        }
    }
    Ok(())
}

/// What sidecores share, in every interleaving. A filter that finds no test is no failure to cargo.
fn loom(bed: &Bed) -> Result<()> {
    let words = "cargo test -p schedule -p sidecore --lib loom_";
    let target = Path::new(&std::env::var_os("BUILD").context("BUILD is not set")?).join("loom");
    let mut loom = command(&words.split(' ').collect::<Vec<_>>());
    let text = said(loom.env("RUSTFLAGS", "--cfg loom").env("CARGO_TARGET_DIR", target))?;
    let is_one = |line: &&str| {
        line.starts_with("test ") && line.contains("loom_") && line.ends_with(" ... ok")
    };
    bed.same("tests", text.lines().filter(is_one).count(), LOOM_TESTS);
    Ok(())
}

/// Licences, sources and advisories. Installing cargo-deny means building it for many minutes, so it is only used where
/// it is there or everything was asked for.
fn deny(bed: &Bed) -> Result<()> {
    let build = std::env::var_os("BUILD").context("BUILD is not set")?;
    let installed = Path::new(&build).join("cargo");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths(
        std::iter::once(installed.join("bin")).chain(std::env::split_paths(&path)),
    )?;
    let deny = |words: &str| {
        let mut command = Command::new("cargo");
        command.arg("deny").args(words.split(' ')).env("PATH", &path);
        command
    };
    if said(&mut deny("--version")).is_err() {
        if !tests_all() {
            let why = "cargo-deny is not installed, and building it takes minutes: ./x test --all";
            bed.skipped("", why);
            return Ok(());
        }
        let mut install = command(&["cargo", "install", "--locked", "cargo-deny", "--root"]);
        ensure!(bed.check("install", done(install.arg(&installed))), "cargo-deny is not there");
    }
    bed.check("licences", done(&mut deny("check bans licenses sources")));
    match said(&mut deny("fetch db")) {
        Ok(_) => {
            bed.check("advisories", done(&mut deny("check advisories")));
        }
        Err(error) => {
            let why = format_args!("the advisory database cannot be fetched: {error:#}");
            bed.skipped("advisories", why);
        }
    }
    Ok(())
}
