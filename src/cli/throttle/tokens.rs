//! Tokens on the command line: take, look, return, settle, and report how the work went.

use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use serde_json::json;

use super::name::{known, of_one};
use crate::cli::choice::choice;
use crate::cli::exit::CliError;
use crate::cli::output::{self, say};
use crate::throttle::{
    AcquireRequest, AcquireResponse, Error, KeyOutcomes, LaneRequest, Limit, MAX_COST, MAX_PAUSE,
    Scope, Store, UpstreamRefusal, check_cost, check_key, check_settled, check_wanted,
};

#[derive(clap::Args)]
pub(super) struct TokenLane {
    /// The throttle
    name: String,
    /// The rate-limit key; none by default
    #[arg(long, default_value = "")]
    key: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
pub(crate) struct TokensWanted {
    #[command(flatten)]
    lane: TokenLane,
    /// Tokens, all or nothing
    #[arg(long, default_value_t = 1.0, allow_negative_numbers = true)]
    tokens: f64,
}

#[derive(clap::Args)]
pub(crate) struct TokensUnused {
    #[command(flatten)]
    lane: TokenLane,
    /// Tokens that no work used
    #[arg(long, allow_negative_numbers = true)]
    tokens: f64,
}

#[derive(clap::Args)]
pub(crate) struct TokensSettled {
    #[command(flatten)]
    lane: TokenLane,
    /// Tokens that were taken
    #[arg(long, allow_negative_numbers = true)]
    charged: f64,
    /// Tokens that the work cost
    #[arg(long, allow_negative_numbers = true)]
    cost: f64,
}

#[derive(clap::Args)]
pub(crate) struct RefusalArgs {
    #[command(flatten)]
    lane: TokenLane,
    /// Seconds that the server asked to wait; by the throttle's own rules if left out
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true)]
    retry_after: Option<f64>,
    /// The work that must wait: that of the key, of the whole throttle, or of the account above it
    #[arg(long, default_value = "key", value_parser = scope)]
    scope: Scope,
    /// The server sheds load from all its callers: no rate is learned
    #[arg(long)]
    overloaded: bool,
    /// The answer of the server, shown to operators
    #[arg(long, default_value = "a person reported a refusal")]
    error: String,
}

#[derive(clap::Args)]
pub(crate) struct EndsArgs {
    #[command(flatten)]
    lane: TokenLane,
    /// Units that succeeded
    #[arg(long, default_value_t = 0, allow_negative_numbers = true)]
    succeeded: u32,
    /// Units that failed without a refusal, or never began
    #[arg(long, default_value_t = 0, allow_negative_numbers = true)]
    failed: u32,
}

/// Takes tokens, or looks whether they could be taken. Returns true if all of them were granted.
pub(super) async fn take(
    store: &Arc<dyn Store>,
    wanted: TokensWanted,
    is_peek: bool,
) -> anyhow::Result<bool> {
    let tokens = positive("tokens", wanted.tokens)?;
    let (throttle, key) = (of_one(&wanted.lane.name)?, key_of(&wanted.lane)?);
    // This makes a throttle for which there is a pattern.
    check_wanted(&**store, &throttle, "tokens", tokens).await?;
    let ask = AcquireRequest {
        throttle,
        lanes: vec![LaneRequest {
            key,
            cost: tokens,
            want: 1,
            ..LaneRequest::default()
        }],
        holder: None,
    };
    let answer: AcquireResponse = match is_peek {
        true => store.peek(&ask).await,
        false => store.acquire(&ask).await,
    };
    let Some(grant) = answer.lanes.into_iter().next() else {
        bail!("the throttle store answered without a grant")
    };
    if matches!(grant.limit, Some(Limit::StoreLost)) {
        let reason = answer.server_error.unwrap_or("no answer");
        bail!(Error::Lost(reason.to_owned()));
    }
    if grant.says_unknown(&ask.throttle) {
        bail!(Error::Unknown(ask.throttle));
    }
    let (name, key) = (ask.throttle.as_str(), &ask.lanes[0].key);
    let allowed = grant.granted > 0;
    let (rps, by_windows) = (answer.effective_rps, grant.by_windows);
    let sentence = |limit| crate::api::waiting::sentence(name, key, rps, limit, by_windows);
    let reason = grant.limit.as_ref().map(sentence);
    let wait_s = grant.wait.as_secs_f64();
    if wanted.lane.json {
        output::json(&json!({
            "allowed": allowed, "wait_s": wait_s, "limit": grant.limit, "reason": reason,
            "effective_rps": answer.effective_rps,
        }))?;
        return Ok(allowed);
    }
    match (allowed, is_peek, reason) {
        (true, false, _) => say!("{tokens} tokens of {name} are taken"),
        (true, true, _) => say!("{tokens} tokens of {name} can be taken now"),
        (false, _, reason) => say!(
            "not now: {}; again in {wait_s:.3} s",
            reason.unwrap_or_default()
        ),
    }
    Ok(allowed)
}

/// Returns tokens that no work used.
pub(super) async fn give_back(store: &Arc<dyn Store>, unused: TokensUnused) -> anyhow::Result<()> {
    let tokens = positive("tokens", unused.tokens)?;
    let (throttle, key) = lane(store, &unused.lane).await?;
    check_cost(&**store, &throttle, "tokens", tokens).await?;
    store.settle_many(&throttle, &[(&key, -tokens)]).await?;
    if unused.lane.json {
        let shown = json!({ "throttle": throttle, "key": key, "returned": tokens });
        return output::json(&shown);
    }
    say!("{tokens} tokens are returned to {throttle}");
    Ok(())
}

/// Charges or returns the difference between the charge and the real cost.
pub(super) async fn settle(store: &Arc<dyn Store>, settled: TokensSettled) -> anyhow::Result<()> {
    for (field, tokens) in [("charged", settled.charged), ("cost", settled.cost)] {
        in_range(field, tokens, MAX_COST, "tokens")?;
    }
    let (throttle, key) = lane(store, &settled.lane).await?;
    check_settled(&**store, &throttle, settled.charged, settled.cost).await?;
    let tokens = settled.cost - settled.charged;
    store.settle_many(&throttle, &[(&key, tokens)]).await?;
    if settled.lane.json {
        return output::json(&json!({ "throttle": throttle, "key": key, "settled": tokens }));
    }
    match tokens {
        0.0 => say!("the charge was right"),
        more if more > 0.0 => say!("{more} more tokens are charged to {throttle}"),
        less => say!("{} tokens are returned to {throttle}", -less),
    }
    Ok(())
}

/// Reports a refusal by another server.
pub(super) async fn refused(store: &Arc<dyn Store>, refused: RefusalArgs) -> anyhow::Result<()> {
    if let Some(seconds) = refused.retry_after {
        in_range("retry-after", seconds, MAX_PAUSE.as_secs_f64(), "seconds")?;
    }
    let (throttle, key) = lane(store, &refused.lane).await?;
    let refusal = UpstreamRefusal {
        key: &key,
        scope: refused.scope,
        is_overload: refused.overloaded,
        is_untrusted: false,
        delay: refused.retry_after.map(Duration::from_secs_f64),
        jitter: rand::random(),
        why: &refused.error,
    };
    let effect = store.refused(&throttle, &refusal).await?;
    let until = jiff::Timestamp::from_millisecond(effect.until_ms)?;
    let is_alone = effect.alone.is_some();
    if refused.lane.json {
        let paused = (!is_alone).then_some(until);
        return output::json(&json!({ "throttle": throttle, "key": key, "paused_until": paused }));
    }
    match is_alone {
        true => say!("only the refused work waits, until {until:.0}"),
        false => say!("{throttle} waits until {until:.0}, where the refusal applies"),
    }
    Ok(())
}

/// Reports how work ended.
pub(super) async fn ended(store: &Arc<dyn Store>, ended: EndsArgs) -> anyhow::Result<()> {
    let (succeeded, failed) = (ended.succeeded, ended.failed);
    if succeeded == 0 && failed == 0 {
        bail!(CliError::Refused(
            "--succeeded and --failed are 0; allowed is more than 0 for one of them".to_owned()
        ));
    }
    let (throttle, key) = lane(store, &ended.lane).await?;
    let outcomes = KeyOutcomes {
        key: &key,
        succeeded,
        tokens: f64::from(succeeded),
        failed,
        ..KeyOutcomes::default()
    };
    store.ended(&throttle, &[outcomes]).await?;
    if ended.lane.json {
        return output::json(
            &json!({ "throttle": throttle, "key": key, "succeeded": succeeded, "failed": failed }),
        );
    }
    say!("{succeeded} succeeded and {failed} failed: {throttle} knows");
    Ok(())
}

async fn lane(
    store: &Arc<dyn Store>,
    lane: &TokenLane,
) -> anyhow::Result<(crate::throttle::Name, String)> {
    let key = key_of(lane)?;
    Ok((known(store, &lane.name).await?, key))
}

fn key_of(lane: &TokenLane) -> anyhow::Result<String> {
    check_key(&lane.key).map_err(|message| CliError::Refused(format!("--key: {message}")))?;
    Ok(lane.key.clone())
}

fn positive(field: &str, number: f64) -> anyhow::Result<f64> {
    if number > 0.0 && number <= MAX_COST {
        return Ok(number);
    }
    bail!(CliError::Refused(format!(
        "--{field} is {number}; allowed is more than 0 and at most {MAX_COST} tokens"
    )))
}

fn in_range(field: &str, number: f64, most: f64, unit: &str) -> anyhow::Result<()> {
    if (0.0..=most).contains(&number) {
        return Ok(());
    }
    bail!(CliError::Refused(format!(
        "--{field} is {number}; allowed is 0 to {most} {unit}"
    )))
}

fn scope(text: &str) -> Result<Scope, String> {
    choice(text, &Scope::WORDS)
}
