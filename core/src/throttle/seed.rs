//! Seeds the store with the knobs of files where they are absent; live edits stay.

use std::collections::BTreeMap;

use super::admission::{SETTINGS, TenantLimits};
use super::on_demand::{MADE_FROM, follow, make};
use super::{Change, Error, KnobsFile, Name, Store};

/// Seeds every file and returns the throttles that were created.
pub async fn seed(store: &dyn Store, files: &[KnobsFile]) -> Result<Vec<Name>, Error> {
    let mut created = Vec::new();
    for file in files {
        let fields: BTreeMap<_, _> = file
            .fields
            .iter()
            .map(|(field, text)| (field.clone(), Some(text.clone())))
            .collect();
        let change = Change {
            fields,
            by: "file".to_owned(),
            why: format!("seeded from {}", file.path.display()),
            create: true,
            absent_only: true,
            ..Change::default()
        };
        match store.set(&file.name, &change).await {
            Ok((None, _)) => created.push(file.name.clone()),
            Ok(_) => {}
            // A live edit stays and is shown in the status; it must not keep the process from
            // starting.
            Err(Error::Invalid(problems)) => {
                let reason = Error::Invalid(problems).to_string();
                tracing::warn!(throttle.name = %file.name, reason, "the knobs of the file conflict with those in the store");
            }
            Err(error) => return Err(error),
        }
    }
    Ok(created)
}

/// Makes the patterns if they do not exist, and brings the knobs that were not set since to the
/// present settings.
pub async fn seed_patterns(store: &dyn Store, limits: &TenantLimits) -> Result<(), Error> {
    for (name, knobs) in limits.patterns() {
        let change = match store.status(&name).await? {
            None => Some(make(SETTINGS, &knobs)),
            Some(status)
                if status
                    .raw
                    .get(MADE_FROM)
                    .is_some_and(|from| from == SETTINGS) =>
            {
                follow(&status.raw, &knobs)
            }
            Some(_) => None,
        };
        if let Some(change) = change {
            match store.set(&name, &change).await {
                // Another process was faster.
                Ok(_) | Err(Error::Conflict { .. }) => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}
