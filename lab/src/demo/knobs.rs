//! The demo's copy of `knobs/reindex.toml`: the same policy, with the store's own address.

/// The file in the repository, with its comments.
const TEMPLATE: &str = include_str!("../../../knobs/reindex.toml");
/// The address of the store's metrics in the template.
const PROBE_URL: &str = "http://127.0.0.1:9201/metrics";

/// The knobs file of `default`, the throttle of jobs that name none.
pub(super) const DEFAULT: &str = include_str!("../../../knobs/default.toml");

/// The throttle of the story.
pub(super) const THROTTLE: &str = "reindex";

/// The part of the throttle's file that the story uses.
#[derive(Clone, Debug, PartialEq, serde::Deserialize)]
pub(super) struct File {
    pub(super) knobs: StoryKnobs,
    /// The signals; the first is the store's load.
    pub(super) signal: Vec<StorySignal>,
}

/// The knobs that the story sets at its beginning.
#[derive(Clone, Debug, PartialEq, serde::Deserialize)]
pub(super) struct StoryKnobs {
    /// The initial rate, in documents per second.
    pub(super) rps: f64,
    /// The rate without a governor, in documents per second.
    pub(super) safe_rps: f64,
}

/// The part of a signal that the report uses.
#[derive(Clone, Debug, PartialEq, serde::Deserialize)]
pub(super) struct StorySignal {
    /// The load to hold.
    pub(super) setpoint: f64,
}

/// Returns the text of the demo's copy.
pub(super) fn render(store_url: &str) -> String {
    TEMPLATE.replace(PROBE_URL, &format!("{store_url}/metrics"))
}

/// Parses the file in the repository.
pub(super) fn read() -> Result<File, toml::de::Error> {
    toml::from_str(TEMPLATE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_copy_probes_the_store_that_the_demo_started() {
        let copy = render("http://127.0.0.1:4321");

        assert!(
            copy.contains("probe = \"http://127.0.0.1:4321/metrics\"") && !copy.contains(PROBE_URL)
        );
    }

    #[test]
    fn the_file_holds_what_the_story_needs() {
        let file = read().unwrap();

        assert!(file.signal[0].setpoint > 0.0 && file.knobs.rps > 0.0);
    }
}
