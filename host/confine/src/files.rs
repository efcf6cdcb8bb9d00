//! Landlock: which files can be opened, if any were named.

use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd,
    Ruleset, RulesetAttr, RulesetCreated, RulesetCreatedAttr, RulesetStatus,
};

use crate::{Error, Files, confined};

/// The newest that we know what to do with: 5 has a right for ioctls of devices, Linux 6.10.
const NEWEST: ABI = ABI::V5;

/// What landlock does for this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Landlock {
    /// It was not asked to.
    Off,
    /// It was, and the kernel has none.
    Missing,
    /// Nothing is executed, and only the files that were named are opened.
    Folders,
}

/// The version of landlock that this kernel has, as far as we know versions; nothing, if it has none.
pub fn landlock_abi() -> Option<u32> {
    let known = [ABI::V1, ABI::V2, ABI::V3, ABI::V4, ABI::V5, ABI::V6];
    let has = |abi: &ABI| {
        let ruleset = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
        let files = ruleset.handle_access(AccessFs::from_all(*abi));
        // The fourth adds TCP, the sixth scopes; the files are those of the one before.
        match *abi {
            ABI::V4 => files.and_then(|it| it.handle_access(AccessNet::from_all(*abi))).is_ok(),
            ABI::V6 => files.and_then(|it| it.scope(landlock::Scope::from_all(*abi))).is_ok(),
            _ => files.is_ok(),
        }
    };
    known.iter().rposition(has).map(|at| at as u32 + 1)
}

/// Why this process has given up the image at `path`, and what to do; nothing, if it has not. Links are
/// followed, as the kernel does it; an image that is yet to be made is where its folder is.
pub fn refuses_image(path: &Path) -> Option<String> {
    let folders = &confined()?.files.as_ref()?.images;
    let real = path.canonicalize().or_else(|_| {
        let (folder, name) = (path.parent(), path.file_name());
        let (folder, name) = folder.zip(name).ok_or(std::io::ErrorKind::NotFound)?;
        folder.canonicalize().map(|folder| folder.join(name))
    });
    // What is not there is told of by whoever opens it.
    let real = real.ok()?;
    if folders.iter().any(|folder| real.starts_with(folder)) {
        return None;
    }
    let is = if real == path { String::new() } else { format!(", which is {}", real.display()) };
    // An image may be named as well, and nothing can be put into it.
    let folders = folders.iter().filter(|it| it.is_dir());
    let folders: Vec<String> = folders.map(|it| it.display().to_string()).collect();
    Some(format!(
        "its image {}{is}, is in none of the daemon's image_folders: put it into one of {}; or add its \
         folder to image_folders in [daemon] of the file, then `sidecore upgrade`",
        path.display(),
        folders.join(", ")
    ))
}

pub(crate) fn restrict(files: Option<&Files>) -> Result<Landlock, Error> {
    let refused = |error: &dyn std::fmt::Display| Error::Files(error.to_string());
    let Some(files) = files else { return Ok(Landlock::Off) };
    let made = Ruleset::default()
        .handle_access(AccessFs::from_all(NEWEST))
        .and_then(|ruleset| ruleset.handle_access(AccessNet::from_all(ABI::V4)))
        .and_then(Ruleset::create);
    let mut ruleset = made.map_err(|error| refused(&error))?;
    for (paths, access) in rules(files) {
        for path in paths {
            let beneath = PathFd::new(path).map_err(|error| refused(&error))?;
            ruleset = add(ruleset, beneath, access).map_err(|error| refused(&error))?;
        }
    }
    let status = ruleset.restrict_self().map_err(|error| refused(&error))?;
    Ok(match status.ruleset {
        RulesetStatus::NotEnforced => Landlock::Missing,
        _ => Landlock::Folders,
    })
}

fn add(
    ruleset: RulesetCreated,
    beneath: PathFd,
    access: BitFlags<AccessFs>,
) -> Result<RulesetCreated, landlock::RulesetError> {
    ruleset.add_rule(PathBeneath::new(beneath, access))
}

/// Which paths may be used how.
fn rules(files: &Files) -> [(&[PathBuf], BitFlags<AccessFs>); 4] {
    let read = AccessFs::ReadFile | AccessFs::ReadDir;
    let write = read | AccessFs::WriteFile | AccessFs::Truncate | AccessFs::IoctlDev;
    let own = write | AccessFs::MakeReg | AccessFs::MakeSock | AccessFs::MakeDir;
    [
        // One that was made in vain is removed.
        (&files.images, write | AccessFs::MakeReg | AccessFs::RemoveFile),
        (&files.own, own | AccessFs::RemoveFile | AccessFs::RemoveDir),
        // A rule of a file has the rights of files only.
        (&files.devices, write & AccessFs::from_file(NEWEST)),
        (&files.read, read),
    ]
}
