//! The demo: Close's story with real parts and real text.
//!
//! A corpus of 117,659 documents (WordNet) is copied into a search store that really indexes them,
//! through a throttle whose rate a governor holds to the store's capacity. After a while the
//! documents become ten times harder to index. The second act is a campaign of messages over a pool
//! of accounts at a provider whose quota is halved without notice.
//!
//! - [`corpus`] reads the documents from the system's package and loads them into the source
//!   database.
//! - [`store`] is the search store, a process of its own: `flyball demo-store`.
//! - [`story`] is the sequence of events; read it first. [`run`] is the interface to the
//!   application.
//! - `campaign` is the second act, `pool` its accounts, [`tally`] its figures, [`campaign_plot`]
//!   its plot.
//! - [`report`] holds the figures of the first act, [`plot`] draws them.
//!
//! Flyball works without the demo, and no room except `cli` imports it.

pub mod campaign_plot;
pub mod corpus;
pub mod options;
pub mod plot;
pub mod report;
pub mod run;
pub mod store;
pub mod story;
pub mod tally;

mod campaign;
mod knobs;
mod narrate;
mod pool;
mod postgres;
mod store_process;
mod watch;

pub use options::{Act, DemoOptions, GovernorSwitch, PlotOptions, StoreOptions};
pub use run::{AppHandle, AppSettings, Unavailable};
pub use story::run;
