//! Names that settings allow by patterns.

/// The longest name of a channel of the gateway, in bytes.
pub const CHANNEL_BYTES: usize = 128;

/// The longest name of a tenant, in bytes.
const TENANT_BYTES: usize = 64;

/// The form of a tenant's name, completing "must be …".
pub const TENANT: &str = "1 to 64 letters, digits or any of . _ - / : { }";

/// Returns true for a character of the names of throttles, and of tenants, which are parts of them.
pub fn is_name_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || "._-/:{}".contains(c)
}

/// Returns true if `name` can be that of a tenant.
pub fn is_tenant_name(name: &str) -> bool {
    (1..=TENANT_BYTES).contains(&name.len()) && name.chars().all(is_name_char)
}

/// Returns true if `pattern` can stand for tenants.
pub fn is_tenant_pattern(pattern: &str) -> bool {
    pattern == "*" || is_tenant_name(pattern.strip_suffix('*').unwrap_or(pattern))
}

/// Returns true if a pattern stands for `name`: the same text, or its beginning if the pattern ends
/// with `*`.
pub fn allows(patterns: &[String], name: &str) -> bool {
    patterns.iter().any(|pattern| fits(pattern, name))
}

/// Returns true if `pattern` is `name`, or ends with `*` and begins it.
pub fn fits(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(start) => name.starts_with(start),
        None => pattern == name,
    }
}

/// Returns true if `name` can be that of a channel of the gateway.
pub fn is_channel_name(name: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._/{}@=+~-".contains(&byte);
    !name.is_empty() && name.len() <= CHANNEL_BYTES && name.bytes().all(is_allowed)
}

/// Returns true if `pattern` can stand for channels of the gateway.
pub fn is_channel_pattern(pattern: &str) -> bool {
    let start = pattern.strip_suffix('*').unwrap_or(pattern);
    pattern == "*" || (pattern.len() <= CHANNEL_BYTES && is_channel_name(start))
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

    #[test]
    fn a_pattern_of_tenants_is_a_name_or_a_beginning() {
        let longest = "x".repeat(64);
        for pattern in ["*", "acme", "acme-*", "a.b_c/d:{e}", &longest] {
            assert!(is_tenant_pattern(pattern), "{pattern}");
        }
        let too_long = "x".repeat(65);
        for pattern in ["", "two words", "a*b", "**", "é", &too_long] {
            assert!(!is_tenant_pattern(pattern), "{pattern}");
        }
        assert!(!is_tenant_name("acme-*"));
    }

    #[test]
    fn a_pattern_of_channels_is_a_name_or_a_beginning() {
        let longest = "x".repeat(128);
        for pattern in ["*", "news", "orders/*", "a.b_{c}@d=e+f~g-h", &longest] {
            assert!(is_channel_pattern(pattern), "{pattern}");
        }
        let too_long = "x".repeat(129);
        for pattern in [
            "",
            "a b",
            "a*b",
            "**",
            "$inbox",
            "acme:news",
            "é",
            &too_long,
        ] {
            assert!(!is_channel_pattern(pattern), "{pattern}");
        }
    }
}
