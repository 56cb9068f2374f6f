//! The composition root: the only place that assembles the rooms into a process.

#[cfg(feature = "api")]
mod api_tokens;
#[cfg(feature = "api")]
mod clock;
#[cfg(feature = "api")]
mod decisions;
mod descriptors;
mod faults;
#[cfg(feature = "api")]
mod gateway;
#[cfg(feature = "governor")]
mod govern;
mod kinds;
mod knob_backup;
mod knobs;
mod library;
#[cfg(feature = "api")]
mod listeners;
mod logging;
mod loops;
mod made_throttles;
mod otel;
#[cfg(feature = "notifications")]
mod pools;
mod prepare;
#[cfg(feature = "notifications")]
mod recipient_rules;
#[cfg(feature = "api")]
mod remote;
mod replica;
mod roles;
mod secret_keys;
mod seeding;
mod serve;
#[cfg(feature = "governor")]
mod servers;
mod share;
mod start;
mod warnings;

// The parts that a feature turns on. A build without it has a stand-in with the same interface,
// which does nothing, so that the start of a process reads the same in every build.
#[cfg(feature = "governor")]
mod governing;
#[cfg(not(feature = "governor"))]
#[path = "app/without_governor.rs"]
mod governing;
#[cfg(feature = "api")]
mod http_api;
#[cfg(not(feature = "api"))]
#[path = "app/without_api.rs"]
mod http_api;
#[cfg(feature = "notifications")]
mod messaging;
#[cfg(not(feature = "notifications"))]
#[path = "app/without_messages.rs"]
mod messaging;

#[cfg(feature = "api")]
pub use decisions::JournalReader;
#[cfg(feature = "cli")]
pub(crate) use descriptors::open_files;
pub use kinds::built_in_kinds;
#[cfg(feature = "cli")]
pub(crate) use knobs::{policies, read_knobs};
pub use library::{Builder, Runner};
pub use logging::start_logging;
#[cfg(feature = "cli")]
pub(crate) use prepare::unusable;
#[cfg(feature = "cli")]
pub(crate) use recipient_rules::changed_at;
#[cfg(feature = "cli")]
pub(crate) use replica::open as open_replica;
pub use roles::Roles;
#[cfg(feature = "cli")]
pub(crate) use secret_keys::secret_keys;
#[cfg(feature = "cli")]
pub(crate) use serve::ignores_hangup;
pub use serve::serve;
#[cfg(feature = "governor")]
pub use servers::prometheus_sources;
pub use start::App;
#[cfg(feature = "cli")]
pub(crate) use start::{
    NO_POSTGRES, check_database_url, migrate, redis_store, unreachable, unreleased_schema,
};
#[cfg(feature = "cli")]
pub(crate) use warnings::warnings;
