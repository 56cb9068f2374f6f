//! Words on the command line of which a few are allowed.

/// Returns the value of a word, or the words that are allowed.
pub(super) fn choice<T: Copy>(text: &str, words: &[(&str, T)]) -> Result<T, String> {
    let found = words.iter().find(|(word, _)| *word == text);
    found.map(|(_, value)| *value).ok_or_else(|| {
        let words: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
        format!("allowed are {}", words.join(", "))
    })
}
