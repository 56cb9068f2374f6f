//! The knobs of a command line: `KNOB=VALUE` arguments, and the end of manual control.

use std::collections::BTreeMap;

use anyhow::bail;
use serde_json::{Value, json};

use crate::cli::exit::CliError;
use crate::cli::when;
use crate::throttle::Knobs;

/// Parses `KNOB=VALUE` arguments.
pub(super) fn parse(knobs: &[String]) -> anyhow::Result<BTreeMap<String, Value>> {
    let mut fields = BTreeMap::new();
    for knob in knobs {
        let Some((name, text)) = knob.split_once('=') else {
            bail!(CliError::Refused(format!(
                "{knob:?} is not KNOB=VALUE; for instance rps=50"
            )));
        };
        let value = Knobs::value_of(name, text);
        if fields.insert(name.to_owned(), value).is_some() {
            bail!(CliError::Refused(format!(
                "{name:?} is given twice; give each knob once"
            )));
        }
    }
    Ok(fields)
}

/// Adds the mode manual with its end.
pub(super) fn manual_until(
    given: &mut BTreeMap<String, Value>,
    until: jiff::Timestamp,
) -> anyhow::Result<()> {
    if until <= when::now() {
        bail!(CliError::Refused(format!(
            "--until {until:.0} is in the past; allowed is a time in the future"
        )));
    }
    let mode = given
        .entry("mode".to_owned())
        .or_insert_with(|| json!("manual"));
    if *mode != json!("manual") {
        bail!(CliError::Refused(format!(
            "--until ends the mode manual, but mode is {mode}; use only one of them"
        )));
    }
    if given
        .insert("manual_until_ms".to_owned(), json!(until.as_millisecond()))
        .is_some()
    {
        bail!(CliError::Refused(
            "--until and manual_until_ms set the same knob; use only one of them".to_owned()
        ));
    }
    Ok(())
}
