-- Tokens of signatures that do not cover what they sign for: one that was seen is believed again only with the same body.

create table flyball.event_token (
    digest      bytea       primary key,
    body_digest bytea       not null,
    expires_at  timestamptz not null
);

create index event_token_expires on flyball.event_token (expires_at);
