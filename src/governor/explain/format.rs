//! Numbers and durations in sentences.

/// Formats a value for people: three digits, of which two are behind the point from 0.1 to 10, and
/// no trailing zeros.
pub fn number(value: f64) -> String {
    let decimals = match value.abs() {
        a if a >= 1e9 => return format!("{value:.2e}"),
        a if a == 0.0 || a >= 99.95 => return format!("{value:.0}"),
        a if a >= 9.995 => 1,
        a if a >= 0.0995 => 2,
        // A rate may be a millionth, and a person reads no exponents.
        a if a >= 0.009_95 => 4,
        a if a >= 0.000_995 => 5,
        a if a >= 0.000_099_5 => 6,
        a if a >= 0.000_009_95 => 7,
        a if a >= 0.000_000_995 => 8,
        _ => return format!("{value:.2e}"),
    };
    let text = format!("{value:.decimals$}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Formats a duration in seconds for people.
pub fn seconds(value: f64) -> String {
    match value.max(0.0) {
        s if s < 119.5 => format!("{s:.0} s"),
        s if s < 7170.0 => format!("{:.0} min", s / 60.0),
        s => format!("{:.0} h", s / 3600.0),
    }
}

/// Describes a trip of the breaker by the signal `by`, empty if it was not recorded, at a height in
/// setpoints.
pub fn tripped(by: &str, height: f64) -> String {
    match by {
        "" => "the leader before tripped it and could not record the signal".to_owned(),
        by => format!("{by} rose to {} x its setpoint", number(height)),
    }
}

/// Formats a text that anybody may have chosen, such as a key, as one word of a shell, so that a
/// command with it can be pasted.
pub fn shell_word(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-.:/@%+=,".contains(c);
    match !text.is_empty() && text.chars().all(is_plain) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_one_word_of_a_shell() {
        for (text, word) in [
            ("tenant-3", "tenant-3"),
            ("a@b.example:443/x", "a@b.example:443/x"),
            ("", "''"),
            ("two words", "'two words'"),
            ("x; rm -rf ~", "'x; rm -rf ~'"),
            ("$(id)", "'$(id)'"),
            ("it's", r"'it'\''s'"),
        ] {
            assert_eq!(shell_word(text), word);
        }
    }

    #[test]
    fn a_small_rate_keeps_its_digits() {
        for (value, text) in [
            (5e9, "5.00e9"),
            (123.4, "123"),
            (34.21, "34.2"),
            (2.0, "2"),
            (0.333, "0.33"),
            (-0.015, "-0.015"),
            (0.0125, "0.0125"),
            (0.01, "0.01"),
            (0.0045, "0.0045"),
            (0.0001, "0.0001"),
            (0.000_001, "0.000001"),
            (1e-9, "1.00e-9"),
            (0.0, "0"),
        ] {
            assert_eq!(number(value), text);
        }
    }
}
