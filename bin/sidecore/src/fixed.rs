//! What `disk set` and `nic set` have no option for, since it is fixed while the device runs: refused with what to do.
//!
//! Not here: which fields these are (`config::spec`), nor what else is wrong with a command line (`failure`).

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use config::spec::{fixed_in_a_disk, fixed_in_a_nic};

use crate::failure::Failure;

/// What there is to say of an option that is none, where it is a field that a running device keeps.
pub(crate) fn refused(error: &clap::Error, words: &[OsString]) -> Option<Failure> {
    if error.kind() != ErrorKind::UnknownArgument {
        return None;
    }
    let Some(ContextValue::String(option)) = error.get(ContextKind::InvalidArg) else {
        return None;
    };
    let name = option.trim_start_matches('-').split('=').next()?;
    let fixed =
        words.windows(2).find_map(|words| match (words[0].to_str()?, words[1].to_str()?) {
            ("disk", "set") => Some(fixed_in_a_disk()),
            ("nic", "set") => Some(fixed_in_a_nic()),
            _ => None,
        })?;
    let hint = fixed[name.replace('-', "_")].as_str()?;
    Some(Failure::usage(format!("--{name} cannot be changed at run time"), hint))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;

    fn said(line: &str) -> Option<String> {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let error = Cli::read(&words).expect_err("it is refused");
        refused(&error, &words).map(|failure| failure.text())
    }

    #[test]
    fn what_a_running_device_keeps_is_refused_with_what_to_do() {
        let anew = "remove the disk and add it again; one that the file declares: change it there and reload";
        let expected = format!("sidecore: --cache cannot be changed at run time\n  {anew}");
        assert_eq!(said("sidecore disk set x --cache page"), Some(expected));
        let size = said("sidecore --api /a disk set x --share 3 --size=1G").unwrap_or_default();
        assert!(
            size.contains("--size cannot") && size.contains("`sidecore disk resize`"),
            "{size}"
        );
        let mtu = said("sidecore nic set x --mtu 9000").unwrap_or_default();
        assert!(mtu.contains("--mtu cannot"), "{mtu}");
        let link = said("sidecore nic set x --link down").unwrap_or_default();
        assert!(link.contains("`sidecore nic link`"), "{link}");
        assert_eq!(said("sidecore nic set x --nonsense 1"), None);
        assert_eq!(said("sidecore disk ls --cache page"), None);
    }
}
