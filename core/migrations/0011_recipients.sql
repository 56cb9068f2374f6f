-- Chapter 11: recipients: what protects the people who get messages.
--
-- A message that names a category, a recipient or anything else that gates look at stands in
-- `scheduled` with a turn below 0 until a planner has taken it through the gates: then it is ready, or
-- scheduled for the time at which it may go, or an item of a digest, or it has ended. So it is a
-- scheduled job for every operation, and what a producer writes is a row of its own, whatever else
-- goes to the same recipient.

-- === Recipients ==================================================================================

-- The profiles of a tenant's recipients, with the fields of `PUT /api/v1/recipients/{id}`.
create table flyball.recipient (
    tenant     text        not null,
    id         text        not null,
    profile    jsonb       not null,
    updated_at timestamptz not null default clock_timestamp(),
    -- The author of the last change, as the audit log names it.
    updated_by text        not null default '',
    primary key (tenant, id)
) with (fillfactor = 85);

-- What holds for all recipients of a tenant unless their profiles say otherwise.
create table flyball.recipient_defaults (
    tenant     text        primary key,
    profile    jsonb       not null,
    updated_at timestamptz not null default clock_timestamp(),
    updated_by text        not null default ''
);

-- === Caps and dedup ==============================================================================

-- The newest messages that went, by recipient and list: seconds since 2020, oldest first. Both are
-- digests; the address of a recipient cannot be read from them.
create table flyball.cap (
    recipient uuid   not null,
    list      int    not null,
    sent      int4[] not null,
    primary key (recipient, list)
) partition by hash (recipient);

-- The seconds for which messages wait that a cap holds.
create table flyball.cap_reservation (
    recipient uuid   not null,
    list      int    not null,
    at_s      int    not null,
    job_id    bigint not null
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay = 0);
create index cap_reservation_list on flyball.cap_reservation (recipient, list);

-- Messages that went, or are to go, by their content. A claim counts while its job lives; one that is
-- marked counts from the time at which a provider accepted the message.
create table flyball.dedup (
    recipient uuid        not null,
    content   bigint      not null,
    job_id    bigint      not null,
    at        timestamptz not null,
    is_marked boolean     not null default false,
    primary key (recipient, content)
) partition by hash (recipient);

do $$
begin
    for part in 0..15 loop
        execute format('create table flyball.cap_%s partition of flyball.cap for values with (modulus 16, remainder %s)
            with (fillfactor = 85, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0)', part, part);
        execute format('create table flyball.dedup_%s partition of flyball.dedup for values with (modulus 16, remainder %s)
            with (fillfactor = 85, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0)', part, part);
    end loop;
end $$;

-- === Plans =======================================================================================

-- What the gates found for a message, the last time that they looked, and what it has used up. A
-- message that goes at once, and has no slot of a cap, has no row.
create table flyball.message_plan (
    job_id     bigint      primary key,
    recipient  uuid        not null,
    -- sender, digest, or item: one of a closed digest that goes alone.
    origin     text        not null default 'sender' check (origin in ('sender', 'digest', 'item')),
    -- sending, held, collected or ended.
    state      text        not null default 'sending' check (state in ('sending', 'held', 'collected', 'ended')),
    -- The gate that decided; '' for none.
    gate       text        not null default '',
    rule       text        not null default '',
    -- Why it ended: cancelled, expired, unreachable, suppressed, opted_out, duplicate, quiet or capped.
    reason     text        not null default '',
    -- All waits of a held message in their order: gate, rule, until.
    holds      jsonb       not null default '[]',
    until      timestamptz,
    since      timestamptz not null default clock_timestamp(),
    -- The time that was told first.
    planned_at timestamptz,
    coalesces  boolean     not null default false,
    -- The other message, of a duplicate.
    other_job  bigint,
    -- The digest that has it, or that it closes.
    digest_id  bigint,
    -- The slots that it took: list n at second n.
    slot_lists int[]       not null default '{}',
    slot_s     int[]       not null default '{}'
) with (fillfactor = 85, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay = 0);
-- Without a condition, so that a plan that changes its state stays where it is.
create index message_plan_recipient on flyball.message_plan (recipient, job_id);

-- Messages that were held until one quarter of an hour, by pool: the crowd of a release. Only counts
-- up, so that the messages of a recipient stay in order.
create table flyball.held_crowd (
    throttle text   not null,
    quarter  bigint not null,
    messages bigint not null,
    primary key (throttle, quarter)
) with (fillfactor = 50);

-- === Digests =====================================================================================

create sequence flyball.digest_seq;

-- Open digests: one for each type, recipient and key.
create table flyball.digest (
    id           bigint      primary key default nextval('flyball.digest_seq'),
    tenant       text        not null,
    module       text        not null default '',
    type         text        not null,
    recipient    uuid        not null,
    -- The actor, of a type that has one digest for each; else ''.
    key          text        not null default '',
    -- The recipient's id; '' if the tenant names none.
    recipient_id text        not null default '',
    category     text        not null default '',
    channel      text        not null,
    -- The address of the newest item; null if it comes from the profile.
    address      text,
    -- The pool that sends it, and the key in its throttle.
    throttle     text        not null,
    throttle_key text        not null default '',
    opened_at    timestamptz not null default clock_timestamp(),
    last_at      timestamptz not null default clock_timestamp(),
    closes_at    timestamptz not null,
    -- The number of items. The close fails if it finds others.
    items        int         not null,
    -- The gate that keeps it open beyond its window; '' for none.
    gate         text        not null default '',
    rule         text        not null default '',
    unique (type, recipient, key)
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_cost_delay = 0);
create index digest_closes on flyball.digest (closes_at, id);
create index digest_tenant on flyball.digest (tenant, closes_at, id);

-- The items of open digests. An item belongs to the digest into which it was put, whatever its time.
create table flyball.digest_item (
    digest_id bigint      not null,
    -- The message that became the item.
    job_id    bigint      not null,
    -- Its arguments: it may go alone, long after its job is gone.
    item      jsonb       not null,
    at        timestamptz not null,
    primary key (digest_id, job_id)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay = 0);
create index digest_item_job on flyball.digest_item (job_id);

comment on table flyball.recipient is 'Profiles of recipients: addresses, time zone, quiet hours, preferences.';
comment on table flyball.digest is 'Open digests, with the time at which each closes.';

-- === Upkeep ======================================================================================

-- Deletes what no rule looks at any more, in one of 16 parts, in a bounded step; returns the number of
-- rows. `dedup_s` and `cap_s` are the longest windows of the rules, in seconds.
create function flyball.prune_recipients(part int, dedup_s float8, cap_s float8, max_rows int default 20000) returns bigint
language plpgsql volatile as $$
declare
    removed bigint;
    total   bigint := 0;
begin
    execute format('delete from flyball.dedup_%1$s where ctid = any(array(
        select d.ctid from flyball.dedup_%1$s d
        where d.at < clock_timestamp() - make_interval(secs => case when d.is_marked then $1 else greatest($1, 31 * 86400.0) end) limit $2))', part)
    using dedup_s, max_rows;
    get diagnostics removed = row_count;
    total := total + removed;
    -- Seconds since 2020.
    execute format('delete from flyball.cap_%1$s where ctid = any(array(
        select c.ctid from flyball.cap_%1$s c
        where coalesce(c.sent[cardinality(c.sent)], 0) < extract(epoch from clock_timestamp()) - 1577836800 - $1 limit $2))', part)
    using cap_s, max_rows;
    get diagnostics removed = row_count;
    total := total + removed;
    if part = 0 then
        delete from flyball.held_crowd c where c.quarter < extract(epoch from clock_timestamp())::bigint / 900 - 96;
        delete from flyball.message_plan where ctid = any(array(
            select p.ctid from flyball.message_plan p
            where p.job_id < (flyball.day_of(now()) - 1) << 38 and not exists (select from flyball.job j where j.id = p.job_id)
            order by p.job_id limit max_rows));
        get diagnostics removed = row_count;
        total := total + removed;
        delete from flyball.cap_reservation where ctid = any(array(
            select r.ctid from flyball.cap_reservation r
            where r.at_s < extract(epoch from clock_timestamp()) - 1577836800 - 86400
                and not exists (select from flyball.scheduled s where s.job_id = r.job_id)
                and not exists (select from flyball.lease l where l.job_id = r.job_id)
            limit max_rows));
        get diagnostics removed = row_count;
        total := total + removed;
    end if;
    return total;
end $$;

revoke execute on function flyball.prune_recipients from public;
