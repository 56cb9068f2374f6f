//! `flyball encrypt` and `flyball secret-key`.

use std::io::IsTerminal;
use std::process::ExitCode;

use anyhow::bail;
use serde_json::{Value, json};

use super::exit::CliError;
use super::given_text::given_text;
use super::output;
use super::output::{say, tell};
use crate::app;
use crate::input::json::{JsonReadError, parse_short};
use crate::jobs::SecretKeys;
use crate::jobs::postgres::nonce;
use crate::jobs::secret::{self, KEY_BYTES};

#[derive(clap::Args)]
#[command(after_help = "Examples:
  export FLYBALL_SECRET_KEYS=$(flyball secret-key)
  flyball encrypt --kind http 'Bearer 5up3r'        prints {\"$encrypted\":\"v1...\"}
  flyball encrypt --kind charge --tenant acme @card.json        any JSON value
  psql -v token=\"$(flyball encrypt --kind report @token)\" ...")]
pub(super) struct Args {
    /// The kind of the jobs that will hold the value; it decrypts in no other
    #[arg(long)]
    kind: String,
    /// The tenant that the jobs will belong to; empty for none
    #[arg(long, default_value = "")]
    tenant: String,
    /// The value: JSON or plain text; @FILE, or - for standard input, without its last newline
    value: String,
}

#[derive(clap::Args)]
pub(super) struct SecretKeyArgs {
    /// Print JSON, with the id of the key
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let keys = app::secret_keys()?;
    for (name, text) in [("kind", &args.kind), ("tenant", &args.tenant)] {
        if text.contains('\0') || name == "kind" && text.is_empty() {
            bail!(CliError::Refused(format!(
                "{name}: must be a text without U+0000, and a kind must not be empty; nothing was encrypted"
            )));
        }
    }
    let text = given_text(&args.value)?;
    let text = if args.value == "-" || args.value.starts_with('@') {
        text.strip_suffix('\n').map_or(text.as_str(), |text| {
            text.strip_suffix('\r').unwrap_or(text)
        })
    } else {
        &text
    };
    let value: Value = serde_json::from_str(text).unwrap_or_else(|_| text.into());
    // The problem does not quote the value, because it is a secret.
    let problem = match parse_short(text) {
        Err(JsonReadError::LongInteger(_)) => Some(
            "has an integer of more than 64 bits, which would be rounded; allowed: integers of at most 64 bits, \
             and larger ones as texts, in double quotes",
        ),
        // A text that is not JSON is the value itself.
        Err(_) if !value.is_string() => {
            Some("has a field that is given twice, of which one would be lost")
        }
        _ => None,
    };
    if let Some(problem) = problem {
        bail!(CliError::Refused(format!(
            "value: {problem}; nothing was encrypted"
        )));
    }
    let mut value = json!({ secret::PLAIN: value });
    keys.encrypt(&args.kind, &args.tenant, &mut value, nonce)
        .map_err(|issue| {
            CliError::Refused(format!("value: {}; nothing was encrypted", issue.message))
        })?;
    say!("{value}");
    Ok(ExitCode::SUCCESS)
}

pub(super) fn print_key(args: &SecretKeyArgs) -> anyhow::Result<ExitCode> {
    let bytes: [u8; KEY_BYTES] = rand::random();
    let key = SecretKeys::text_of(&bytes);
    if args.json {
        let keys = SecretKeys::parse(&key).map_err(anyhow::Error::msg)?;
        let id = keys.ids().next().unwrap_or_default();
        output::json(&json!({ "key": key, "id": id }))?;
    } else {
        say!("{key}");
    }
    if std::io::stderr().is_terminal() && std::io::stdout().is_terminal() {
        tell!(
            "keep it where your other secrets are; every process of Flyball needs it as FLYBALL_SECRET_KEYS"
        );
    }
    Ok(ExitCode::SUCCESS)
}
