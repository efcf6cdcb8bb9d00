//! A link's private key in its file. Read by control before it gives up files, and by `sidecore link key`.

use std::io::{Error, ErrorKind, Result};
use std::path::Path;

use config::key;
use names::OwnText;

/// Bytes of a file that can be a key: the digits, and an end of line.
const FILE_BYTES_MAX: u64 = 2 * key::KEY_BYTES as u64 + 2;
/// Bits of a mode that let others than the owner in.
const OTHERS: u32 = 0o077;

/// The key in `file`, which nobody but root and who asks can have put there.
///
/// # Errors
/// The system's, and what `names` refuses; `InvalidData` when others may read it, or it is no key. The words
/// begin with the file's name.
pub fn read(file: &Path) -> Result<[u8; key::KEY_BYTES]> {
    let wrong =
        |what: &str| Error::new(ErrorKind::InvalidData, format!("{}: {what}", file.display()));
    let OwnText { text, mode, uid } = names::read_text(file, FILE_BYTES_MAX)?;
    if mode & OTHERS != 0 {
        let what =
            format!("others than user {uid} may use this key: `chmod 600 {}`", file.display());
        return Err(wrong(&what));
    }
    key::parse(text.trim_end()).ok_or_else(|| wrong("there is no key in it"))
}

#[cfg(test)]
mod tests {
    use std::fs::{Permissions, set_permissions, write};
    use std::os::unix::fs::PermissionsExt;

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
