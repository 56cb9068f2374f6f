//! Tables of answers: which status and code means what. Each driver has one, and a test for each of its rows.

use super::Scope;

/// What an answer means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// As [`super::Sent::Delivered`].
    Delivered,
    /// As [`super::Sent::Accepted`].
    Accepted,
    /// As [`super::Sent::Throttled`].
    Throttled(Scope),
    /// As [`super::Sent::Transient`].
    Transient,
    /// As [`super::Sent::PermanentRecipient`] without suppression.
    Recipient,
    /// As [`super::Sent::PermanentRecipient`] with it.
    Suppress,
    /// As [`super::Sent::PermanentRequest`].
    Request,
    /// As [`super::Sent::AccountFailure`].
    Account,
    /// As [`super::Sent::Ambiguous`].
    Ambiguous,
}

/// One row: the first of a table that fits an answer counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code {
    /// The status as text: `429`, `5xx`, `4.7.x`; `*` for any. An `x` stands for any digits.
    pub status: &'static str,
    /// The provider's own code or word; empty for any.
    pub code: &'static str,
    /// What it means.
    pub class: Class,
    /// Why, for people.
    pub about: &'static str,
}

/// A row of a table.
pub(super) const fn row(status: &'static str, code: &'static str, class: Class, about: &'static str) -> Code {
    Code { status, code, class, about }
}

impl Code {
    /// True if the row fits an answer. Codes are compared without regard to case.
    pub fn fits(&self, status: &str, code: &str) -> bool {
        status_fits(self.status, status) && (self.code.is_empty() || self.code.eq_ignore_ascii_case(code))
    }
}

/// The first row that fits.
pub fn find<'a>(table: &'a [Code], status: &str, code: &str) -> Option<&'a Code> {
    table.iter().find(|row| row.fits(status, code))
}

/// `*` fits all. Otherwise parts between dots are compared one by one: a part `x` fits any digits, and within a part of several
/// characters each `x` fits one digit.
fn status_fits(pattern: &str, status: &str) -> bool {
    if pattern == "*" {
        return true;
    }
    let (patterns, parts): (Vec<&str>, Vec<&str>) = (pattern.split('.').collect(), status.split('.').collect());
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    patterns.len() == parts.len()
        && patterns.iter().zip(&parts).all(|(pattern, part)| match *pattern {
            "x" => digits(part),
            _ => {
                pattern.len() == part.len()
                    && pattern.bytes().zip(part.bytes()).all(|(p, b)| p == b || (p == b'x' && b.is_ascii_digit()))
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
        let row = |status, code, class| Code { status, code, class, about: "" };
        let table = [row("400", "21610", Class::Suppress), row("400", "", Class::Request), row("*", "", Class::Transient)];
        assert_eq!(find(&table, "400", "21610").unwrap().class, Class::Suppress);
        assert_eq!(find(&table, "400", "1").unwrap().class, Class::Request);
        assert_eq!(find(&table, "418", "").unwrap().class, Class::Transient);
        assert_eq!(find(&table[..2], "418", ""), None);
    }
}
