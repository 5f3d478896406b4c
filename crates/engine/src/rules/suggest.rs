//! Suggestions for misspelled words.

/// Suggests the word that was probably meant, or lists all valid words.
pub(crate) fn suggest_valid(given: &str, valid: &[&str]) -> String {
    match suggest_word(given, valid) {
        Some(word) => format!("did you mean `{word}`?"),
        None => format!("valid: {}", join_with_and(valid)),
    }
}

/// Returns the valid word that was probably meant: a synonym from other programs, or a word with few typos.
pub(crate) fn suggest_word<'w>(given: &str, valid: &[&'w str]) -> Option<&'w str> {
    let others_say = || {
        let (_, ours) = SYNONYMS.iter().find(|(theirs, _)| theirs.eq_ignore_ascii_case(given))?;
        valid.iter().find(|word| *word == ours).copied()
    };
    others_say().or_else(|| nearest_word(given, valid))
}

/// Terms in other programs, and the equivalent terms in rule files.
const SYNONYMS: &[(&str, &str)] = &[
    ("rate", "limit"),
    ("quota", "limit"),
    ("requests", "limit"),
    ("key", "per"),
    ("keys", "per"),
    ("by", "per"),
    ("group_by", "per"),
    ("match", "when"),
    ("matches", "when"),
    ("where", "when"),
    ("conditions", "when"),
    ("condition", "if"),
    ("expression", "if"),
    ("name", "id"),
    ("weight", "cost"),
    ("timezone", "zone"),
    ("time_zone", "zone"),
    ("tz", "zone"),
    ("expires", "until"),
    ("action", "on_exceed"),
    ("exceptions", "overrides"),
    ("calendar", "fixed_window"),
    ("window", "fixed_window"),
    ("sliding", "sliding_window"),
    ("bucket", "token_bucket"),
    ("gcra", "token_bucket"),
    ("leaky", "leaky_bucket"),
    ("semaphore", "concurrency"),
    ("log", "shadow"),
    ("dry_run", "shadow"),
    ("observe", "shadow"),
    ("block", "deny"),
    ("refuse", "deny"),
    ("reject", "deny"),
    ("queue", "delay"),
    ("throttle", "delay"),
    ("wait", "delay"),
];

/// Joins words with commas and `and`, as in "`a`, `b` and `c`".
pub(crate) fn join_with_and(words: &[&str]) -> String {
    match words {
        [] => "none".into(),
        [one] => format!("`{one}`"),
        [most @ .., last] => {
            let most: Vec<String> = most.iter().map(|word| format!("`{word}`")).collect();
            format!("{} and `{last}`", most.join(", "))
        }
    }
}

/// Returns the valid word of which `given` is probably a misspelling: the word with the fewest typos, if their number
/// is small for its length. Returns `None` if there is no such word.
pub fn nearest_word<'w>(given: &str, valid: &[&'w str]) -> Option<&'w str> {
    if given.len() > MAX_WORD_BYTES {
        return None;
    }
    let given: Vec<char> = given.to_lowercase().chars().collect();
    let typos = |word: &str| count_typos(&given, &word.chars().collect::<Vec<char>>());
    valid
        .iter()
        .map(|word| (typos(word), *word))
        // A word of two characters with two typos has nothing in common with the original.
        .filter(|(typos, word)| *typos <= 1 + word.len() / 4 && *typos < given.len())
        .min_by_key(|(typos, _)| *typos)
        .map(|(_, word)| word)
}

/// Returns whether two words differ by one typo, or only in case.
pub(crate) fn differs_by_one_typo(given: &str, word: &str) -> bool {
    if given.len().max(word.len()) > MAX_WORD_BYTES || given == word {
        return false;
    }
    let letters = |word: &str| word.to_lowercase().chars().collect::<Vec<char>>();
    count_typos(&letters(given), &letters(word)) <= 1
}

/// Maximum length of a word that is compared. Longer words are never considered typos.
const MAX_WORD_BYTES: usize = 40;

/// Counts insertions, deletions, substitutions and swaps of neighbours (optimal string alignment distance).
fn count_typos(from: &[char], to: &[char]) -> usize {
    // Keeps three rows of the distance table, because a swap reads the row before the previous row.
    let width = to.len() + 1;
    let (mut before, mut above): (Vec<usize>, Vec<usize>) = (vec![0; width], (0..width).collect());
    for row in 1..=from.len() {
        let mut here = vec![row; width];
        for column in 1..width {
            let changed = above[column - 1] + usize::from(from[row - 1] != to[column - 1]);
            here[column] = changed.min(above[column] + 1).min(here[column - 1] + 1);
            let swapped = row > 1 && column > 1 && from[row - 1] == to[column - 2] && from[row - 2] == to[column - 1];
            if swapped {
                here[column] = here[column].min(before[column - 2] + 1);
            }
        }
        (before, above) = (above, here);
    }
    above[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assert_nearest(given: &str, expected: Option<&str>) {
        let valid = ["limit", "limits", "when", "per", "on_exceed", "on_fault", "sliding_window"];
        assert_eq!(nearest_word(given, &valid), expected, "for {given:?}");
    }

    #[test]
    fn typos_are_recognised() {
        assert_nearest("limt", Some("limit"));
        assert_nearest("Limit", Some("limit"));
        assert_nearest("limmits", Some("limits"));
        assert_nearest("wehn", Some("when"));
        assert_nearest("on_exeed", Some("on_exceed"));
        assert_nearest("slidingwindow", Some("sliding_window"));
    }

    #[test]
    fn unrelated_words_get_no_suggestion() {
        assert_nearest("cost", None);
        assert_nearest("", None);
        assert_nearest("p", None);
        assert_nearest("on", None);
        assert_nearest(&"x".repeat(100_000), None);
    }

    #[test]
    fn terms_of_other_programs_are_suggested() {
        assert_eq!(suggest_word("rate", &["limit", "per"]), Some("limit"));
        assert_eq!(suggest_word("Group_By", &["limit", "per"]), Some("per"));
        assert_eq!(suggest_word("key", &["deny", "per"]), Some("per"));
        assert_eq!(suggest_word("rate", &["per"]), None);
    }

    #[test]
    fn lists_are_joined_with_and() {
        assert_eq!(join_with_and(&["a"]), "`a`");
        assert_eq!(join_with_and(&["a", "b", "c"]), "`a`, `b` and `c`");
    }
}
