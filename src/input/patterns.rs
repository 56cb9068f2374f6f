//! Names that settings allow by patterns.

/// Returns true if a pattern stands for `name`: the same text, or its beginning if the pattern ends
/// with `*`.
pub fn allows(patterns: &[String], name: &str) -> bool {
    patterns
        .iter()
        .any(|pattern| match pattern.strip_suffix('*') {
            Some(start) => name.starts_with(start),
            None => pattern == name,
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_stands_for_itself_or_for_what_begins_like_it() {
        let patterns = ["public.articles".to_owned(), "news-*".to_owned()];

        for name in ["public.articles", "news-", "news-7"] {
            assert!(allows(&patterns, name), "{name}");
        }
        for name in [
            "articles",
            "public.articles2",
            "news",
            "public.articles*",
            "",
        ] {
            assert!(!allows(&patterns, name), "{name}");
        }
        assert!(!allows(&[], "anything"));
    }
}
