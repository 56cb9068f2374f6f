//! Texts of other people, as they are stored.

/// Returns the first `most` characters of a text, without NUL, which Postgres cannot store.
pub fn storable(text: &str, most: usize) -> String {
    text.chars().filter(|c| *c != '\0').take(most).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stored_text_has_no_nul_and_no_more_characters_than_it_may() {
        assert_eq!(storable("a\0ä\0c", 3), "aäc");
        assert_eq!(storable("a\0äc", 2), "aä");
    }
}
