//! Reads one metric from a text exposition (`/metrics`).

use super::{Missing, Reading};

/// The least number that is a time in unix milliseconds; as seconds it is the year 5138.
const MILLISECONDS_FROM: f64 = 1e11;

/// A selector of series: a metric's name and the labels that it must have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Series {
    name: String,
    labels: Vec<(String, String)>,
}

impl Series {
    /// Parses `name` or `name{label="value",…}`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let (name, labels) = match text.split_once('{') {
            None => (text, Vec::new()),
            Some((name, rest)) => {
                let (labels, after) =
                    labels(rest).ok_or_else(|| format!("the labels of {text:?} cannot be read"))?;
                if !after.trim().is_empty() {
                    return Err(format!("{after:?} follows the labels of {text:?}"));
                }
                (name.trim(), labels)
            }
        };
        let starts_well = name
            .chars()
            .next()
            .is_some_and(|c| c.is_ascii_alphabetic() || c == '_' || c == ':');
        if !starts_well
            || !name
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || c == '_' || c == ':')
        {
            return Err(format!(
                "{name:?} is not a metric's name; use letters, digits, _ and :"
            ));
        }
        Ok(Self {
            name: name.to_owned(),
            labels,
        })
    }

    /// Returns the greatest value among the matching series of `text`, with its sample's time if
    /// the text gives one, else `now`.
    ///
    /// The greatest, because the signal protects the most loaded part. A matching series that is
    /// not a number makes the whole result an error, because it may hide the greatest.
    pub fn read(&self, text: &str, now: f64) -> Result<Reading, Missing> {
        let mut worst: Option<Reading> = None;
        for (value, at) in text.lines().filter_map(|line| self.sample(line)) {
            let reading = Reading::judge(Some(value), at.unwrap_or(now), now, f64::INFINITY)?;
            if worst.is_none_or(|w| reading.value > w.value) {
                worst = Some(reading);
            }
        }
        worst.ok_or(Missing::Absent)
    }

    /// Returns value and time of a line that holds a sample of this series.
    fn sample(&self, line: &str) -> Option<(f64, Option<f64>)> {
        let rest = line.trim_start().strip_prefix(self.name.as_str())?;
        let (found, rest) = match rest.trim_start().strip_prefix('{') {
            Some(inner) => labels(inner)?,
            None if rest.starts_with(char::is_whitespace) => (Vec::new(), rest),
            None => return None,
        };
        if !self.labels.iter().all(|wanted| found.contains(wanted)) {
            return None;
        }
        let mut words = rest.split_whitespace();
        let value = words.next()?.parse().unwrap_or(f64::NAN);
        // Seconds in OpenMetrics, with a fraction or without one; milliseconds in the Prometheus
        // format.
        let at = words.next().and_then(|word| {
            let time: f64 = word.parse().ok()?;
            let is_seconds = word.contains('.') || time < MILLISECONDS_FROM;
            Some(if is_seconds { time } else { time / 1000.0 })
        });
        Some((value, at))
    }
}

/// Parses the labels after an opening brace, and returns them with the rest after the closing one.
fn labels(mut rest: &str) -> Option<(Vec<(String, String)>, &str)> {
    let mut found = Vec::new();
    loop {
        rest = rest.trim_start().trim_start_matches(',').trim_start();
        if let Some(after) = rest.strip_prefix('}') {
            return Some((found, after));
        }
        let (name, after) = rest.split_once('=')?;
        let mut value = String::new();
        let mut chars = after.trim_start().strip_prefix('"')?.char_indices();
        let quoted = &after.trim_start()[1..];
        loop {
            match chars.next()? {
                (at, '"') => {
                    rest = &quoted[at + 1..];
                    break;
                }
                (_, '\\') => value.push(match chars.next()?.1 {
                    'n' => '\n',
                    c => c,
                }),
                (_, c) => value.push(c),
            }
        }
        found.push((name.trim().to_owned(), value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# HELP load The load.\n# TYPE load gauge\nload{host=\"a\"} 0.5\nload{host=\"b\",rack=\"x\\\"}y\"} 2.5 1700000000000\n\
                        load_total 9\nbad NaN\nopen 3 # {trace=\"1\"} 1\n";

    fn read(series: &str) -> Result<f64, Missing> {
        Series::parse(series)
            .unwrap()
            .read(TEXT, 1_700_000_005.0)
            .map(|r| r.value)
    }

    #[test]
    fn the_worst_matching_series_counts() {
        assert_eq!(read("load"), Ok(2.5));
        assert_eq!(read("load{host=\"a\"}"), Ok(0.5));
        assert_eq!(read("load{rack=\"x\\\"}y\"}"), Ok(2.5));
        assert_eq!(read("load_total"), Ok(9.0));
        assert_eq!(read("open"), Ok(3.0));
    }

    #[test]
    fn what_is_absent_or_not_a_number_is_no_reading() {
        assert_eq!(read("loa"), Err(Missing::Absent));
        assert_eq!(read("load{host=\"c\"}"), Err(Missing::Absent));
        assert_eq!(read("bad"), Err(Missing::NotANumber));
    }

    #[test]
    fn a_sample_keeps_its_own_time() {
        let series = Series::parse("load{host=\"b\"}").unwrap();
        assert_eq!(
            series.read(TEXT, 1_700_000_005.0).unwrap().at,
            1_700_000_000.0
        );
        assert_eq!(
            Series::parse("load_total")
                .unwrap()
                .read(TEXT, 7.0)
                .unwrap()
                .at,
            7.0
        );
    }

    #[test]
    fn a_time_is_read_in_seconds_and_in_milliseconds() {
        let series = Series::parse("load").unwrap();
        for (time, expected) in [
            ("1700000000", 1_700_000_000.0),
            ("1700000000.25", 1_700_000_000.25),
            ("1700000000250", 1_700_000_000.25),
        ] {
            let page = format!("load 1 {time}\n");
            let reading = series.read(&page, 1_700_000_005.0).unwrap();
            assert_eq!(reading.at, expected, "{time}");
        }
    }

    #[test]
    fn series_that_cannot_be_read_are_refused() {
        for text in [
            "",
            "9load",
            "a b",
            "a{",
            "a{x}",
            "a{x=\"1\"",
            "a{x=\"1\"} 5",
            "{x=\"1\"}",
        ] {
            assert!(Series::parse(text).is_err(), "{text}");
        }
    }
}
