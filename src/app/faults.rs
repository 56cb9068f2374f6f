//! Everything that is wrong with the settings of a process.

/// A reason for which no process starts with these settings.
pub(crate) struct Unusable {
    /// The fault, with its place.
    pub(crate) error: anyhow::Error,
    /// The remedy, for people.
    #[cfg_attr(
        not(feature = "cli"),
        expect(dead_code, reason = "the doctor shows it")
    )]
    pub(crate) todo: &'static str,
}

/// Everything that is wrong with the settings, in the order in which it was found.
#[derive(Default)]
pub(super) struct Faults(pub(super) Vec<Unusable>);

impl Faults {
    /// Takes a part, or notes why there is none.
    pub(super) fn take<T, E: Into<anyhow::Error>>(
        &mut self,
        part: Result<T, E>,
        todo: &'static str,
    ) -> Option<T> {
        let noted = part.map_err(|error| {
            let error = error.into();
            self.0.push(Unusable { error, todo });
        });
        noted.ok()
    }

    /// Returns the error of a start, which is the first fault.
    pub(super) fn into_error(self) -> anyhow::Error {
        let first = self.0.into_iter().next().map(|fault| fault.error);
        first.unwrap_or_else(|| anyhow::anyhow!("the settings cannot be used"))
    }
}
