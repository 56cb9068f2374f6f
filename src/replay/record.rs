//! A recording: samples of signals, and the rate that was let through.
//!
//! As a file it is CSV with a header, or one JSON object a line. A row has a `time` (unix seconds,
//! or RFC 3339), and a `signal` with its `value`, or a `rate` (jobs per second let through since
//! the row with a rate before), or both:
//!
//! ```text
//! time,signal,value,rate
//! 1700000000,search_load,1.91,34.5
//! 1700000015,search_load,2.04,34.5
//! ```

use std::collections::BTreeMap;

use serde_json::Value;

use crate::signals::Reading;

/// The columns of a file.
const COLUMNS: [&str; 4] = ["time", "signal", "value", "rate"];
/// Longest stretch without a rate that is bridged, in seconds; beyond it the rate is unknown.
const RATE_GAP_MAX_S: f64 = 600.0;
/// Fewest samples from which background and cost can be estimated.
const SAMPLES_MIN: usize = 20;
/// Largest number taken as unix seconds; larger ones are milliseconds, for instance.
const TIME_MAX: f64 = 1e11;
/// Largest rate or value.
const NUMBER_MAX: f64 = 1e15;

/// A recording, with each list in the order of time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Recording {
    /// Samples by the signal's name, in its own unit.
    pub signals: BTreeMap<String, Vec<Reading>>,
    /// Jobs per second let through up to each time since the one before.
    pub rate: Vec<Reading>,
}

/// A fault of a recording.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}{field}: {reason}", line.map_or_else(String::new, |line| format!("line {line}: ")))]
pub struct RecordingProblem {
    /// Line of the file, from 1; `None` for a fault of the recording as a whole.
    pub line: Option<usize>,
    /// Name of the field or of the signal.
    pub field: String,
    /// The fault, and the allowed values.
    pub reason: String,
}

impl RecordingProblem {
    /// Returns a problem of the recording as a whole.
    pub fn of(field: impl Into<String>, reason: impl Into<String>) -> Self {
        Self {
            line: None,
            field: field.into(),
            reason: reason.into(),
        }
    }
}

/// One row, as written.
#[derive(Default)]
struct RecordingRow {
    fields: BTreeMap<String, Value>,
}

impl Recording {
    /// Reads a file's text. Rows of signals that are not in `known` are refused.
    pub fn parse(text: &str, known: &[&str]) -> Result<Self, RecordingProblem> {
        let mut record = Self::default();
        let mut header: Option<Vec<String>> = None;
        let mut newest = f64::NEG_INFINITY;
        let is_json = text
            .trim_start_matches('\u{feff}')
            .trim_start()
            .starts_with('{');
        for (n, line) in text.lines().enumerate() {
            let wrong = |(field, reason): (&str, String)| RecordingProblem {
                line: Some(n + 1),
                field: field.to_owned(),
                reason,
            };
            let line = line.trim_start_matches('\u{feff}').trim();
            if line.is_empty() {
                continue;
            }
            let row = if is_json {
                RecordingRow::of_json(line).map_err(wrong)?
            } else if let Some(header) = &header {
                RecordingRow::of_csv(header, line).map_err(wrong)?
            } else {
                header = Some(columns(line).map_err(wrong)?);
                continue;
            };
            newest = record.take(&row, known, newest).map_err(wrong)?;
        }
        if newest == f64::NEG_INFINITY {
            return Err(RecordingProblem::of(
                "recording",
                "has no rows; allowed are CSV with the header time,signal,value,rate and JSON lines",
            ));
        }
        Ok(record)
    }

    /// Adds a row that is not older than `newest`; returns its time.
    fn take(
        &mut self,
        row: &RecordingRow,
        known: &[&str],
        newest: f64,
    ) -> Result<f64, (&'static str, String)> {
        let at = row.time()?;
        if at < newest {
            return Err((
                "time",
                format!(
                    "{at} is before {newest} of a row above it; rows must be in the order of their times"
                ),
            ));
        }
        let value = row.number("value")?;
        match (row.signal()?, value) {
            (Some(signal), Some(value)) => {
                if !known.contains(&signal.as_str()) {
                    return Err((
                        "signal",
                        format!(
                            "{signal:?} is not a load of the policy; allowed are {}",
                            known.join(", ")
                        ),
                    ));
                }
                let samples = self.signals.entry(signal.clone()).or_default();
                if samples.last().is_some_and(|last| last.at >= at) {
                    return Err((
                        "time",
                        format!(
                            "{at} is also the time of another sample of {signal}; give each sample \
                             its own time"
                        ),
                    ));
                }
                samples.push(Reading { value, at });
            }
            (Some(signal), None) => {
                return Err((
                    "value",
                    format!("is missing for the signal {signal:?}; use a number from 0"),
                ));
            }
            (None, Some(_)) => {
                return Err((
                    "signal",
                    format!("is missing; use one of {}", known.join(", ")),
                ));
            }
            (None, None) => {}
        }
        match row.number("rate")? {
            Some(rate) => match self.rate.last() {
                Some(last) if last.at >= at && last.value != rate => {
                    return Err((
                        "rate",
                        format!(
                            "{rate} and {} are given for the same time; give one",
                            last.value
                        ),
                    ));
                }
                Some(last) if last.at >= at => {}
                _ => self.rate.push(Reading { value: rate, at }),
            },
            None if value.is_none() => {
                return Err((
                    "rate",
                    "is missing, and so is value; a row has one of them or both".to_owned(),
                ));
            }
            None => {}
        }
        Ok(at)
    }

    /// Checks that the recording suffices for a replay of the signals `wanted`; returns the
    /// beginning and the end of its usable range, in unix seconds.
    pub fn check(&self, wanted: &[&str]) -> Result<(f64, f64), RecordingProblem> {
        let [first, .., last] = self.rate.as_slice() else {
            return Err(RecordingProblem::of(
                "rate",
                "has no values in this range; without the rate the share of our load is unknown",
            ));
        };
        if let Some(gap) = self
            .rate
            .windows(2)
            .find(|pair| pair[1].at - pair[0].at > RATE_GAP_MAX_S)
        {
            let (from, to) = (gap[0].at, gap[1].at);
            let length = to - from;
            return Err(RecordingProblem::of(
                "rate",
                format!(
                    "has no value from {from} to {to} ({length:.0} s); at most {RATE_GAP_MAX_S} s \
                     are bridged: replay the parts before and after it separately"
                ),
            ));
        }
        if self.rate.iter().all(|r| r.value <= 0.0) {
            return Err(RecordingProblem::of(
                "rate",
                "is always 0; a recording without our work does not show its effect",
            ));
        }
        let (mut from, mut to) = (first.at, last.at);
        for name in wanted {
            match self.signals.get(*name).map(Vec::as_slice) {
                Some([one, .., other]) => (from, to) = (from.max(one.at), to.min(other.at)),
                _ => {
                    return Err(RecordingProblem::of(
                        *name,
                        "has no samples in this range; check its query, or use another range",
                    ));
                }
            }
        }
        for name in wanted {
            let within = self.signals[*name]
                .iter()
                .filter(|r| (from..=to).contains(&r.at))
                .count();
            if within < SAMPLES_MIN {
                return Err(RecordingProblem::of(
                    *name,
                    format!(
                        "has {within} samples while the rate and every other signal are known; at least {SAMPLES_MIN} are needed"
                    ),
                ));
            }
        }
        Ok((from, to))
    }

    /// Returns the mean rate over `(from, to]`; outside of the recording its nearest rate counts.
    pub fn mean_rate(&self, from: f64, to: f64) -> f64 {
        let (mut sum, mut weight) = (0.0, 0.0);
        let begin = self.rate.partition_point(|r| r.at <= from);
        let mut since = from;
        for reading in &self.rate[begin..] {
            let until = reading.at.min(to);
            sum += (until - since).max(0.0) * reading.value;
            weight += (until - since).max(0.0);
            since = until;
            if reading.at >= to {
                break;
            }
        }
        if weight > 0.0 {
            sum / weight
        } else {
            self.rate.last().map_or(0.0, |last| last.value)
        }
    }
}

impl RecordingRow {
    fn of_json(line: &str) -> Result<Self, (&'static str, String)> {
        let fields: BTreeMap<String, Value> = serde_json::from_str(line)
            .map_err(|error| ("row", format!("is not a JSON object: {error}")))?;
        if let Some(other) = fields.keys().find(|key| !COLUMNS.contains(&key.as_str())) {
            return Err((
                "row",
                format!(
                    "{other:?} is not a field; allowed are {}",
                    COLUMNS.join(", ")
                ),
            ));
        }
        Ok(Self { fields })
    }

    fn of_csv(header: &[String], line: &str) -> Result<Self, (&'static str, String)> {
        let cells: Vec<&str> = line
            .split(',')
            .map(|cell| cell.trim().trim_matches('"'))
            .collect();
        if cells.len() != header.len() {
            return Err((
                "row",
                format!(
                    "has {} fields, but the header has {}",
                    cells.len(),
                    header.len()
                ),
            ));
        }
        let given = header
            .iter()
            .zip(cells)
            .filter(|(_, cell)| !cell.is_empty());
        Ok(Self {
            fields: given
                .map(|(name, cell)| (name.clone(), Value::String(cell.to_owned())))
                .collect(),
        })
    }

    fn time(&self) -> Result<f64, (&'static str, String)> {
        let allowed =
            "use unix seconds such as 1700000000.5 or a time such as 2026-11-20T14:00:00Z";
        let value = self
            .fields
            .get("time")
            .ok_or_else(|| ("time", format!("is missing; {allowed}")))?;
        let stamp = || {
            value
                .as_str()?
                .parse::<jiff::Timestamp>()
                .ok()
                .map(|t| t.as_microsecond() as f64 / 1e6)
        };
        let at = plain(value)
            .or_else(stamp)
            .filter(|at| (0.0..=TIME_MAX).contains(at));
        at.ok_or_else(|| ("time", format!("{value} is not allowed; {allowed}")))
    }

    fn signal(&self) -> Result<Option<String>, (&'static str, String)> {
        match self.fields.get("signal") {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(name)) => Ok(Some(name.clone())),
            Some(other) => Err((
                "signal",
                format!("{other} is not allowed; use the name of a signal of the policy"),
            )),
        }
    }

    fn number(&self, field: &'static str) -> Result<Option<f64>, (&'static str, String)> {
        match self.fields.get(field) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => match plain(value).filter(|x| (0.0..=NUMBER_MAX).contains(x)) {
                Some(x) => Ok(Some(x)),
                None => Err((
                    field,
                    format!("{value} is not allowed; use a number from 0 to {NUMBER_MAX:e}"),
                )),
            },
        }
    }
}

fn plain(value: &Value) -> Option<f64> {
    value.as_f64().or_else(|| value.as_str()?.parse().ok())
}

fn columns(line: &str) -> Result<Vec<String>, (&'static str, String)> {
    let names: Vec<String> = line
        .split(',')
        .map(|name| name.trim().trim_matches('"').to_owned())
        .collect();
    if let Some(other) = names.iter().find(|name| !COLUMNS.contains(&name.as_str())) {
        return Err((
            "header",
            format!(
                "{other:?} is not a column; allowed are {}",
                COLUMNS.join(", ")
            ),
        ));
    }
    if let Some(twice) = names
        .iter()
        .enumerate()
        .find(|(n, name)| names[..*n].contains(name))
    {
        return Err((
            "header",
            format!("{:?} is duplicated; name each column once", twice.1),
        ));
    }
    if !names.iter().any(|name| name == "time") {
        return Err((
            "header",
            format!("has no column time; allowed are {}", COLUMNS.join(", ")),
        ));
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn csv_and_json_lines_say_the_same() {
        let csv = "time,signal,value,rate\n1700000000,load,1.5,30\n1700000005,,,31\n2023-11-14T22:13:35Z,load,1.75,\n";
        let json = "{\"time\":1700000000,\"signal\":\"load\",\"value\":1.5,\"rate\":30}\n\n{\"time\":\"1700000005\",\"rate\":31}\n\
                    {\"time\":1700000015,\"signal\":\"load\",\"value\":1.75,\"rate\":null}\n";

        let record = Recording::parse(csv, &["load"]).unwrap();

        assert_eq!(record, Recording::parse(json, &["load"]).unwrap());
        let marked = format!("\u{feff}{json}");
        assert_eq!(record, Recording::parse(&marked, &["load"]).unwrap());
        let at = |at: f64, value| Reading {
            value,
            at: 1_700_000_000.0 + at,
        };
        assert_eq!(record.signals["load"], [at(0.0, 1.5), at(15.0, 1.75)]);
        assert_eq!(record.rate, [at(0.0, 30.0), at(5.0, 31.0)]);
    }

    #[test]
    fn what_is_wrong_in_a_file_is_reported_with_its_line_and_field() {
        let cases = [
            ("", "recording: has no rows"),
            ("time,signal,value,rate\n", "recording: has no rows"),
            (
                "a,b\n",
                "line 1: header: \"a\" is not a column; allowed are time, signal, value, rate",
            ),
            ("signal,value\n", "line 1: header: has no column time"),
            ("time,time\n", "line 1: header: \"time\" is duplicated"),
            (
                "time,rate\n1,2,3\n",
                "line 2: row: has 3 fields, but the header has 2",
            ),
            (
                "time,rate\nsoon,2\n",
                "line 2: time: \"soon\" is not allowed; use unix seconds",
            ),
            (
                "time,rate\n1700000000000,2\n",
                "line 2: time: \"1700000000000\" is not allowed",
            ),
            (
                "time,rate\n20,2\n\n10,2\n",
                "line 4: time: 10 is before 20 of a row above it",
            ),
            (
                "time,rate\n1,-2\n",
                "line 2: rate: \"-2\" is not allowed; use a number from 0",
            ),
            (
                "time,rate\n1,\n",
                "line 2: rate: is missing, and so is value",
            ),
            (
                "time,rate\n1,5\n1,6\n",
                "line 3: rate: 6 and 5 are given for the same time",
            ),
            (
                "time,signal,value\n1,load,NaN\n",
                "line 2: value: \"NaN\" is not allowed",
            ),
            (
                "time,signal,value\n1,load,\n",
                "line 2: value: is missing for the signal \"load\"",
            ),
            (
                "time,signal,value\n1,,5\n",
                "line 2: signal: is missing; use one of load",
            ),
            (
                "time,signal,value\n1,laod,1\n",
                "line 2: signal: \"laod\" is not a load of the policy; allowed are load",
            ),
            (
                "time,signal,value\n1,load,1\n1,load,2\n",
                "line 3: time: 1 is also the time of another sample of load",
            ),
            (
                "{\"time\":1,\"rate\":2}\n{\"time\":2,",
                "line 2: row: is not a JSON object",
            ),
            (
                "{\"time\":1,\"rps\":2}\n",
                "line 1: row: \"rps\" is not a field",
            ),
            (
                "{\"time\":1,\"signal\":7,\"value\":2}\n",
                "line 1: signal: 7 is not allowed",
            ),
        ];
        for (text, expected) in cases {
            let error = Recording::parse(text, &["load"]).unwrap_err().to_string();
            assert!(
                error.starts_with(expected),
                "{text:?} gave\n{error}\nnot\n{expected}"
            );
        }
    }

    #[test]
    fn a_recording_that_cannot_be_replayed_is_refused_with_the_reason() {
        let samples = |from: u32, to: u32| {
            (from..to)
                .map(|n| Reading {
                    value: 1.0,
                    at: f64::from(n) * 15.0,
                })
                .collect::<Vec<_>>()
        };
        let record = |load: Vec<Reading>, rate: Vec<Reading>| Recording {
            signals: [("load".to_owned(), load)].into(),
            rate,
        };
        let gap: Vec<Reading> = samples(0, 10).into_iter().chain(samples(60, 100)).collect();
        let zero = samples(0, 50)
            .into_iter()
            .map(|r| Reading { value: 0.0, ..r })
            .collect();
        let cases = [
            (
                record(samples(0, 50), vec![]),
                "rate: has no values in this range",
            ),
            (
                record(samples(0, 50), gap),
                "rate: has no value from 135 to 900 (765 s)",
            ),
            (record(samples(0, 50), zero), "rate: is always 0"),
            (
                record(vec![], samples(0, 50)),
                "load: has no samples in this range",
            ),
            (
                record(samples(0, 15), samples(0, 50)),
                "load: has 15 samples while the rate",
            ),
            (
                record(samples(100, 150), samples(0, 50)),
                "load: has 0 samples while the rate",
            ),
        ];
        for (record, expected) in cases {
            let error = record.check(&["load"]).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}\nnot\n{expected}");
        }
        assert_eq!(
            record(samples(4, 50), samples(0, 40)).check(&["load"]),
            Ok((60.0, 585.0))
        );
    }

    #[test]
    fn the_mean_rate_weighs_each_stretch_by_its_length() {
        let rate = [(10.0, 4.0), (20.0, 8.0), (30.0, 2.0)].map(|(at, value)| Reading { value, at });
        let record = Recording {
            rate: rate.into(),
            ..Recording::default()
        };
        assert_eq!(record.mean_rate(5.0, 15.0), 6.0);
        assert_eq!(record.mean_rate(12.0, 14.0), 8.0);
        assert_eq!(
            (record.mean_rate(-50.0, -40.0), record.mean_rate(40.0, 50.0)),
            (4.0, 2.0)
        );
    }
}
