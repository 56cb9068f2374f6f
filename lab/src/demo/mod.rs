//! The demo: Close's story with real parts and real text.
//!
//! A corpus of 117,659 documents (WordNet) is copied into a search store that really indexes them,
//! through a throttle whose rate a governor holds to the store's capacity. After a while the
//! documents become ten times harder to index. The second act is a campaign of messages over a pool
//! of accounts at a provider whose quota is halved without notice.
//!
//! - [`corpus`] reads the documents from the system's package and loads them into the source
//!   database.
//! - [`store`] is the search store, a process of its own: `flyball-lab demo-store`.
//! - [`story`] is the sequence of events; read it first. [`run`] is the interface to the
//!   application, [`setup`] makes what the story needs, [`pass`] is one reindex over the corpus.
//! - [`campaign`] is the second act, [`pool`] its accounts, [`tally`] its figures,
//!   [`campaign_plot`] its plot.
//! - [`report`] holds the figures of the first act, [`plot`] draws them, [`results`] writes both.

mod campaign;
mod campaign_plot;
mod corpus;
mod knobs;
mod narrate;
mod options;
mod pass;
mod plot;
mod pool;
mod postgres;
mod report;
mod results;
mod run;
mod setup;
mod store;
mod store_process;
mod story;
mod tally;
mod watch;

pub(crate) use options::{Act, DemoOptions, GovernorSwitch, PlotOptions, StoreOptions};
pub(crate) use plot::plot;
pub(crate) use run::Unavailable;
pub(crate) use store::serve;
pub(crate) use story::run;
