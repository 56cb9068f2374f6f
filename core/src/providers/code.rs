//! Tables that map a provider's status and code to an outcome. Each driver has one, and a test for
//! each of its rows.

use super::Scope;

/// The meaning of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Maps to [`super::Sent::Delivered`].
    Delivered,
    /// Maps to [`super::Sent::Accepted`].
    Accepted,
    /// Maps to [`super::Sent::Throttled`].
    Throttled(Scope),
    /// Maps to [`super::Sent::Transient`].
    Transient,
    /// Maps to [`super::Sent::PermanentRecipient`] without suppression.
    Recipient,
    /// Maps to [`super::Sent::PermanentRecipient`] with suppression.
    Suppress,
    /// Maps to [`super::Sent::PermanentRequest`].
    Request,
    /// Maps to [`super::Sent::AccountFailure`].
    Account,
    /// Maps to [`super::Sent::Ambiguous`].
    Ambiguous,
}

/// A row of a table. The first row that matches an answer applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code {
    /// The status pattern: `429`, `5xx`, `4.7.x`, or `*` for any. An `x` matches any digit, and any
    /// number of digits where it is a whole part between dots.
    pub status: &'static str,
    /// The provider's own code or word; empty matches any.
    pub code: &'static str,
    /// The class of a matching answer.
    pub class: Class,
    /// The reason, for people.
    pub about: &'static str,
}

/// Builds a row of a table.
pub(super) const fn row(
    status: &'static str,
    code: &'static str,
    class: Class,
    about: &'static str,
) -> Code {
    Code {
        status,
        code,
        class,
        about,
    }
}

impl Code {
    /// Returns true if the row matches an answer. Codes are compared case-insensitively.
    pub fn fits(&self, status: &str, code: &str) -> bool {
        status_fits(self.status, status)
            && (self.code.is_empty() || self.code.eq_ignore_ascii_case(code))
    }
}

/// Returns the first row that matches.
pub fn find<'a>(table: &'a [Code], status: &str, code: &str) -> Option<&'a Code> {
    table.iter().find(|row| row.fits(status, code))
}

/// Matches a status against a pattern. `*` matches everything. Otherwise the parts between dots are
/// compared one by one: a part `x` matches any digits, and within a longer part each `x` matches
/// one digit.
fn status_fits(pattern: &str, status: &str) -> bool {
    if pattern == "*" {
        return true;
    }
    let (patterns, parts): (Vec<&str>, Vec<&str>) =
        (pattern.split('.').collect(), status.split('.').collect());
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    patterns.len() == parts.len()
        && patterns
            .iter()
            .zip(&parts)
            .all(|(pattern, part)| match *pattern {
                "x" => digits(part),
                _ => {
                    pattern.len() == part.len()
                        && pattern
                            .bytes()
                            .zip(part.bytes())
                            .all(|(p, b)| p == b || (p == b'x' && b.is_ascii_digit()))
                }
            })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_fits_by_digits_and_parts() {
        let cases = [
            ("*", "anything", true),
            ("429", "429", true),
            ("429", "428", false),
            ("5xx", "503", true),
            ("5xx", "5033", false),
            ("4.7.x", "4.7.28", true),
            ("4.7.x", "4.7", false),
            ("x.1.1", "5.1.1", true),
            ("5xx", "4.7.1", false),
        ];
        for (pattern, status, expected) in cases {
            assert_eq!(status_fits(pattern, status), expected, "{pattern} {status}");
        }
    }

    #[test]
    fn the_first_row_that_fits_counts() {
        let row = |status, code, class| Code {
            status,
            code,
            class,
            about: "",
        };
        let table = [
            row("400", "21610", Class::Suppress),
            row("400", "", Class::Request),
            row("*", "", Class::Transient),
        ];
        assert_eq!(find(&table, "400", "21610").unwrap().class, Class::Suppress);
        assert_eq!(find(&table, "400", "1").unwrap().class, Class::Request);
        assert_eq!(find(&table, "418", "").unwrap().class, Class::Transient);
        assert_eq!(find(&table[..2], "418", ""), None);
    }
}
