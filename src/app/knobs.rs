//! The knobs files of a process, and the policies in them.

use std::path::Path;

#[cfg(feature = "governor")]
use crate::governor::Policy;
use crate::throttle::KnobsFile;
#[cfg(feature = "governor")]
use crate::throttle::Name;

#[cfg(feature = "governor")]
/// The policies of the governed throttles, each with the throttle's name.
pub(crate) type Policies = Vec<(Name, Policy)>;

/// Reads every file of the knobs folder; an invalid one stops the start. A missing folder counts as
/// empty, and a link that leads nowhere does not.
pub(crate) fn read_knobs(dir: &Path) -> anyhow::Result<Vec<KnobsFile>> {
    if dir.symlink_metadata().is_err() {
        return Ok(Vec::new());
    }
    Ok(KnobsFile::read_dir(dir)?)
}

/// Reads the policies in the knobs files; an invalid one stops the start.
#[cfg(feature = "governor")]
pub(crate) fn policies(files: &[KnobsFile]) -> anyhow::Result<Policies> {
    let mut policies = Vec::new();
    for file in files {
        match Policy::parse(&file.text, &file.path.display().to_string())? {
            Some(policy) => policies.push((file.name.clone(), policy)),
            None if Policy::has_law(&file.text) => {
                tracing::warn!(file = %file.path.display(), "there is a table [governor] but no [[signal]]: no governor runs for this throttle");
            }
            None => {}
        }
    }
    Ok(policies)
}
