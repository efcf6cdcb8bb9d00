//! How many columns of a terminal a text takes, and texts that take fewer.
//!
//! A terminal gives most characters a column, those of East Asian scripts and most emoji two, and marks that
//! combine with the character before them none. Used by `fit`.

/// What stands where something was left out.
const ELLIPSIS: char = '…';
/// First and last of the blocks that take two columns: Unicode's UAX #11, wide and fullwidth.
const WIDE: [(u32, u32); 14] = [
    (0x1100, 0x115f),
    (0x231a, 0x231b),
    (0x2e80, 0x303e),
    (0x3041, 0x33ff),
    (0x3400, 0x4dbf),
    (0x4e00, 0x9fff),
    (0xa000, 0xa4cf),
    (0xa960, 0xa97f),
    (0xac00, 0xd7a3),
    (0xf900, 0xfaff),
    (0xfe30, 0xfe6f),
    (0xff00, 0xff60),
    (0x1f300, 0x1faff),
    (0x20000, 0x3fffd),
];
/// Likewise of those that take none: marks that combine, and what nobody sees.
const NONE: [(u32, u32); 8] = [
    (0x0300, 0x036f),
    (0x0483, 0x0489),
    (0x0591, 0x05bd),
    (0x064b, 0x065f),
    (0x200b, 0x200f),
    (0x20d0, 0x20ff),
    (0xfe00, 0xfe0f),
    (0xfe20, 0xfe2f),
];

/// Columns that a text takes.
pub(super) fn columns(text: &str) -> usize {
    text.chars().map(columns_of).sum()
}

fn columns_of(character: char) -> usize {
    let code = u32::from(character);
    let is_in =
        |blocks: &[(u32, u32)]| blocks.iter().any(|(first, last)| (*first..=*last).contains(&code));
    match code {
        0..0x300 => 1,
        _ if is_in(&NONE) => 0,
        _ if is_in(&WIDE) => 2,
        _ => 1,
    }
}

/// The text in at most so many columns. Names and paths keep both of their ends, which tell one from
/// another; sentences keep their beginning.
pub(super) fn shortened(text: &str, most: usize) -> String {
    if columns(text) <= most {
        return text.to_string();
    }
    let Some(left) = most.checked_sub(1) else { return String::new() };
    let behind = if text.contains(' ') { 0 } else { left / 2 };
    let start = taken(text.chars(), left - behind);
    let end: Vec<char> = taken(text.chars().rev(), behind).chars().rev().collect();
    start.chars().chain([ELLIPSIS]).chain(end).collect()
}

/// A sentence in lines of at most so many columns, broken at blanks; a word that is longer stays whole.
pub(super) fn lines(text: &str, most: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if columns(line) + 1 + columns(word) <= most => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_string()),
        }
    }
    lines
}

/// As many characters as so many columns have room for.
fn taken(characters: impl Iterator<Item = char>, most: usize) -> String {
    let mut left = most;
    characters
        .map_while(|character| {
            left = left.checked_sub(columns_of(character))?;
            Some(character)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wide_characters_take_two_columns_and_marks_none() {
        for (text, wide) in
            [("", 0), ("vm1", 3), ("磁盘", 4), ("e\u{301}", 1), ("한글a", 5), ("🖴💾", 4)]
        {
            assert_eq!(columns(text), wide, "{text}");
        }
    }

    #[test]
    fn a_sentence_goes_on_below_and_no_word_of_it_is_broken() {
        let text = "waits for /a/long/path/of/an/image since 3 s";
        let expected = ["waits for", "/a/long/path/of/an/image", "since 3 s"];
        assert_eq!(lines(text, 12), expected);
        assert_eq!(lines(text, 100), [text]);
        assert_eq!(lines("磁盘 磁盘 a", 9), ["磁盘 磁盘", "a"]);
    }

    #[test]
    fn names_keep_both_ends_and_sentences_their_beginning() {
        for (text, most, short) in [
            ("tenant-42-vm-17-root", 20, "tenant-42-vm-17-root"),
            ("tenant-42-vm-17-root", 11, "tenan…-root"),
            ("requests wait for space", 10, "requests …"),
            ("磁盘磁盘磁盘", 6, "磁…盘"),
            ("abc", 1, "…"),
            ("abc", 0, ""),
        ] {
            assert_eq!(shortened(text, most), short);
            assert!(columns(&shortened(text, most)) <= most, "{text}");
        }
    }
}
