//! The knobs files of a process, and the policies in them.

use std::path::Path;

#[cfg(feature = "governor")]
use crate::governor::Policy;
#[cfg(feature = "governor")]
use crate::input::TomlDocument;
use crate::throttle::KnobsFile;
#[cfg(feature = "governor")]
use crate::throttle::Name;

#[cfg(feature = "governor")]
/// The policies of the governed throttles, each with the throttle's name.
pub(crate) type Policies = Vec<(Name, Policy)>;

/// Reads every file of the knobs folder; an invalid one stops the start. A missing folder counts as
/// empty.
pub(crate) fn read_knobs(dir: &Path) -> anyhow::Result<Vec<KnobsFile>> {
    if !dir.exists() {
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
            None if has_law(&file.text) => {
                tracing::warn!(file = %file.path.display(), "there is a table [governor] but no [[signal]]: no governor runs for this throttle");
            }
            None => {}
        }
    }
    Ok(policies)
}

/// Returns true if a knobs file has a table `[governor]`.
#[cfg(feature = "governor")]
fn has_law(text: &str) -> bool {
    TomlDocument::parse(text).is_ok_and(|document| document.value.get("governor").is_some())
}

#[cfg(all(test, feature = "governor"))]
mod tests {
    use super::*;

    #[test]
    fn a_law_is_found_however_it_is_written() {
        for text in [
            "[governor]\n",
            "[governor] # the law\ngain = 2\n",
            "[ governor ]\n",
            "governor = { gain = 2 }\n",
        ] {
            assert!(has_law(text), "{text}");
        }
        for text in ["", "[knobs]\nrps = 1\n", "# [governor]\n", "[governor\n"] {
            assert!(!has_law(text), "{text}");
        }
    }
}
