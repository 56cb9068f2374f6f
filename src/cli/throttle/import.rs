//! `flyball throttle import-limitlion`: throttles that other programs have written to Redis.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::json;

use super::audit::note_audit;
use super::show::note;
use crate::cli::output::{self, say};
use crate::cli::signed::AuditArgs;
use crate::config::Settings;
use crate::throttle::{Error, Name, Store, foreign};

/// Lists the throttles that other programs have written, and with `yes` takes them over.
pub(super) async fn import(
    store: &Arc<dyn Store>,
    settings: &Settings,
    yes: bool,
    signed: &AuditArgs,
) -> anyhow::Result<()> {
    let mut found = Vec::new();
    for name in store.search().await? {
        // A pattern is Flyball's own: no tokens are taken from it.
        if Name::or_pattern(name.as_str()).is_ok_and(|name| name.is_pattern()) {
            continue;
        }
        match Name::new(name.as_str()) {
            Ok(known) => found.extend(import_one(store, settings, &known, yes, signed).await?),
            Err(error) => found.push(ForeignHash::refused(name, &error)),
        }
    }
    if signed.json {
        return output::json(&json!({ "adopted": yes, "throttles": found }));
    }
    if found.is_empty() {
        say!("every throttle in Redis already belongs to Flyball");
        return Ok(());
    }
    let rows = found.iter().map(|one| {
        let fields = ["rps", "burst", "window"]
            .map(|field| one.knobs.get(field).cloned().unwrap_or_default());
        [
            vec![output::clipped(&one.name, SHOWN_NAME)],
            fields.to_vec(),
            vec![one.note.clone()],
        ]
        .concat()
    });
    output::table(&["THROTTLE", "RPS", "BURST", "WINDOW", "NOTE"], rows)?;
    if !yes {
        say!("nothing was changed; add --yes to import them");
    }
    Ok(())
}

/// The most characters of a name in a table; names from Redis may be longer.
const SHOWN_NAME: usize = 60;

/// A hash that another program has written.
#[derive(serde::Serialize)]
struct ForeignHash {
    name: String,
    knobs: BTreeMap<String, String>,
    expires_in_s: Option<f64>,
    adopted: bool,
    note: String,
}

impl ForeignHash {
    fn refused(name: String, why: &dyn std::fmt::Display) -> Self {
        let note = format!("it cannot be imported: {why}");
        Self {
            name,
            knobs: BTreeMap::new(),
            expires_in_s: None,
            adopted: false,
            note,
        }
    }
}

async fn import_one(
    store: &Arc<dyn Store>,
    settings: &Settings,
    name: &Name,
    yes: bool,
    signed: &AuditArgs,
) -> anyhow::Result<Option<ForeignHash>> {
    // A hash may have expired since it was found.
    let Some(status) = store.status(name).await?.filter(foreign::is_foreign) else {
        return Ok(None);
    };
    if !yes || status.raw.is_empty() {
        let note = note(&status);
        let (name, expires_in_s) = (name.to_string(), status.expires_in_s);
        return Ok(Some(ForeignHash {
            name,
            knobs: status.raw,
            expires_in_s,
            adopted: false,
            note,
        }));
    }
    match foreign::adopt(&**store, &status, &signed.by, &signed.why).await {
        Ok((change, after)) => {
            note_audit(
                settings,
                &crate::api::AuditEntry::turned("throttle.import", &change, Some(&status), &after),
            )
            .await;
            let note = "imported".to_owned();
            Ok(Some(ForeignHash {
                name: name.to_string(),
                knobs: after.raw,
                expires_in_s: None,
                adopted: true,
                note,
            }))
        }
        Err(lost @ Error::Lost(_)) => Err(lost.into()),
        Err(error) => Ok(Some(ForeignHash::refused(name.to_string(), &error))),
    }
}
