//! Files of rules for recipients.

use std::path::Path;

use super::given_text::text_of_file;
use crate::app::changed_at;
use crate::config::Settings;
use crate::recipient::rules::RecipientRules;

/// Reads a file, or refuses it with everything that is wrong.
pub(super) fn read(path: &Path) -> anyhow::Result<RecipientRules> {
    let file = path.display().to_string();
    let text = text_of_file(path)?;
    let mut rules = RecipientRules::parse(&file, &text)?;
    rules.origin.changed_at = changed_at(path);
    Ok(rules)
}

/// Returns the rules of the settings: those of their file, or the defaults.
pub(super) fn of_settings(settings: &Settings) -> anyhow::Result<RecipientRules> {
    match settings.recipients_file.as_str() {
        "" => Ok(RecipientRules::parse("recipients.toml", "")?),
        path => read(Path::new(path)),
    }
}
