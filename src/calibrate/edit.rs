//! Writes the fitted lag into a knobs file: one number changes, and the rest stays as it was.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::governor::Policy;

/// Returns the text with `lag_s` of a signal set; comments, order and spaces stay as they are.
/// Fails with a reason if the signal is not found or if the result would not be read as intended.
pub fn set_lag(text: &str, signal: &str, lag_s: f64) -> Result<String, String> {
    let missing = || format!("there is no [[signal]] with the name {signal:?}");
    let root = DeTable::parse(text).map_err(|error| error.message().to_owned())?;
    let entry = |table: &DeTable<'_>, key: &str| {
        table
            .iter()
            .find(|(k, _)| k.get_ref() == key)
            .map(|(_, value)| value.span())
    };
    let signals = root
        .get_ref()
        .iter()
        .find(|(key, _)| key.get_ref() == "signal")
        .map(|(_, value)| value.get_ref());
    let Some(DeValue::Array(tables)) = signals else {
        return Err(missing());
    };
    let is_meant = |table: &&Spanned<DeValue<'_>>| {
        let name = table
            .get_ref()
            .as_table()
            .and_then(|t| t.iter().find(|(key, _)| key.get_ref() == "name"));
        name.is_some_and(|(_, value)| value.get_ref().as_str() == Some(signal))
    };
    let table = tables.iter().find(is_meant).ok_or_else(missing)?;
    let DeValue::Table(entries) = table.get_ref() else {
        return Err(missing());
    };

    let edited = match (entry(entries, "lag_s"), entry(entries, "name")) {
        (Some(old), _) => format!("{}{lag_s}{}", &text[..old.start], &text[old.end..]),
        (None, Some(name)) if text[table.span()].trim_start().starts_with('{') => {
            format!(
                "{}, lag_s = {lag_s}{}",
                &text[..name.end],
                &text[name.end..]
            )
        }
        (None, Some(name)) => {
            // The new line goes below the name, with the same indent.
            let line_start = text[..name.start].rfind('\n').map_or(0, |at| at + 1);
            let indent: String = text[line_start..]
                .chars()
                .take_while(|c| *c == ' ' || *c == '\t')
                .collect();
            let line_end = text[name.end..]
                .find('\n')
                .map_or(text.len(), |at| name.end + at + 1);
            let (above, below) = text.split_at(line_end);
            let (newline, ending) = match (above.ends_with("\r\n"), above.ends_with('\n')) {
                (true, _) => ("", "\r\n"),
                (false, true) => ("", "\n"),
                (false, false) => ("\n", ""),
            };
            format!("{above}{newline}{indent}lag_s = {lag_s}{ending}{below}")
        }
        (None, None) => return Err(missing()),
    };
    let read = Policy::parse(&edited, "the file").map_err(|refused| refused.to_string())?;
    let is_set = read
        .as_ref()
        .and_then(|policy| policy.signal(signal))
        .is_some_and(|about| about.lag_s == lag_s);
    if is_set {
        Ok(edited)
    } else {
        Err(format!(
            "writing lag_s = {lag_s} into the signal {signal:?} failed"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::set_lag;

    const FILE: &str = "# Ours.\n[knobs]\nrps = 20   # to begin with\n\n[[signal]]\nname = \"mongo\"   # the old one\nquery = \"a\"\n\
                        setpoint = 2.0\nlag_s = 60 # load1\n\n[[signal]]\n  name = \"search\"\n  query = \"b\"\n  setpoint = 1.0\n";

    #[test]
    fn a_number_that_is_there_is_replaced_and_nothing_else() {
        assert_eq!(
            set_lag(FILE, "mongo", 30.0).unwrap(),
            FILE.replace("lag_s = 60 # load1", "lag_s = 30 # load1")
        );
    }

    #[test]
    fn a_number_that_is_not_there_gets_a_line_below_the_name() {
        let expected = FILE.replace(
            "  name = \"search\"\n",
            "  name = \"search\"\n  lag_s = 12.5\n",
        );
        assert_eq!(set_lag(FILE, "search", 12.5).unwrap(), expected);
        let last = "[[signal]]\r\nquery = \"a\"\r\nsetpoint = 1\r\nname = \"x\"";
        assert_eq!(
            set_lag(last, "x", 5.0).unwrap(),
            format!("{last}\nlag_s = 5")
        );
        let windows = "[[signal]]\r\nname = \"x\"\r\nquery = \"a\"\r\nsetpoint = 1\r\n";
        assert_eq!(
            set_lag(windows, "x", 5.0).unwrap(),
            windows.replace("\"x\"\r\n", "\"x\"\r\nlag_s = 5\r\n")
        );
    }

    #[test]
    fn a_table_in_one_line_stays_one() {
        let inline = "signal = [{ name = \"x\", query = \"a\", setpoint = 1 }]\n";
        assert_eq!(
            set_lag(inline, "x", 5.0).unwrap(),
            "signal = [{ name = \"x\", lag_s = 5, query = \"a\", setpoint = 1 }]\n"
        );
    }

    #[test]
    fn what_cannot_be_written_is_refused() {
        assert!(
            set_lag(FILE, "none", 5.0)
                .unwrap_err()
                .contains("no [[signal]] with the name \"none\"")
        );
        assert!(
            set_lag("[knobs]\nrps = 1\n", "x", 5.0)
                .unwrap_err()
                .contains("no [[signal]]")
        );
        assert!(set_lag("[knobs\n", "x", 5.0).is_err());
        assert!(
            set_lag(FILE, "mongo", 5000.0)
                .unwrap_err()
                .contains("from 0 to 900")
        );
    }
}
