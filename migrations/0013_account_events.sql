-- Chapter 13: changes of accounts' breakers, each of them once, for people and for alerts.

create table flyball.account_event (
    id         bigint generated always as identity primary key,
    pool       text        not null,
    account    text        not null,
    from_state text        not null,
    to_state   text        not null,
    reason     text        not null,
    changed_at timestamptz not null,
    created_at timestamptz not null default clock_timestamp()
);

create index account_event_of_pool on flyball.account_event (pool, id desc);
