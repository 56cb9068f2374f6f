//! The sources of the rules by which gates decided: who set each, and when.

use jiff_sqlx::Timestamp as SqlTimestamp;
use sqlx::{Row, query};

use super::rows::GateInput;
use crate::jobs::Error;
use crate::postgres::Transaction;
use crate::recipient::address::suppression_digest;
use crate::recipient::explain::GateStep;
use crate::recipient::gate::MessageGate;
use crate::recipient::rule_source::{RuleSource, source_of};
use crate::recipient::rules::RecipientRules;

pub(super) const PROFILE_CHANGED: &str =
    "select updated_by, updated_at from flyball.recipient where tenant = $1 and id = $2";

pub(super) const DEFAULTS_CHANGED: &str =
    "select updated_by, updated_at from flyball.recipient_defaults where tenant = $1";

pub(super) const SUPPRESSED_SINCE: &str = "
select coalesce(s.account, '') as updated_by, s.created_at as updated_at from flyball.suppression s
where s.channel = $1 and s.recipient_digest = flyball.keyed_digest($2)";

/// Adds to each step that has a rule who set it.
pub(super) async fn add_sources(
    connection: &mut Transaction,
    input: &GateInput,
    rules: &RecipientRules,
    steps: &mut [GateStep],
) -> Result<(), Error> {
    let policy = input.policy(rules);
    let candidate = input.candidate();
    for step in steps {
        let Ok(gate) = step.gate.parse::<MessageGate>() else {
            continue;
        };
        if !step.decided() || (step.rule.is_empty() && gate != MessageGate::Suppression) {
            continue;
        }
        step.set_by = match source_of(gate, &step.rule, &candidate, policy) {
            Some(source) => Some(signed(connection, input, source).await?),
            None => None,
        };
    }
    Ok(())
}

/// Adds the author and the time that a row knows.
async fn signed(
    connection: &mut Transaction,
    input: &GateInput,
    source: RuleSource,
) -> Result<RuleSource, Error> {
    let id = input.args.fields.recipient.as_deref().unwrap_or_default();
    let found = match source.of {
        "profile" => {
            let asked = query(PROFILE_CHANGED).bind(&input.message.tenant).bind(id);
            asked.fetch_optional(connection).await?
        }
        "defaults" => {
            let asked = query(DEFAULTS_CHANGED).bind(&input.message.tenant);
            asked.fetch_optional(connection).await?
        }
        "suppression" => {
            let Some(to) = &input.to else {
                return Ok(source);
            };
            let known = suppression_digest(to.channel(), to.identity());
            let asked = query(SUPPRESSED_SINCE)
                .bind(to.channel().as_str())
                .bind(known);
            asked.fetch_optional(connection).await?
        }
        _ => None,
    };
    let Some(row) = found else {
        return Ok(source);
    };
    Ok(RuleSource {
        by: row.try_get("updated_by")?,
        at: Some(row.try_get::<SqlTimestamp, _>("updated_at")?.to_jiff()),
        ..source
    })
}
