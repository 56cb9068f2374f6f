//! Items whose recipient has opted out of them since they were put into their digest.

use std::collections::{BTreeMap, HashMap};

use sqlx::postgres::PgRow;
use sqlx::{Row, query};

use super::digest_messages::DueDigest;
use super::rows::GateInput;
use super::statement::query_unprepared;
use crate::jobs::Error;
use crate::postgres::Transaction;
use crate::providers::Channel;
use crate::recipient::fields::USUAL_CATEGORY;
use crate::recipient::preferences::{Preference, Preferences};
use crate::recipient::rules::RecipientRules;

pub(super) const TOPICS: &str = "
select distinct i.digest_id, i.item ->> 'category' as category, i.item ->> 'template_id' as template
from flyball.digest_item i
where i.digest_id = any($1)";

pub(super) const TAKE_UNWANTED: &str = "
delete from flyball.digest_item i
using unnest($1::bigint[], $2::text[], $3::text[]) as a(digest_id, category, template)
where i.digest_id = any($1) and i.digest_id = a.digest_id
    and (i.item ->> 'category') is not distinct from a.category
    and (i.item ->> 'template_id') is not distinct from a.template
returning i.digest_id, i.job_id, a.category, a.template";

pub(super) const FEWER: &str = "
update flyball.digest set items = items - $2 where id = $1";

/// A digest, with a category and a template of its items.
type ItemTopic = (i64, Option<String>, Option<String>);

/// The choices that count for the items of a digest: of its recipient, and of its tenant.
pub(super) struct ItemChoices {
    channel: Channel,
    own: Preferences,
    defaults: Preferences,
}

impl ItemChoices {
    /// Returns the choices of the recipient of a digest; `None` if no message is unwanted.
    pub(super) fn of(input: &GateInput) -> Option<Self> {
        let (own, defaults) = (&input.profile.preferences, &input.defaults.preferences);
        let mut all = own.0.iter().chain(&defaults.0);
        all.any(|choice| !choice.wanted).then(|| Self {
            channel: input.args.channel,
            own: own.clone(),
            defaults: defaults.clone(),
        })
    }

    /// Returns the choice against items of a category and a template; `None` if they may go.
    fn against(
        &self,
        rules: &RecipientRules,
        category: Option<&str>,
        template: Option<&str>,
    ) -> Option<String> {
        let category = category.unwrap_or(USUAL_CATEGORY);
        let opt_out = (self.own).opt_out(&self.defaults, self.channel, category, template);
        opt_out
            .filter(|_| !rules.category(category).mandatory)
            .map(Preference::to_string)
    }
}

/// An item that was taken out of its digest.
pub(super) struct UnwantedItem {
    pub digest: i64,
    pub job_id: i64,
    /// The choice of its recipient.
    pub rule: String,
}

/// Takes the items that their recipients do not want out of the digests with these ids, and counts
/// them no longer.
pub(super) async fn take_unwanted(
    connection: &mut Transaction,
    due: &mut [DueDigest],
    choices: &HashMap<i64, ItemChoices>,
    rules: &RecipientRules,
) -> Result<Vec<UnwantedItem>, Error> {
    if choices.is_empty() {
        return Ok(Vec::new());
    }
    let ids: Vec<i64> = choices.keys().copied().collect();
    let rows = query_unprepared(TOPICS)
        .bind(ids)
        .fetch_all(&mut *connection)
        .await?;
    let mut unwanted: BTreeMap<ItemTopic, String> = BTreeMap::new();
    for row in &rows {
        let topic = topic(row)?;
        let choices = choices.get(&topic.0);
        let rule =
            choices.and_then(|one| one.against(rules, topic.1.as_deref(), topic.2.as_deref()));
        if let Some(rule) = rule {
            unwanted.insert(topic, rule);
        }
    }
    if unwanted.is_empty() {
        return Ok(Vec::new());
    }
    let taken = query_unprepared(TAKE_UNWANTED)
        .bind(unwanted.keys().map(|topic| topic.0).collect::<Vec<_>>())
        .bind(
            unwanted
                .keys()
                .map(|topic| topic.1.clone())
                .collect::<Vec<_>>(),
        )
        .bind(
            unwanted
                .keys()
                .map(|topic| topic.2.clone())
                .collect::<Vec<_>>(),
        )
        .fetch_all(&mut *connection)
        .await?;
    let mut items = Vec::with_capacity(taken.len());
    let mut counts: HashMap<i64, i32> = HashMap::new();
    for row in &taken {
        let topic = topic(row)?;
        *counts.entry(topic.0).or_default() += 1;
        items.push(UnwantedItem {
            digest: topic.0,
            job_id: row.try_get("job_id")?,
            rule: unwanted.get(&topic).cloned().unwrap_or_default(),
        });
    }
    for digest in due {
        if let Some(count) = counts.get(&digest.id) {
            count_fewer(connection, digest.id, *count).await?;
            digest.items -= count;
        }
    }
    Ok(items)
}

/// Counts the items that were taken out of a digest no longer.
pub(super) async fn count_fewer(
    connection: &mut Transaction,
    digest: i64,
    fewer: i32,
) -> Result<(), Error> {
    let counted = query(FEWER).bind(digest).bind(fewer);
    counted.execute(connection).await?;
    Ok(())
}

fn topic(row: &PgRow) -> Result<ItemTopic, sqlx::Error> {
    Ok((
        row.try_get("digest_id")?,
        row.try_get("category")?,
        row.try_get("template")?,
    ))
}
