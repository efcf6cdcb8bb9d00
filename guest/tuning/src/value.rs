//! What is understood of a setting's text. What is not understood is left as it is.

/// Bytes of a word at most.
const WORD_BYTES_MAX: usize = 64;

/// The form of a setting's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// One word.
    Word,
    /// Words, of which the chosen one is in brackets; or one word alone.
    Choice,
    /// A whole number.
    Number,
    /// Numbers of processors: `0-3,5`.
    Cpus,
    /// A line of words.
    Line,
    /// Where a symbolic link leads: its last step.
    LinkEnd,
    /// Where a symbolic link leads, whole.
    Link,
    /// How many names a folder has.
    Count,
}

/// The value that a setting's bytes have; nothing if they are not understood.
pub fn value(form: Form, bytes: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(bytes).ok()?.trim();
    let is_plain = text.bytes().all(|byte| (b' '..=b'~').contains(&byte));
    let found = match form {
        _ if !is_plain => return None,
        Form::Word => text,
        Form::Choice => chosen(text)?,
        Form::Number => return Some(text.parse::<i64>().ok()?.to_string()),
        Form::Cpus => return cpus(text).map(|_| text.to_owned()),
        Form::Line | Form::Link => return Some(text.to_owned()),
        Form::LinkEnd => text.rsplit('/').next()?,
        Form::Count => return None,
    };
    is_word(found).then(|| found.to_owned())
}

/// Whether a text is one word, as settings have them.
pub fn is_word(text: &str) -> bool {
    let is_known = |c: char| c.is_ascii_graphic() && c != '[' && c != ']';
    (1..=WORD_BYTES_MAX).contains(&text.len()) && text.chars().all(is_known)
}

/// The word in brackets, or the only one.
fn chosen(text: &str) -> Option<&str> {
    let mut words = text.split_whitespace();
    let bracketed = |word: &&str| word.starts_with('[') && word.ends_with(']');
    match words.clone().find(bracketed) {
        Some(word) => word.strip_prefix('[')?.strip_suffix(']'),
        None => words.next().filter(|_| words.next().is_none()),
    }
}

/// The words that may be chosen.
pub fn choices(text: &str) -> impl Iterator<Item = &str> {
    text.split_whitespace().map(|word| word.trim_matches(['[', ']']))
}

/// The processors of a list, in order; nothing if it is none, or names more than 4,096.
pub fn cpus(text: &str) -> Option<Vec<u32>> {
    let mut all = Vec::new();
    for part in text.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.parse::<u32>().ok()?, last.parse::<u32>().ok()?);
        if first > last || last >= 4096 || all.len() > 4096 {
            return None;
        }
        all.extend(first..=last);
    }
    Some(all)
}

/// A file's text once `value` was written to it, as the kernel would show it: of a choice the brackets move.
pub fn shown(before: &str, value: &str) -> String {
    let end = if before.ends_with('\n') { "\n" } else { "" };
    if !before.contains('[') {
        return format!("{value}{end}");
    }
    let word = |word: &str| if word == value { format!("[{word}]") } else { word.to_owned() };
    let words: Vec<String> = choices(before).map(word).collect();
    words.join(" ") + end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_in_their_form() {
        let read = |form, text: &str| value(form, text.as_bytes());
        assert_eq!(read(Form::Choice, "[mq-deadline] none\n").unwrap(), "mq-deadline");
        assert_eq!(read(Form::Choice, "none\n").unwrap(), "none");
        assert_eq!(read(Form::Number, " 007\n").unwrap(), "7");
        assert_eq!(read(Form::Cpus, "0-3,5\n").unwrap(), "0-3,5");
        assert_eq!(
            read(Form::LinkEnd, "../../bus/virtio/drivers/virtio_blk").unwrap(),
            "virtio_blk"
        );
        assert_eq!(read(Form::Word, "\n"), None);
        assert_eq!(read(Form::Choice, "a b"), None);
        assert_eq!(read(Form::Number, "99999999999999999999"), None);
        assert_eq!(read(Form::Cpus, "3-1"), None);
        assert_eq!(read(Form::Word, "\u{0}\u{1}"), None);
        assert_eq!(value(Form::Word, &[0xff, 0xfe]), None);
        assert_eq!(read(Form::Word, &"a".repeat(4000)), None);
    }

    #[test]
    fn lists_of_processors_are_bounded() {
        assert_eq!(cpus("0-1,4\n").unwrap(), [0, 1, 4]);
        assert_eq!(cpus("0-4294967295"), None);
        assert_eq!(cpus(""), None);
    }

    #[test]
    fn brackets_move() {
        assert_eq!(shown("[mq-deadline] kyber none\n", "none"), "mq-deadline kyber [none]\n");
        assert_eq!(shown("mq-deadline [none]", "mq-deadline"), "[mq-deadline] none");
        assert_eq!(shown("12\n", "7"), "7\n");
    }
}
