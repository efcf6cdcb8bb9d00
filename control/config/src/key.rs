//! A public key as people copy it: 64 hexadecimal digits.
//!
//! Used by `plan` (what the file says) and by the command that makes keys.

/// Bytes of a key.
pub const KEY_BYTES: usize = 32;

/// Reads one. `None`: it is something else.
pub fn parse(text: &str) -> Option<[u8; KEY_BYTES]> {
    let digits = text.as_bytes();
    if digits.len() != 2 * KEY_BYTES {
        return None;
    }
    let mut key = [0; KEY_BYTES];
    for (byte, pair) in key.iter_mut().zip(digits.chunks_exact(2)) {
        let [high, low] = [digit(pair[0])?, digit(pair[1])?];
        *byte = high << 4 | low;
    }
    Some(key)
}

/// Writes one.
pub fn format(key: &[u8; KEY_BYTES]) -> String {
    key.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn digit(byte: u8) -> Option<u8> {
    char::from(byte).to_digit(16).map(|digit| digit as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_what_was_written() {
        let key: [u8; KEY_BYTES] = std::array::from_fn(|at| at as u8 * 7);
        assert_eq!(parse(&format(&key)), Some(key));
        let text = format(&key);
        for bad in [
            "",
            &text[1..],
            &format!("{text}0"),
            &text.replace('0', "g"),
            &text.replace("07", "+7"),
        ] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
