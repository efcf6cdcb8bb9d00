//! Lists of cpus as the kernel and people write them: `0-3,8,10-11`.

use std::fmt::Write as _;

/// Highest cpu number that is taken for one; Linux is built for at most 8192.
pub const CPU_MAX: u32 = 8191;

/// Why a text is no list of cpus.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CpusError {
    /// Nothing between two commas, or nothing at all.
    #[error("{0:?} names no cpu")]
    Empty(String),
    /// A piece that is neither a number nor a range.
    #[error("{0:?} is neither a cpu nor a range of cpus")]
    NotACpu(String),
    /// A range whose end is before its start.
    #[error("{0:?} runs backwards")]
    Backwards(String),
    /// The same cpu twice.
    #[error("cpu {0} is named twice")]
    Twice(u32),
}

/// The cpus of a list, in the order written.
pub fn parse(text: &str) -> Result<Vec<u32>, CpusError> {
    let mut cpus = Vec::new();
    for piece in text.split(',') {
        let piece = piece.trim();
        if piece.is_empty() {
            return Err(CpusError::Empty(text.to_string()));
        }
        let number = |digits: &str| match digits.trim().parse::<u32>() {
            Ok(cpu) if cpu <= CPU_MAX && !digits.contains('+') => Ok(cpu),
            _ => Err(CpusError::NotACpu(piece.to_string())),
        };
        let (first, last) = match piece.split_once('-') {
            Some((first, last)) => (number(first)?, number(last)?),
            None => (number(piece)?, number(piece)?),
        };
        if last < first {
            return Err(CpusError::Backwards(piece.to_string()));
        }
        for cpu in first..=last {
            if cpus.contains(&cpu) {
                return Err(CpusError::Twice(cpu));
            }
            cpus.push(cpu);
        }
    }
    Ok(cpus)
}

/// The list as the kernel writes it: sorted, with ranges.
pub fn format(cpus: &[u32]) -> String {
    let mut sorted = cpus.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    let mut text = String::new();
    for run in sorted.chunk_by(|a, b| a.checked_add(1) == Some(*b)) {
        let (Some(first), Some(last)) = (run.first(), run.last()) else {
            continue;
        };
        let comma = if text.is_empty() { "" } else { "," };
        let _ = match first == last {
            true => write!(text, "{comma}{first}"),
            false => write!(text, "{comma}{first}-{last}"),
        };
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_read_and_write_as_the_kernel_does() {
        for (text, cpus, back) in [
            ("3", vec![3], "3"),
            ("2,3", vec![2, 3], "2-3"),
            ("2-5", vec![2, 3, 4, 5], "2-5"),
            (" 8 , 0-1,10-11 ", vec![8, 0, 1, 10, 11], "0-1,8,10-11"),
        ] {
            assert_eq!(parse(text).unwrap(), cpus);
            assert_eq!(format(&cpus), back);
        }
        assert_eq!(format(&[]), "");
    }

    #[test]
    fn what_is_no_list_says_why() {
        for (text, why) in [
            ("", "\"\" names no cpu"),
            ("1,", "\"1,\" names no cpu"),
            ("two", "\"two\" is neither a cpu nor a range of cpus"),
            ("1-", "\"1-\" is neither a cpu nor a range of cpus"),
            ("-1", "\"-1\" is neither a cpu nor a range of cpus"),
            ("+1", "\"+1\" is neither a cpu nor a range of cpus"),
            ("0-4000000000", "\"0-4000000000\" is neither a cpu nor a range of cpus"),
            ("5-2", "\"5-2\" runs backwards"),
            ("2-5,3", "cpu 3 is named twice"),
        ] {
            assert_eq!(parse(text).unwrap_err().to_string(), why);
        }
    }
}
