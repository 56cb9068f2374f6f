//! The demo: Close's story with real parts and real text.
//!
//! A corpus of 117,659 documents (WordNet) is copied into a search store that really indexes them, through a throttle
//! whose rate a governor holds to what the store can bear. After a while the documents become ten times harder to index.
//!
//! - [`corpus`] reads the documents from the system's package and loads them into the source database.
//! - [`store`] is the search store, a process of its own: `flyball demo-store`.
//! - [`story`] is what happens; read it first. [`run`] is the seam to the application that is shown.
//! - [`report`] and [`plot`] tell it in figures and in a picture.
//!
//! Nothing here is needed to use Flyball, and no other room imports it.

pub mod corpus;
pub mod options;
pub mod plot;
pub mod report;
pub mod run;
pub mod store;
pub mod story;

mod knobs;
mod narrate;
mod postgres;
mod store_process;
mod watch;

pub use options::{GovernorSwitch, Options, PlotOptions, StoreOptions};
pub use run::{AppHandle, AppSettings, Unavailable};
pub use story::run;
