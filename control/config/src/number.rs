//! Numbers of the command line: read as clap wants them, refused in words that say what to write.
//!
//! Not here: the same bounds for files and bodies ([`crate::schema`]).

use std::ops::RangeInclusive;

use crate::size::{SIZE_HINT, Size};

/// A plain number.
pub fn count(
    bounds: RangeInclusive<u32>,
) -> impl Fn(&str) -> Result<u32, String> + Clone + Send + Sync + 'static {
    move |text| number(text, &bounds, "write a plain number, such as 5000")
}

/// Microseconds.
pub fn micros(
    bounds: RangeInclusive<u32>,
) -> impl Fn(&str) -> Result<u32, String> + Clone + Send + Sync + 'static {
    move |text| number(text, &bounds, "write microseconds, without a unit, such as 200")
}

/// Milliseconds.
pub fn millis(
    bounds: RangeInclusive<u32>,
) -> impl Fn(&str) -> Result<u32, String> + Clone + Send + Sync + 'static {
    move |text| number(text, &bounds, "write milliseconds, without a unit, such as 100")
}

/// A size.
///
/// # Errors
/// What is wrong with it, and what to write.
pub fn size(text: &str) -> Result<Size, String> {
    text.parse::<Size>().map_err(|error| format!("{error}; {SIZE_HINT}"))
}

fn number(text: &str, bounds: &RangeInclusive<u32>, right: &str) -> Result<u32, String> {
    let is_plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    match text.parse::<u32>() {
        _ if !is_plain => Err(right.to_string()),
        Ok(number) if bounds.contains(&number) => Ok(number),
        _ => Err(format!("write a number from {} to {}", bounds.start(), bounds.end())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_number_says_what_to_write() {
        assert_eq!(count(1..=10)("7"), Ok(7));
        for text in ["5k", "", "-1", "+1", "1.5", "1_000"] {
            let error = count(1..=10_000)(text).unwrap_err();
            assert_eq!(error, "write a plain number, such as 5000", "{text}");
        }
        for text in ["0", "11", "99999999999"] {
            assert_eq!(count(1..=10)(text).unwrap_err(), "write a number from 1 to 10", "{text}");
        }
        assert!(
            micros(0..=9)("2us").unwrap_err().starts_with("write microseconds, without a unit")
        );
        assert!(
            millis(0..=9)("2ms").unwrap_err().starts_with("write milliseconds, without a unit")
        );
    }

    #[test]
    fn what_is_no_size_says_what_to_write() {
        assert_eq!(size("4K"), Ok(Size(4096)));
        let error = size("1.5G").unwrap_err();
        assert!(
            error.starts_with("\"1.5G\" is not a size; write bytes, or a whole number"),
            "{error}"
        );
        assert!(size("100Mbit").unwrap_err().contains("bytes, not bits"));
    }
}
