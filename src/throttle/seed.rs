//! Seeds the store with the knobs of files where they are absent; live edits stay.

use std::collections::BTreeMap;

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
