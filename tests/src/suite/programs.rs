//! Where the programs are that cargo has built: what it tells with `--message-format=json`, kept in a file for the
//! cases.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Value, json};

/// The variable that names the file.
pub const PROGRAMS: &str = "SUITE_PROGRAMS";

/// One program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// Its crate.
    pub package: String,
    /// Its name; of the tests in a library, the library's.
    pub name: String,
    /// Whether it is a program of tests beside the crate's sources, or those in its sources.
    pub kind: Kind,
    /// The program.
    pub path: PathBuf,
    /// Its crate's folder, in which its tests are run.
    pub folder: PathBuf,
}

/// What a program is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Tests in the sources of a library or of a program.
    Unit,
    /// Tests beside them.
    Tests,
    /// No tests.
    Plain,
}

impl Program {
    /// The program that a line of cargo's tells of; none for any other line.
    pub fn of_line(line: &str) -> Option<Program> {
        let said: Value = serde_json::from_str(line).ok()?;
        let path = said.get("executable")?.as_str()?;
        let target = said.get("target")?;
        let is_test = said.get("profile")?.get("test")?.as_bool()?;
        let is_beside = target.get("kind")?.get(0)? == "test";
        Some(Program {
            package: package_of(said.get("package_id")?.as_str()?).to_owned(),
            name: target.get("name")?.as_str()?.to_owned(),
            kind: match (is_test, is_beside) {
                (true, true) => Kind::Tests,
                (true, false) => Kind::Unit,
                (false, _) => Kind::Plain,
            },
            path: path.into(),
            folder: Path::new(said.get("manifest_path")?.as_str()?).parent()?.into(),
        })
    }
}

/// All programs that were built.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Programs(Vec<Program>);

impl Programs {
    /// Adds some.
    pub fn extend(&mut self, programs: impl IntoIterator<Item = Program>) {
        self.0.extend(programs);
    }

    /// All of them.
    pub fn all(&self) -> &[Program] {
        &self.0
    }

    /// The program of tests `name` of a crate; with the crate's own name the tests in its library.
    ///
    /// # Errors
    /// It was not built.
    pub fn tests(&self, package: &str, name: &str) -> Result<&Program> {
        let of_package = |program: &&Program| program.package == package;
        let is_it = |program: &&Program| match program.kind {
            Kind::Tests => program.name == name,
            Kind::Unit => name == package,
            Kind::Plain => false,
        };
        let found = self.0.iter().filter(of_package).find(is_it);
        found.with_context(|| format!("cargo has built no tests {name} of {package}"))
    }

    /// The program `name`, which is no program of tests; the last that was built.
    ///
    /// # Errors
    /// It was not built.
    pub fn plain(&self, name: &str) -> Result<&Program> {
        let is_it = |program: &&Program| program.kind == Kind::Plain && program.name == name;
        let found = self.0.iter().rev().find(is_it);
        found.with_context(|| format!("cargo has built no program {name}"))
    }

    /// Writes them to a file.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write(&self, file: &Path) -> Result<()> {
        let entry = |program: &Program| {
            json!({
                "package": program.package, "name": program.name, "path": program.path,
                "folder": program.folder, "kind": match program.kind {
                    Kind::Unit => "unit",
                    Kind::Tests => "tests",
                    Kind::Plain => "plain",
                },
            })
        };
        let all: Vec<Value> = self.0.iter().map(entry).collect();
        std::fs::write(file, serde_json::to_string(&all)?)
            .with_context(|| format!("writing {}", file.display()))
    }

    /// Reads the file that `./x test` names to its cases.
    ///
    /// # Errors
    /// There is none.
    pub fn known() -> Result<Programs> {
        let file = std::env::var_os(PROGRAMS)
            .with_context(|| format!("{PROGRAMS} is not set: ./x test sets it"))?;
        let text = std::fs::read_to_string(&file)?;
        let all: Vec<Value> = serde_json::from_str(&text)?;
        let entry = |value: &Value| {
            let word = |key: &str| Some(value.get(key)?.as_str()?.to_owned());
            let kind = match &*word("kind")? {
                "unit" => Kind::Unit,
                "tests" => Kind::Tests,
                _ => Kind::Plain,
            };
            let (path, folder) = (word("path")?.into(), word("folder")?.into());
            Some(Program { package: word("package")?, name: word("name")?, kind, path, folder })
        };
        let programs: Option<Vec<Program>> = all.iter().map(entry).collect();
        Ok(Programs(programs.context("the list of programs is not as it was written")?))
    }
}

/// The crate's name in what cargo calls a package: `path+file:///folder#0.1.0`, or `..#name@0.1.0`.
fn package_of(id: &str) -> &str {
    let (place, version) = id.split_once('#').unwrap_or((id, ""));
    match version.split_once('@') {
        Some((name, _)) => name,
        None => place.rsplit('/').next().unwrap_or(place),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(id: &str, kind: &str, name: &str, is_test: bool, path: Option<&str>) -> String {
        json!({
            "reason": "compiler-artifact", "package_id": id, "manifest_path": "/r/tests/Cargo.toml",
            "target": { "kind": [kind], "name": name }, "profile": { "test": is_test },
            "executable": path,
        })
        .to_string()
    }

    #[test]
    fn programs_are_read_from_what_cargo_says() {
        let id = "path+file:///r/tests#0.1.0";
        let lines = [
            line(id, "lib", "tests", true, Some("/t/tests-1")),
            line(id, "test", "hostile", true, Some("/t/hostile-1")),
            line(id, "bin", "bad_wire", false, Some("/t/bad_wire")),
            line(id, "lib", "tests", false, None),
            "{\"reason\":\"build-finished\",\"success\":true}".to_owned(),
        ];
        let mut programs = Programs::default();
        programs.extend(lines.iter().filter_map(|line| Program::of_line(line)));
        assert_eq!(programs.all().len(), 3);
        let path = |name| programs.tests("tests", name).map(|found| found.path.clone());
        assert_eq!(path("hostile").unwrap(), Path::new("/t/hostile-1"));
        assert_eq!(path("tests").unwrap(), Path::new("/t/tests-1"));
        assert_eq!(
            path("bad_wire").unwrap_err().to_string(),
            "cargo has built no tests bad_wire of tests"
        );
        assert_eq!(programs.all()[0].folder, Path::new("/r/tests"));
    }

    #[test]
    fn a_package_has_its_name_or_that_of_its_folder() {
        assert_eq!(package_of("path+file:///r/bin/sidecore#sidecore-bin@0.1.0"), "sidecore-bin");
        assert_eq!(package_of("path+file:///r/data/schedule#0.1.0"), "schedule");
    }
}
