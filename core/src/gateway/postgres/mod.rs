//! Channels in Postgres: publications, their history, and tickets.

mod collect;
mod history;
mod lock;
mod maintenance;
mod publish;
mod renewal;
mod tickets;
mod usage;

pub use collect::{
    CollectOutcome, TenantGrant, WaitingPublications, collect, collect_granted, waiting_of,
};
pub use history::{ChannelPosition, HistoryPage, StoredMessage, after, last_seq, pages, positions};
pub use maintenance::{ChannelPlace, GatewayBacklog, forget, gateway_backlog, prune};
pub use publish::{NewPublication, Published, publish};
pub use renewal::{FoundEnd, ReadMark, history_end, last_mark, renew_channels};
pub use tickets::{issue_ticket, take_tickets};
pub use usage::{
    ChannelUsage, ConnectionReport, channel_usage, gone_inboxes, limited_tenants,
    report_connections,
};

/// The statements of this folder, for the test that prepares each.
pub const GATEWAY_STATEMENTS: &[(&str, &str)] = &[
    ("publications: lock", lock::LOCK),
    ("publications: waiting", collect::WAITING),
    ("publications: waiting of", collect::WAITING_OF),
    ("publications: move", collect::MOVE),
    ("publications: trim", collect::TRIM),
    ("publications: add", publish::PUBLISH),
    ("channels: last", history::LAST_SEQ),
    ("channels: after", history::AFTER),
    ("channels: large", history::LARGE),
    ("channels: positions", history::POSITIONS),
    ("channels: pages", history::PAGES),
    ("tickets: issue", tickets::ISSUE),
    ("tickets: take", tickets::TAKE),
    ("channels: limited", usage::LIMITED),
    ("channels: inboxes that are gone", usage::GONE_INBOXES),
    ("channels: report", usage::REPORT),
    ("channels: usage", usage::LIST),
    ("channels: any", maintenance::NEEDS_MAINTENANCE),
    ("channels: prune", maintenance::PRUNE),
    ("channels: forget", maintenance::FORGET),
    ("channels: last mark", renewal::LAST_MARK),
    ("channels: end", renewal::LOOK),
    ("channels: renew", renewal::RENEW),
];
