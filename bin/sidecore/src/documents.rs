//! What the program writes about itself: man pages and the manual.

use std::fs;
use std::path::Path;

use crate::cli::Cli;
use crate::failure::Failure;

/// `man`
pub(crate) fn man(folder: &Path) -> Result<(), Failure> {
    fs::create_dir_all(folder)
        .and_then(|()| clap_mangen::generate_to(Cli::told(), folder))
        .map_err(|error| unwritable(folder, &error))
}

/// `docs`
pub(crate) fn docs(folder: &Path) -> Result<(), Failure> {
    fs::create_dir_all(folder).map_err(|error| unwritable(folder, &error))?;
    let manual = MANUAL.iter().map(|(name, text)| (*name, (*text).to_string()));
    for (name, text) in reference().into_iter().chain(manual) {
        let path = folder.join(name);
        fs::write(&path, text).map_err(|error| unwritable(&path, &error))?;
    }
    Ok(())
}

/// Pages that the program makes from what it reads.
fn reference() -> [(&'static str, String); 2] {
    [("config.md", config::docs::config_markdown()), ("api.md", config::docs::api_markdown())]
}

/// A page of the repository.
macro_rules! page {
    ($name:literal) => {
        ($name, include_str!(concat!("../../../docs/", $name)))
    };
}

/// Pages for operators that people write.
const MANUAL: [(&str, &str); 9] = [
    page!("operating.md"),
    page!("stages.md"),
    page!("remote.md"),
    page!("migration.md"),
    page!("durability.md"),
    page!("security.md"),
    page!("exits.md"),
    page!("tune.md"),
    page!("tune-rules.md"),
];

fn unwritable(path: &Path, error: &std::io::Error) -> Failure {
    Failure::usage(format!("{} cannot be written: {error}", path.display()), "name another folder")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn repository() -> std::path::PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
    }

    #[test]
    fn the_reference_pages_are_current() {
        for (name, text) in reference() {
            let kept = fs::read_to_string(repository().join("docs").join(name)).unwrap_or_default();
            assert!(kept == text, "docs/{name} is old: run `sidecore docs docs`");
        }
    }

    #[test]
    fn a_folder_for_pages_is_made() {
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("share/doc");
        docs(&folder).ok().unwrap();
        assert_eq!(fs::read_dir(&folder).unwrap().count(), reference().len() + MANUAL.len());
        let stages = fs::read_to_string(folder.join("stages.md")).unwrap();
        assert!(stages.starts_with("# Stages of a disk\n"), "{stages}");
    }

    #[test]
    fn man_pages_are_written_for_every_command() {
        let folder = tempfile::tempdir().unwrap();
        man(folder.path()).ok().unwrap();
        for page in [
            "sidecore.1",
            "sidecore-serve.1",
            "sidecore-disk-add.1",
            "sidecore-nic-add.1",
            "sidecore-switch-show.1",
        ] {
            let text = fs::read_to_string(folder.path().join(page)).unwrap();
            assert!(text.contains("Examples"), "{page}");
        }
    }

    #[test]
    fn the_packaged_configuration_is_right_as_it_is_and_with_its_examples() {
        let path = repository().join("packaging/sidecore.toml");
        let text = fs::read_to_string(path).unwrap();
        // A line `#name = ...` or `#[...]` is an example; a line `# ...` is a remark.
        let examples: String = text
            .lines()
            .map(|line| match line.strip_prefix('#') {
                Some(example) if !example.starts_with(' ') => format!("{example}\n"),
                _ => format!("{line}\n"),
            })
            .collect();
        let host = cpus::HostCpus { online: vec![0, 1, 2, 3], auto: vec![1], auto_count: 1 };
        for text in [&text, &examples] {
            let plan = config::plan::load(text, "sidecore.toml", "/etc/sidecore", &host, None);
            plan.unwrap_or_else(|refusal| panic!("{refusal}"));
        }
        assert_ne!(text, examples);
    }
}
