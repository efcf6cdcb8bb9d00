//! Numbers: read from the command line as clap wants them, and what to write instead of one that is refused,
//! in the same words for the command line, files and bodies.

use std::ops::RangeInclusive;

use crate::mistake::Mistake;
use crate::size::{SIZE_HINT, Size, SizeError};
use crate::spec::StageSpec;
use crate::spec::told::Number;

/// What may be written for a number that an option cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", allowed(.field, (*.bounds.start()).into(), (*.bounds.end()).into()))]
pub struct NumberError {
    field: &'static str,
    bounds: RangeInclusive<u32>,
}

/// What is wrong with a size that an option cannot be, and what to write.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}; {SIZE_HINT}")]
pub struct SizeRefused(#[from] SizeError);

/// The number of a field of that name, as an option has it: digits, within bounds.
pub fn of<T: TryFrom<u32> + Send + Sync + 'static>(
    field: &'static str,
    bounds: RangeInclusive<u32>,
) -> impl Fn(&str) -> Result<T, NumberError> + Clone + Send + Sync + 'static {
    move |text| {
        let is_plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let number = text.parse::<u32>().ok().filter(|number| is_plain && bounds.contains(number));
        let number = number.and_then(|number| T::try_from(number).ok());
        number.ok_or_else(|| NumberError { field, bounds: bounds.clone() })
    }
}

/// A size.
///
/// # Errors
/// What is wrong with it, and what to write.
pub fn size(text: &str) -> Result<Size, SizeRefused> {
    Ok(text.parse::<Size>()?)
}

/// What may be written for the field of that name.
pub(crate) fn allowed(field: &str, least: i64, most: i64) -> String {
    let unit = match field {
        _ if field.ends_with("_us") => " (microseconds, without a unit)",
        _ if field.ends_with("_ms") => " (milliseconds, without a unit)",
        _ if field.ends_with("_s") || field == "drain_timeout" => " (seconds, without a unit)",
        _ => "",
    };
    let example = example(field).filter(|example| (least..=most).contains(example));
    let example = example.map(|example| format!(", such as {example}")).unwrap_or_default();
    let none = none_of(field, least == 0);
    format!("write a number from {least} to {most}{unit}{example}{none}")
}

/// What to write for none of what a field may have none of: 0 where that is in bounds, as in every change, and
/// nothing elsewhere.
pub(crate) fn none_of(field: &str, has_zero: bool) -> String {
    let of_table = Number::named(field).and_then(|number| number.none.first().copied());
    let Some(what) = of_table.or((field == "limit_bytes").then_some("limit")) else {
        return String::new();
    };
    let none = if has_zero { "0" } else { "leave it out" };
    format!("; {none} for no {what}")
}

/// Mistakes of a whole spec that a change made: what is not named in a change stays, so leaving out is no way
/// to have none.
pub(crate) fn of_a_change(mistakes: &mut [Mistake]) {
    for mistake in mistakes {
        let field = mistake.path.field();
        if let Some(rest) = mistake.right.strip_suffix(&none_of(field, false)) {
            mistake.right = format!("{rest}{}", none_of(field, true));
        }
    }
}

/// A usual number of the field of that name.
fn example(field: &str) -> Option<i64> {
    Some(match field {
        "quota_disk" | "quota_nic" => 4,
        "min" => 1,
        "max" => 2,
        "trunk" => 10,
        "ageing_s" => 60,
        "rate_out" => 5000,
        "rate_in" => 20_000,
        _ => match StageSpec::NUMBERS.iter().find(|number| number.name == field) {
            Some(number) => number.example.into(),
            None => return Number::named(field)?.example.first().copied(),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_number_says_what_to_write() {
        let share = of::<u16>("share", 1..=10_000);
        assert_eq!(share("7"), Ok(7));
        for text in ["5k", "", "-1", "+1", "1.5", "1_000", "0", "10001", "99999999999"] {
            let error = share(text).unwrap_err().to_string();
            assert_eq!(error, "write a number from 1 to 10000, such as 200", "{text}");
        }
        assert_eq!(
            of::<u32>("latency_target_us", 10..=1_000_000)("2us").unwrap_err().to_string(),
            "write a number from 10 to 1000000 (microseconds, without a unit), such as 200; leave it \
             out for no target"
        );
        assert_eq!(
            of::<u32>("limit_iops", 0..=9999)("-5").unwrap_err().to_string(),
            "write a number from 0 to 9999, such as 5000; 0 for no limit"
        );
        let wait = of::<u32>("moderate_us", 0..=1000);
        assert_eq!(wait("0"), Ok(0));
        assert_eq!(
            wait("1ms").unwrap_err().to_string(),
            "write a number from 0 to 1000 (microseconds, without a unit), such as 20; 0 for no waiting"
        );
        assert_eq!(
            of::<u32>("queue", 0..=9)("x").unwrap_err().to_string(),
            "write a number from 0 to 9"
        );
    }

    #[test]
    fn what_is_no_size_says_what_to_write() {
        assert_eq!(size("4K"), Ok(Size(4096)));
        let error = size("1.5G").unwrap_err().to_string();
        assert!(
            error.starts_with("\"1.5G\" is not a size; write bytes, or a whole number"),
            "{error}"
        );
        assert!(size("100Mbit").unwrap_err().to_string().contains("bytes, not bits"));
    }
}
