//! The demo: Close's story with real parts and real text.
//!
//! A corpus of 117,659 documents (WordNet) is copied into a search store that really indexes them, through a throttle
//! whose rate a governor holds to what the store can bear. After a while the documents become ten times harder to index.
//! The second act is a campaign of messages over a pool of accounts at a provider whose quota is halved in mid-flight.
//!
//! - [`corpus`] reads the documents from the system's package and loads them into the source database.
//! - [`store`] is the search store, a process of its own: `flyball demo-store`.
//! - [`story`] is what happens; read it first. [`run`] is the seam to the application that is shown.
//! - `campaign` is the second act, `pool` its accounts, [`tally`] its figures, [`campaign_plot`] its picture.
//! - [`report`] and [`plot`] tell it in figures and in a picture.
//!
//! Nothing here is needed to use Flyball, and no other room imports it.

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

pub use options::{Act, GovernorSwitch, Options, PlotOptions, StoreOptions};
pub use run::{AppHandle, AppSettings, Unavailable};
pub use story::run;
