//! The rules of STYLE.md that a machine can check, each a function from files to findings.
//!
//! Not what rustfmt, clippy and cargo-deny check already.

mod code;
mod control;
mod exempt;
mod groups;
mod imports;
mod layers;
mod manifests;
mod measured;
mod modules;
mod mutants;
mod pure;
mod quoted;
mod rows;
mod size;
mod source;
mod text;
mod told;
mod words;

use std::fmt;
use std::path::Path;

use anyhow::Context;

use source::Source;

/// One place that breaks a rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Finding {
    /// From the repository's root.
    path: String,
    /// From 1.
    line: usize,
    /// The rule's name, as the table of exemptions has it.
    rule: &'static str,
    /// What is wrong, and what to do.
    message: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {} [{}]", self.path, self.line, self.message, self.rule)
    }
}

/// What a run came to.
pub(crate) struct Report {
    pub(crate) findings: Vec<Finding>,
    /// What was proved in another way than usual.
    pub(crate) notes: Vec<String>,
    pub(crate) files: usize,
}

/// Checks the repository at `root`.
///
/// # Errors
/// When a file cannot be read or `cargo` cannot be run; a broken rule is no error but a finding.
pub(crate) fn run(root: &Path) -> anyhow::Result<Report> {
    let sources = source::load(root).context("reading the repository's files")?;
    let mut findings = check(&sources)?;
    let mut notes = Vec::new();
    findings.extend(pure::dependencies(root)?);
    notes.extend(pure::build_without_os(root)?);
    notes.extend(size::parts(&sources));
    let needless = exempt::apply(&mut findings);
    findings.extend(needless);
    findings.sort();
    findings.dedup();
    Ok(Report { findings, notes, files: sources.len() })
}

/// Every rule that needs the files alone.
fn check(sources: &[Source]) -> anyhow::Result<Vec<Finding>> {
    let mut findings = modules::check(sources);
    findings.extend(manifests::check(sources)?);
    findings.extend(quoted::check(sources));
    findings.extend(rows::check(sources));
    findings.extend(groups::check(sources));
    findings.extend(mutants::check(sources));
    findings.extend(control::check(sources));
    findings.extend(told::check(sources));
    findings.extend(measured::check(sources));
    for source in sources {
        findings.extend(text::check(source));
        if source.is_rust() {
            findings.extend(size::check(source));
            findings.extend(words::check(source));
            findings.extend(pure::names(source));
        }
    }
    Ok(findings)
}
