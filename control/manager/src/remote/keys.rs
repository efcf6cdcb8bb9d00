//! A link's private key in its file. Read by control before it gives up files, and by `sidecore link key`.

use std::fs::File;
use std::io::{Error, ErrorKind, Read, Result};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use config::key;

/// Bytes of a file that can be a key: the digits, and an end of line.
const FILE_BYTES_MAX: u64 = 2 * key::KEY_BYTES as u64 + 2;
/// Bits of a mode that let others than the owner in.
const OTHERS: u32 = 0o077;

/// The key in `file`.
///
/// # Errors
/// The system's; `InvalidData` with words when others may read it, or it is no key.
pub fn read(file: &Path) -> Result<[u8; key::KEY_BYTES]> {
    let wrong = |what: &str| Error::new(ErrorKind::InvalidData, what);
    let mut opened = File::open(file)?;
    let facts = opened.metadata()?;
    if !facts.is_file() {
        return Err(wrong("it is not a file"));
    }
    if facts.permissions().mode() & OTHERS != 0 {
        let what = format!(
            "others than user {} may use this key: `chmod 600 {}`",
            facts.uid(),
            file.display()
        );
        return Err(wrong(&what));
    }
    let mut text = String::new();
    Read::by_ref(&mut opened).take(FILE_BYTES_MAX + 1).read_to_string(&mut text)?;
    key::parse(text.trim_end()).ok_or_else(|| wrong("there is no key in it"))
}

#[cfg(test)]
mod tests {
    use std::fs::{Permissions, set_permissions, write};

    use super::*;

    #[test]
    fn a_key_is_read_from_a_file_that_only_its_owner_may_read() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("key");
        assert_eq!(read(&file).unwrap_err().kind(), ErrorKind::NotFound);
        let digits = "ab".repeat(32);
        write(&file, format!("{digits}\n")).unwrap();
        set_permissions(&file, Permissions::from_mode(0o640)).unwrap();
        assert!(read(&file).unwrap_err().to_string().contains("chmod 600"));
        set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
        assert_eq!(read(&file).unwrap(), [0xab; 32]);
        for bad in ["", "ab", &"ab".repeat(5000), &digits.replace('a', "x")] {
            write(&file, bad).unwrap();
            assert_eq!(read(&file).unwrap_err().kind(), ErrorKind::InvalidData, "{bad:.9}");
        }
        assert!(read(folder.path()).is_err());
    }
}
