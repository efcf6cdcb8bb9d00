//! Problems of one device or port, told together: none hides another, which would be met when the first is put right.
//!
//! Not here: what they are (`views`, `network`), and whether one is the reason of another.

/// Those there are, the most urgent one first; each is told once.
pub(crate) fn together(problems: impl IntoIterator<Item = Option<String>>) -> Option<String> {
    let mut told: Vec<String> = Vec::new();
    for problem in problems.into_iter().flatten().filter(|text| !text.is_empty()) {
        if !told.contains(&problem) {
            told.push(problem);
        }
    }
    (!told.is_empty()).then(|| told.join("; besides, "))
}

#[cfg(test)]
mod tests {
    use super::together;

    #[test]
    fn each_problem_is_told_once_and_the_first_comes_first() {
        let some = |text: &str| Some(text.to_string());
        let all = [None, some("a"), some(""), some("b"), some("a")];
        assert_eq!(together(all).as_deref(), Some("a; besides, b"));
        assert_eq!(together([None, some("")]), None);
    }
}
