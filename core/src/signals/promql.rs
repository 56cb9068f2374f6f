//! Just enough of PromQL to query the samples' own times.
//!
//! An instant query returns its evaluation time and repeats a lost sample for up to five minutes. A
//! plain selector is therefore queried as a range (`load1{host="a"}[3m]`), and for any other
//! expression the oldest `timestamp(...)` of the selectors in it is queried as well.

/// Returns true if `query` is one plain instant selector: a name, label matchers, or both.
pub fn is_selector(query: &str) -> bool {
    let query = query.trim();
    matches!(selectors(query).as_slice(), [only] if *only == query)
}

/// Returns the instant selectors in `query`, in order, without ranges and offsets.
pub fn selectors(query: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut rest = Scanner { text: query, at: 0 };
    let mut skip_list = false;
    while let Some(c) = rest.peek() {
        let start = rest.at;
        match c {
            '"' | '\'' | '`' => rest.quoted(c),
            '#' => rest.take_while(|c| c != '\n'),
            '[' => rest.through(']'),
            '{' => {
                rest.through('}');
                found.push(&query[start..rest.at]);
            }
            '(' if skip_list => rest.through(')'),
            c if c.is_ascii_digit()
                || (c == '.' && rest.peek_second().is_some_and(|d| d.is_ascii_digit())) =>
            {
                // A number or a duration (5m, 1e-3, 0x1f), including its letters.
                rest.take_while(|c| c.is_ascii_alphanumeric() || c == '.' || c == '_');
            }
            c if is_name_start(c) => {
                rest.take_while(is_name);
                let (word, end) = (&query[start..rest.at], rest.at);
                let follows = rest.peek_past_space();
                if is_grouping(word) {
                    skip_list = true;
                    continue;
                }
                if follows == Some('{') {
                    rest.skip_space();
                    rest.through('}');
                    found.push(&query[start..rest.at]);
                } else if follows != Some('(') && !is_keyword(word) && !aggregates(&query[end..]) {
                    found.push(word);
                }
            }
            c if c.is_whitespace() => {
                rest.bump();
                continue;
            }
            _ => rest.bump(),
        }
        skip_list = false;
    }
    found
}

/// Returns the query for the oldest sample time among `selectors`; `None` if there are none.
pub fn oldest_sample(selectors: &[&str]) -> Option<String> {
    let parts: Vec<String> = selectors
        .iter()
        .enumerate()
        .map(|(n, s)| format!("label_replace(min(timestamp({s})), \"part\", \"{n}\", \"\", \"\")"))
        .collect();
    (!parts.is_empty()).then(|| format!("min({})", parts.join(" or ")))
}

/// Returns true if an aggregation's `by (...)` or `without (...)` follows, which makes the word
/// before it the aggregation.
fn aggregates(rest: &str) -> bool {
    let next: String = rest
        .trim_start()
        .chars()
        .take_while(|c| c.is_ascii_alphabetic())
        .collect();
    next.eq_ignore_ascii_case("by") || next.eq_ignore_ascii_case("without")
}

fn is_grouping(word: &str) -> bool {
    [
        "by",
        "without",
        "on",
        "ignoring",
        "group_left",
        "group_right",
    ]
    .iter()
    .any(|w| word.eq_ignore_ascii_case(w))
}

fn is_keyword(word: &str) -> bool {
    let words = [
        "and", "or", "unless", "atan2", "bool", "offset", "inf", "nan", "start", "end", "smoothed",
        "anchored",
    ];
    words.iter().any(|w| word.eq_ignore_ascii_case(w))
}

fn is_name_start(c: char) -> bool {
    c.is_ascii_alphabetic() || c == '_' || c == ':'
}

fn is_name(c: char) -> bool {
    is_name_start(c) || c.is_ascii_digit()
}

/// A position in a text.
struct Scanner<'a> {
    text: &'a str,
    at: usize,
}

impl Scanner<'_> {
    fn peek(&self) -> Option<char> {
        self.text[self.at..].chars().next()
    }

    fn peek_second(&self) -> Option<char> {
        self.text[self.at..].chars().nth(1)
    }

    fn peek_past_space(&self) -> Option<char> {
        self.text[self.at..].chars().find(|c| !c.is_whitespace())
    }

    fn bump(&mut self) {
        self.at += self.peek().map_or(0, char::len_utf8);
    }

    fn skip_space(&mut self) {
        self.take_while(char::is_whitespace);
    }

    fn take_while(&mut self, keep: impl Fn(char) -> bool) {
        while self.peek().is_some_and(&keep) {
            self.bump();
        }
    }

    /// Advances past the next `close`, ignoring quoted text.
    fn through(&mut self, close: char) {
        self.bump();
        while let Some(c) = self.peek() {
            if c == close {
                return self.bump();
            }
            if matches!(c, '"' | '\'' | '`') {
                self.quoted(c)
            } else {
                self.bump()
            }
        }
    }

    /// Advances past a quoted text that begins here.
    fn quoted(&mut self, quote: char) {
        self.bump();
        while let Some(c) = self.peek() {
            self.bump();
            if c == quote {
                return;
            }
            if c == '\\' && quote != '`' {
                self.bump();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_selectors_are_distinguished_from_expressions() {
        for plain in [
            "load1",
            " node_load1{host=\"a}b\"} ",
            "{__name__=\"x\"}",
            "job:load:avg5m",
            "up { a = 'b' }",
        ] {
            assert!(is_selector(plain), "{plain}");
        }
        for not in [
            "",
            "1",
            "rate(x[5m])",
            "a / b",
            "max(a)",
            "a[5m]",
            "a offset 5m",
            "a @ 12",
            "time()",
            "\"x\"",
            "-a",
        ] {
            assert!(!is_selector(not), "{not}");
        }
    }

    #[test]
    fn the_selectors_of_an_expression_are_found() {
        let cases = [
            (
                "rate(http_total{code=~\"5..\"}[5m]) / rate(http_total[5m])",
                vec!["http_total{code=~\"5..\"}", "http_total"],
            ),
            ("max by (host, rack) (load1) > bool 0.5", vec!["load1"]),
            ("sum(load1) without(host) + 1e3", vec!["load1"]),
            ("sum without(host) (load1) + 1e3", vec!["load1"]),
            (
                "a * on (host) group_left (rack) b offset 5m",
                vec!["a", "b"],
            ),
            (
                "histogram_quantile(0.99, sum by (le) (rate(d_bucket[1m])))",
                vec!["d_bucket"],
            ),
            ("{job=\"x\"} or vector(0)", vec!["{job=\"x\"}"]),
            ("topk(3, a) # comment b", vec!["a"]),
            ("max_over_time(a[5m:15s])", vec!["a"]),
            (
                "label_replace(a, \"x\", \"$1\", \"y\", \"(.*)\")",
                vec!["a"],
            ),
            ("time() - 5", vec![]),
            ("\u{fc} + a", vec!["a"]),
        ];
        for (query, expected) in cases {
            assert_eq!(selectors(query), expected, "{query}");
        }
    }

    #[test]
    fn unbalanced_text_ends_the_scan_quietly() {
        for text in [
            "a{", "a[", "\"x", "by (", "a{x=\"", "(((", "}", "by", "a{x='\\",
        ] {
            selectors(text);
        }
    }
}
