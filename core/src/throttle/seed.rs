//! Seeds the store with the knobs of files where they are absent; live edits stay.

use super::admission::{SETTINGS, TenantLimits};
use super::caller_knobs::fields_of_pattern;
use super::on_demand::{MADE_FROM, follow, make};
use super::{Change, Error, KnobsFile, Name, Store};

/// Seeds every file and returns the throttles that were created.
///
/// A new throttle gets the other knobs of the pattern that fits it, as one that a person sets
/// before its first use does.
pub async fn seed(store: &dyn Store, files: &[KnobsFile]) -> Result<Vec<Name>, Error> {
    let mut created = Vec::new();
    let mut patterns = match files.iter().all(|file| file.name.is_pattern()) {
        true => Vec::new(),
        false => store.names().await?,
    };
    patterns.retain(Name::is_pattern);
    for file in files {
        let of_pattern = fields_of_pattern(store, &file.name, &patterns).await?;
        let mut fields = of_pattern.unwrap_or_default();
        let own = file.fields.iter();
        fields.extend(own.map(|(field, text)| (field.clone(), Some(text.clone()))));
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
        if file.name.is_pattern() && !patterns.contains(&file.name) {
            patterns.push(file.name.clone());
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
