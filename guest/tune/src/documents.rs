//! The page that the program writes about its rules.

use std::path::Path;

use crate::output::Failure;

/// `docs`
pub(crate) fn write(folder: &Path) -> Result<(), Failure> {
    let path = folder.join("tune-rules.md");
    std::fs::write(&path, tuning::page::markdown())
        .map_err(|error| Failure::usage(format!("{} cannot be written: {error}", path.display())))
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_page_of_rules_is_current() {
        let path =
            std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/tune-rules.md");
        let kept = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            kept == tuning::page::markdown(),
            "docs/tune-rules.md is old: run `cargo run -p sidecore-tune -- docs docs`"
        );
    }
}
