-- Chapter 6: notifications: the delivery record of each message, events from providers, and
-- suppressions.
--
-- One row per message, written after each attempt by a statement that writes many. An address is
-- kept as a digest and in a masked form, so this record may outlive the job and its arguments.

-- === Digests =====================================================================================

-- An unkeyed digest of a phone number is as good as the number, because all numbers can be tried.
-- So every digest is an HMAC-SHA-256 over the digest that a program computes, under a key that is
-- made here and never leaves this database.

-- The HMAC key: 32 random bytes, padded and combined with the two constants of HMAC.
create table flyball.digest_key (
    is_only   boolean primary key default true check (is_only),
    inner_pad bytea   not null check (length(inner_pad) = 64),
    outer_pad bytea   not null check (length(outer_pad) = 64)
);
-- A role that may read all tables of the schema still reads nothing here; one function of its owner
-- does.
alter table flyball.digest_key enable row level security;
revoke all on flyball.digest_key from public;

do $$
declare
    -- Four random UUIDs hold 488 bits from Postgres' strong random source; this needs no extension.
    key       constant bytea := sha256(decode(replace(gen_random_uuid()::text || gen_random_uuid()::text || gen_random_uuid()::text
        || gen_random_uuid()::text, '-', ''), 'hex'));
    inner_pad bytea := decode(repeat('36', 64), 'hex');
    outer_pad bytea := decode(repeat('5c', 64), 'hex');
begin
    for n in 0..31 loop
        inner_pad := set_byte(inner_pad, n, get_byte(inner_pad, n) # get_byte(key, n));
        outer_pad := set_byte(outer_pad, n, get_byte(outer_pad, n) # get_byte(key, n));
    end loop;
    insert into flyball.digest_key (inner_pad, outer_pad) values (inner_pad, outer_pad);
end $$;

-- The stored digest of a recipient, from the digest that a program computes.
create function flyball.keyed_digest(known bytea) returns bytea
language plpgsql stable strict security definer set search_path = pg_catalog, pg_temp as $$
declare
    key flyball.digest_key;
begin
    select * into strict key from flyball.digest_key;
    return sha256(key.outer_pad || sha256(key.inner_pad || known));
end $$;

-- The stored digests of many recipients, in order: a call for each costs eight times as much.
create function flyball.keyed_digests(known bytea[]) returns bytea[]
language plpgsql stable strict security definer set search_path = pg_catalog, pg_temp as $$
declare
    key flyball.digest_key;
begin
    select * into strict key from flyball.digest_key;
    return array(select sha256(key.outer_pad || sha256(key.inner_pad || k.known)) from unnest(known) with ordinality as k(known, n) order by k.n);
end $$;

-- === Recipients ==================================================================================

-- The canonical spelling of a recipient, by the rules of core/src/providers/recipient.rs as far as SQL
-- can apply them; null if it cannot: a domain with non-ASCII letters, a URL that is not normalised,
-- and an invalid recipient.
create function flyball.normal_recipient(channel text, recipient text) returns text
language sql immutable parallel safe
return case channel
    when 'email' then (
        select m[2] || '@' || m[3]
        from regexp_match(
            lower(btrim(recipient, E' \t\n\r\f' || chr(11)) collate "C"),
            '^(?:((?:"[^"<>@\\[:cntrl:]]*"|[^"<>@,;:()\[\]\\[:cntrl:]]*) *<))?'
                || '([a-z0-9!#$%&''*+/=?^_`{|}~-]{1,64}(?:\.[a-z0-9!#$%&''*+/=?^_`{|}~-]+)*)@([a-z0-9_](?:[a-z0-9._-]*[a-z0-9_])?)>?$') as m
        where (m[1] is not null) = (btrim(recipient, E' \t\n\r\f' || chr(11)) like '%>')
            and position('=?' in coalesce(m[1], '')) = 0
            and coalesce(m[1], '') ~ '^[ -~]*$'
            and length(m[2]) <= 64 and length(m[3]) <= 253 and m[3] !~ '\.\.|-\.|\.-|[^.]{64}|(^|[.])(0x[0-9a-f]*|[0-9]+)$'
            and m[3] !~ '(^|\.)xn--'
    )
    when 'sms' then (
        select n
        from regexp_replace(translate(recipient, E' -().\t\n\r\f' || chr(11), ''), '^whatsapp:', '', 'i') as n
        where n ~ '^\+[1-9][0-9]{4,14}$'
    )
    when 'push' then (
        select case when r ~ '^[0-9A-Fa-f]{64,}$' then lower(r collate "C") else r end
        from btrim(recipient, E' \t\n\r\f' || chr(11)) as r
        where r ~ '^[!-~]+$' and length(r) <= 4096
    )
    when 'chat' then (
        select case
            when r ~ '^[+-]?[0-9]{1,18}$' then (r::bigint)::text
            when r ~ '^[@#]' then lower(r collate "C")
            else r end
        from btrim(recipient, E' \t\n\r\f' || chr(11)) as r
        where r ~ '^[!#-+.-:=?-~-]{1,128}$'
    )
    when 'webhook' then (
        select case when r ~ '^https?://[^/]*$' then r || '/' else r end
        from btrim(recipient, E' \t\n\r\f' || chr(11)) as r
        where r ~ '^https?://[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)*(?::[1-9][0-9]{0,4})?(?:/[A-Za-z0-9/._~!$&()*+,;=:@-]*(?:\?[A-Za-z0-9/._~!$&()*+,;=:@?-]*)?)?$'
            and r !~ '^https?://[^/:]*\.?(?:0x[0-9a-f]*|[0-9]+)(?::|/|$)' and r !~ '/\.\.?(/|\?|$)' and r !~ '[/.]xn--'
            and r !~ '^https://[^/:]*:443(/|$)' and r !~ '^http://[^/:]*:80(/|$)'
            and coalesce(substring(r from '^https?://[^/:]*:([0-9]+)')::int, 0) <= 65535
    )
    when 'inapp' then (
        select recipient
        where octet_length(recipient) between 1 and 128 and recipient !~ '[[:cntrl:]]' and recipient not in ('check', '.', '..')
            and recipient = btrim(recipient, E' \t\n\r\f' || chr(11))
    )
end;

-- The unkeyed digest of a recipient, as programs compute it. Null if SQL cannot compute the
-- canonical spelling.
create function flyball.known_digest(channel text, recipient text) returns bytea
language sql stable parallel safe
return sha256(convert_to(channel || chr(31) || flyball.normal_recipient(channel, recipient), 'UTF8'));

-- The stored digest of a recipient. Null if SQL cannot compute the canonical spelling: the program
-- that sends the message writes it.
create function flyball.recipient_digest(channel text, recipient text) returns bytea
language sql stable parallel safe
return flyball.keyed_digest(flyball.known_digest(channel, recipient));

-- The masked form of a recipient.
create function flyball.mask_recipient(channel text, recipient text) returns text
language sql immutable parallel safe as $$
    select case
        when channel = 'email' then case when n like '%@%' then
            left(n, 1) || '***@' || left(substring(n from '[^@]*$'), 1) || '***'
                || coalesce(substring(substring(n from '[^@]*$') from '\.[^.]*$'), '') else '***' end
        when channel = 'webhook' then case when n ~ '^https?://' then
            substring(n from '^https?://') || left(substring(n from '^https?://([^/?#]*)'), 1) || '***'
                || coalesce(substring(substring(n from '^https?://([^/?#]*)') from '\.[^.]*$'), '') || '/***' else '***' end
        when channel = 'sms' and length(n) >= 10 then left(n, 5) || '***' || right(n, 2)
        when channel <> 'sms' and length(n) >= 12 then left(n, 3) || '***' || right(n, 2)
        when length(n) >= 5 then '***' || right(n, 2)
        else '***' end
    from (select flyball.normal_recipient(channel, recipient) as n) s
$$;

-- Refuses an invalid recipient of a channel.
create function flyball.check_recipient(what text, channel text, recipient text) returns void
language plpgsql as $$
begin
    if check_recipient.channel is null or check_recipient.channel not in ('sms', 'email', 'push', 'chat', 'webhook', 'inapp') then
        perform flyball.refuse(what, 'channel', format('%s is not a channel; allowed are sms, email, push, chat, webhook and inapp',
            coalesce(to_json(left(check_recipient.channel, 40))::text, 'null')));
    elsif btrim(coalesce(check_recipient.recipient, ''), E' \t\n\r\f' || chr(11)) = '' then
        perform flyball.refuse(what, 'recipient', 'is empty; give the address, number, token, chat or URL');
    elsif octet_length(check_recipient.recipient) > 4096 then
        perform flyball.refuse(what, 'recipient', format('is %s bytes long; at most 4096 are allowed', octet_length(check_recipient.recipient)));
    elsif flyball.normal_recipient(check_recipient.channel, check_recipient.recipient) is null then
        perform flyball.refuse(what, 'recipient', case check_recipient.channel
            when 'email' then 'must be exactly one mail address of ASCII letters; one with other letters or an xn-- domain is read by POST and DELETE /api/v1/suppressions'
            when 'sms' then 'must be a number in E.164 form, such as +15550100'
            when 'push' then 'must be one device''s token'
            when 'chat' then 'must be one chat''s id or name'
            when 'inapp' then 'must be the id of a recipient: 1 to 128 bytes without blanks around, other than check, . or ..'
            else 'must be a URL in its normal form, without escapes; any other is read by POST and DELETE /api/v1/suppressions' end);
    end if;
end $$;

-- === Deliveries ==================================================================================

-- The delivery record of a message. A message without a row is queued, or its job ended before any
-- attempt.
create table flyball.delivery (
    job_id           bigint      primary key,
    channel          text        not null,
    pool             text        not null,
    -- The tenant that owns the message, from its job; '' for the operators' own.
    tenant           text        not null default '',
    provider         text        not null default '',
    account          text,
    state            text        not null check (state in ('queued', 'sent', 'delivered', 'failed', 'bounced', 'suppressed', 'collected',
                         'opted_out', 'duplicate', 'capped', 'quiet', 'unreachable')),
    provider_id      text,
    recipient_digest bytea,
    -- The masked form.
    recipient        text        not null default '',
    category         text        not null default '',
    -- The last 50 attempts, oldest first: at, account, outcome, status, reason, ms.
    attempts         jsonb       not null default '[]',
    -- Number of all attempts, and the outcome of the last one.
    attempt_count    int         not null default 0,
    last_outcome     text,
    reason           text        not null default '',
    complained       boolean     not null default false,
    -- Whether it died because no account was available.
    unsent           boolean     not null default false,
    requeued_at      timestamptz,
    created_at       timestamptz not null default clock_timestamp(),
    updated_at       timestamptz not null default clock_timestamp()
) with (fillfactor = 75, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off);
create index delivery_provider_id on flyball.delivery (pool, provider_id) where provider_id is not null;
create index delivery_unsent on flyball.delivery (pool, job_id) where unsent;
-- A tenant's own messages, also those whose jobs were deleted.
create index delivery_tenant on flyball.delivery (tenant, job_id) where tenant <> '';

-- Order of the states. A late report of an earlier state changes nothing.
create function flyball.delivery_rank(state text) returns int
language sql immutable parallel safe
return case state when 'queued' then 0 when 'sent' then 1 when 'delivered' then 3 when 'bounced' then 4
    when 'failed' then 2 when 'suppressed' then 2 when 'collected' then 2 when 'opted_out' then 2 when 'duplicate' then 2
    when 'capped' then 2 when 'quiet' then 2 when 'unreachable' then 2 else -1 end;

-- The last 50 of both lists.
create function flyball.append_attempts(have jsonb, more jsonb) returns jsonb
language sql immutable parallel safe as $$
    select case when jsonb_array_length(have) + jsonb_array_length(more) <= 50 then have || more else (
        select jsonb_agg(e.value order by e.n)
        from jsonb_array_elements(have || more) with ordinality as e(value, n)
        where e.n > jsonb_array_length(have) + jsonb_array_length(more) - 50
    ) end
$$;

-- === Provider events =============================================================================

-- One row per event. An event that arrives before its message is recorded waits without a job.
create table flyball.delivery_event (
    pool             text        not null,
    event_id         text        not null,
    account          text        not null,
    channel          text        not null,
    provider_id      text        not null,
    event_type         text        not null check (event_type in ('sent', 'delivered', 'bounced', 'failed', 'complained', 'unsubscribed')),
    recipient_digest bytea,
    reason           text        not null default '',
    at               timestamptz not null,
    received_at      timestamptz not null default clock_timestamp(),
    job_id           bigint,
    primary key (pool, event_id)
);
create index delivery_event_waiting on flyball.delivery_event (pool, provider_id) where job_id is null;
create index delivery_event_unmatched on flyball.delivery_event (received_at) where job_id is null;
create index delivery_event_received on flyball.delivery_event (received_at);

-- Tokens of signatures that do not cover the body: a token that was used is accepted again only
-- with the same body.
create table flyball.event_token (
    digest      bytea       primary key,
    body_digest bytea       not null,
    expires_at  timestamptz not null
);
create index event_token_expires on flyball.event_token (expires_at);

-- === Accounts ====================================================================================

-- Counts per account, by the hour in which the event was received.
create table flyball.account_tally (
    pool         text        not null,
    account      text        not null,
    hour         timestamptz not null,
    accepted     bigint      not null default 0,
    delivered    bigint      not null default 0,
    bounced      bigint      not null default 0,
    complained   bigint      not null default 0,
    unsubscribed bigint      not null default 0,
    primary key (pool, account, hour)
) with (fillfactor = 50);
create index account_tally_hour on flyball.account_tally (hour);

-- State changes of accounts' breakers, each once, for the dashboard and for alerts.
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
create index account_event_created on flyball.account_event (created_at);

-- === Suppressions ================================================================================

-- Suppressed recipients, by the keyed digest of the address.
create table flyball.suppression (
    channel          text        not null,
    recipient_digest bytea       not null,
    reason           text        not null,
    -- The account whose event or response caused it; null if a person did.
    pool             text,
    account          text,
    created_at       timestamptz not null default clock_timestamp(),
    primary key (channel, recipient_digest)
);

-- Suppresses the recipient with this digest. False if it is suppressed already; the first reason is
-- kept.
create function flyball.suppress_known(channel text, known bytea, shown text, reason text, by text) returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
begin
    insert into flyball.suppression (channel, recipient_digest, reason)
    values (suppress_known.channel, flyball.keyed_digest(known), left(coalesce(suppress_known.reason, ''), 1000))
    on conflict do nothing;
    if not found then
        return false;
    end if;
    perform flyball.write_audit(null, flyball.audit_actor(suppress_known.by), 'recipient.suppress', suppress_known.channel || '/' || shown, null, null,
        suppress_known.reason);
    return true;
end $$;

-- Ends the suppression of the recipient with this digest. False if it was not suppressed.
create function flyball.unsuppress_known(channel text, known bytea, shown text, why text, by text) returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    removed jsonb;
begin
    delete from flyball.suppression s
    where s.channel = unsuppress_known.channel and s.recipient_digest = (select flyball.keyed_digest(known))
    returning jsonb_build_object('reason', s.reason, 'created_at', s.created_at) into removed;
    if not found then
        return false;
    end if;
    perform flyball.write_audit(null, flyball.audit_actor(unsuppress_known.by), 'recipient.unsuppress', unsuppress_known.channel || '/' || shown, removed, null,
        unsuppress_known.why);
    return true;
end $$;

-- Suppresses a recipient on a channel. False if it is suppressed already; the first reason is kept.
create function flyball.suppress(channel text, recipient text, reason text default '', by text default null) returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
begin
    perform flyball.check_recipient('suppress', suppress.channel, suppress.recipient);
    return flyball.suppress_known(suppress.channel, flyball.known_digest(suppress.channel, suppress.recipient),
        flyball.mask_recipient(suppress.channel, suppress.recipient), suppress.reason, suppress.by);
end $$;

-- Ends the suppression of a recipient. False if it was not suppressed.
create function flyball.unsuppress(channel text, recipient text, by text default null, why text default '') returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
begin
    perform flyball.check_recipient('unsuppress', unsuppress.channel, unsuppress.recipient);
    return flyball.unsuppress_known(unsuppress.channel, flyball.known_digest(unsuppress.channel, unsuppress.recipient),
        flyball.mask_recipient(unsuppress.channel, unsuppress.recipient), unsuppress.why, unsuppress.by);
end $$;

-- Whether a recipient is suppressed on this channel.
create function flyball.is_suppressed(channel text, recipient text) returns boolean
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
begin
    perform flyball.check_recipient('is_suppressed', is_suppressed.channel, is_suppressed.recipient);
    return exists (
        select from flyball.suppression s
        where s.channel = is_suppressed.channel
            and s.recipient_digest = (select flyball.recipient_digest(is_suppressed.channel, is_suppressed.recipient))
    );
end $$;

-- Backoff of recipients that could not take a message: its end, which holds for all messages, and
-- the number of failed attempts in a row.
create table flyball.recipient_backoff (
    channel          text        not null,
    recipient_digest bytea       not null,
    failures         int         not null,
    backoff_until      timestamptz not null,
    -- Until this time, one message probes whether the recipient is available again.
    first_backoff_until      timestamptz not null default '-infinity',
    primary key (channel, recipient_digest)
) with (fillfactor = 75, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off);
create index recipient_backoff_until on flyball.recipient_backoff (backoff_until);
comment on table flyball.recipient_backoff is 'Recipients that could not take a message, and the end of their backoff.';

-- === Deadlines ===================================================================================

-- The longest wait of a message, from its arguments or else from its pool.
create function flyball.valid_for(args jsonb, otherwise float8) returns interval
language sql immutable parallel safe
return make_interval(secs => case when jsonb_typeof(args -> 'valid_for_s') = 'number'
    then greatest(least((args -> 'valid_for_s')::numeric, 316224000), 0.001)::float8 else least(otherwise, 316224000) end);

-- The time until which the gates of its recipient held a message that has no deadline of its own: the
-- pool's deadline counts from then.
create function flyball.held_until_of(job_id bigint, args jsonb) returns timestamptz
language plpgsql stable set enable_seqscan = off as $$
begin
    if flyball.needs_plan('notification', args) and jsonb_typeof(args -> 'valid_for_s') is distinct from 'number' then
        return (select p.until from flyball.message_plan p where p.job_id = held_until_of.job_id);
    end if;
    return null;
end $$;

-- Makes messages dead that were taken out of their queue, because no account was available.
create function flyball.dead_letter_unsent(pool text, ids bigint[], lanes bigint[], priorities smallint[], attempts smallint[], costs float8[], holders bigint[])
returns void
language plpgsql volatile set enable_seqscan = off as $$
#variable_conflict use_column
declare
    error_text constant text := format('no account of pool %s was available until its deadline', dead_letter_unsent.pool);
begin
    with expired as (
        select * from unnest(ids, lanes, priorities, attempts, costs) as g(job_id, lane_id, priority, attempt, cost)
    ),
    dead_rows as (
        insert into flyball.dead (job_id, lane_id, priority, attempt, cost, error)
        select g.job_id, g.lane_id, g.priority, g.attempt, g.cost, error_text from expired g order by g.job_id
        on conflict do nothing
    ),
    history as (
        insert into flyball.attempt (job_id, attempt, outcome, error)
        select g.job_id, g.attempt, 'dead', error_text from expired g
    ),
    failures as (
        insert into flyball.failure (job_id, attempt, outcome, error)
        select g.job_id, g.attempt, 'dead', error_text from expired g
    )
    delete from flyball.unique_holder
    where digest = any(array(
        select u.digest from flyball.unique_holder u where u.expires_at is null and u.job_id = any(holders) for update skip locked
    ));
    insert into flyball.delivery as d
        (job_id, channel, pool, tenant, state, recipient_digest, recipient, category, attempts, attempt_count, last_outcome, reason, unsent)
    select j.id, coalesce(j.args ->> 'channel', ''), dead_letter_unsent.pool, j.tenant, 'failed',
        flyball.recipient_digest(j.args ->> 'channel', j.args ->> 'to'),
        coalesce(flyball.mask_recipient(j.args ->> 'channel', j.args ->> 'to'), ''), coalesce(j.args ->> 'category', ''),
        jsonb_build_array(jsonb_build_object('at', to_char(now() at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'), 'account', null,
            'outcome', 'no_account', 'status', '', 'reason', error_text, 'ms', 0)),
        1, 'no_account', error_text, true
    from (select unnest(ids) as job_id order by 1) g
    cross join lateral (select * from flyball.job where job.id = g.job_id limit 1) j
    on conflict on constraint delivery_pkey do update
    set state = case when flyball.delivery_rank(d.state) < 2 then 'failed' else d.state end,
        attempts = flyball.append_attempts(d.attempts, excluded.attempts), attempt_count = d.attempt_count + 1, last_outcome = excluded.last_outcome,
        reason = excluded.reason, unsent = flyball.delivery_rank(d.state) <= 2, updated_at = clock_timestamp();
end $$;

-- Makes waiting messages of a throttle dead if their deadline has passed, at most max_jobs, walking
-- through a bounded part of its lanes. While `next` is not null the walk is not complete: call
-- again with `start` set to it. A message that a worker claims at the same moment belongs to that
-- worker.
create function flyball.expire_notifications(throttle text, valid_for float8, max_jobs int default 1000, start text default null, out jobs bigint, out next text)
language plpgsql volatile set enable_seqscan = off set enable_bitmapscan = off set jit = off as $$
#variable_conflict use_column
declare
    -- Rows and lanes read per call, so that a call ends within a fraction of a second.
    walk_rows   constant int := 5000;
    walk_lanes  constant int := 200;
    rows_left   int := walk_rows;
    jobs_left   int := max_jobs;
    is_first    boolean := true;
    at_key      text := '';
    at_priority smallint := -1;
    at_id       bigint := 0;
    is_later    boolean := false;
    part        text[];
    lane        record;
    result      record;
begin
    jobs := 0;
    if start is not null then
        -- 'r' or 's', priority, job, key: the key may hold any character.
        part := regexp_match(start, '^([rs])/(-?[0-9]{1,2})/([0-9]{1,18})/(.*)$');
        if part is null then
            perform flyball.refuse('expire_notifications', 'start', 'is not a place to go on from; give what "next" answered, or null to begin');
        end if;
        is_later := part[1] = 's';
        at_priority := part[2]::smallint;
        at_id := part[3]::bigint;
        at_key := part[4];
    end if;
    for lane in
        select n.lane_id, n.key
        from (
            (select flyball.lane_of(expire_notifications.throttle, '') as lane_id, '' as key where at_key = '')
            union all
            (select l.lane_id, l.key from flyball.lane l
             where l.throttle = expire_notifications.throttle and l.key >= at_key and l.key <> ''
             order by l.throttle, l.key limit walk_lanes)
        ) n
    loop
        -- The lane where the last call stopped may have left the directory.
        if not is_first or lane.key <> at_key then
            is_later := false;
            at_priority := -1;
            at_id := 0;
        end if;
        is_first := false;
        at_key := lane.key;
        if not is_later then
            with walk as materialized (
                select q.ctid as tid, q.priority, q.job_id
                from flyball.ready q
                where q.lane_id = lane.lane_id and (q.lane_id, q.priority, q.job_id) > (lane.lane_id, at_priority, at_id)
                order by q.lane_id, q.priority, q.job_id
                limit rows_left
            ),
            overdue as materialized (
                select w.*
                from walk w
                cross join lateral (select * from flyball.job where job.id = w.job_id limit 1) j
                left join lateral (select d.requeued_at from flyball.delivery d where d.job_id = w.job_id limit 1) d on true
                where j.kind = 'notification'
                    and greatest(j.created_at, j.run_at, d.requeued_at, flyball.held_until_of(j.id, j.args)) + flyball.valid_for(j.args, expire_notifications.valid_for) <= now()
                limit jobs_left
            ),
            removed as (
                delete from flyball.ready
                where ctid = any(array(select q.ctid from flyball.ready q where q.ctid = any(array(select l.tid from overdue l)) for update skip locked))
                returning *
            ),
            collected as (
                select array_agg(t.job_id) as ids, array_agg(t.lane_id) as lanes, array_agg(t.priority) as priorities,
                    array_agg(t.attempt) as attempts, array_agg(t.cost) as costs,
                    array_agg(t.job_id) filter (where t.holds_unique) as holders
                from removed t
            )
            select n.*, (select count(*) from walk) as walked, (select count(*) from overdue) as overdue, w.priority, w.job_id
            into result
            from collected n
            left join lateral (
                select p.priority, p.job_id
                from (select priority, job_id from overdue where (select count(*) from overdue) = jobs_left
                      union all
                      select priority, job_id from walk where (select count(*) from overdue) < jobs_left) p
                order by p.priority desc, p.job_id desc limit 1
            ) w on true;
            if result.ids is not null then
                perform flyball.dead_letter_unsent(expire_notifications.throttle, result.ids, result.lanes, result.priorities, result.attempts, result.costs, result.holders);
                jobs := jobs + cardinality(result.ids);
            end if;
            if result.walked >= rows_left or result.overdue >= jobs_left then
                next := format('r/%s/%s/%s', result.priority, result.job_id, at_key);
                return;
            end if;
            rows_left := rows_left - result.walked;
            jobs_left := jobs_left - result.overdue;
            at_id := 0;
        end if;
        with walk as materialized (
            select q.ctid as tid, q.job_id
            from flyball.scheduled q
            where q.lane_id = lane.lane_id and q.job_id > at_id
            order by q.lane_id, q.job_id
            limit rows_left
        ),
        overdue as materialized (
            select w.*
            from walk w
            cross join lateral (select * from flyball.job where job.id = w.job_id limit 1) j
            left join lateral (select d.requeued_at from flyball.delivery d where d.job_id = w.job_id limit 1) d on true
            where j.kind = 'notification'
                and greatest(j.created_at, j.run_at, d.requeued_at, flyball.held_until_of(j.id, j.args)) + flyball.valid_for(j.args, expire_notifications.valid_for) <= now()
            limit jobs_left
        ),
        removed as (
            delete from flyball.scheduled
            where ctid = any(array(select q.ctid from flyball.scheduled q where q.ctid = any(array(select l.tid from overdue l)) for update skip locked))
            returning *
        ),
        collected as (
            select array_agg(t.job_id) as ids, array_agg(t.lane_id) as lanes, array_agg(t.priority) as priorities,
                array_agg(t.attempt) as attempts, array_agg(t.cost) as costs,
                array_agg(t.job_id) filter (where t.holds_unique) as holders
            from removed t
        )
        select n.*, (select count(*) from walk) as walked, (select count(*) from overdue) as overdue,
            case when (select count(*) from overdue) = jobs_left then (select max(job_id) from overdue) else (select max(job_id) from walk) end as job_id
        into result
        from collected n;
        if result.ids is not null then
            perform flyball.dead_letter_unsent(expire_notifications.throttle, result.ids, result.lanes, result.priorities, result.attempts, result.costs, result.holders);
            jobs := jobs + cardinality(result.ids);
        end if;
        if result.walked >= rows_left or result.overdue >= jobs_left then
            next := format('s/0/%s/%s', result.job_id, at_key);
            return;
        end if;
        rows_left := rows_left - result.walked;
        jobs_left := jobs_left - result.overdue;
    end loop;
    -- The directory may have more lanes than were read.
    select format('r/-1/0/%s', l.key) into next
    from flyball.lane l
    where l.throttle = expire_notifications.throttle and l.key > at_key
    order by l.throttle, l.key
    limit 1;
end $$;

-- Requeues messages of a pool that died because no account was available, at most max_jobs, the
-- oldest first; their deadlines start again. A mark that is younger than a minute is left for the
-- next call: such a message may be dying at this moment.
create function flyball.requeue_unsent(pool text, max_jobs int default 1000, by text default null, out examined bigint, out jobs bigint)
language plpgsql volatile set enable_seqscan = off set enable_bitmapscan = off set jit = off as $$
#variable_conflict use_column
declare
    ids            bigint[];
    notified_lanes text;
begin
    select array_agg(u.job_id) into ids
    from (
        select d.job_id from flyball.delivery d
        where d.pool = requeue_unsent.pool and d.unsent
        order by d.pool, d.job_id
        limit max_jobs
        for update skip locked
    ) u;
    examined := coalesce(cardinality(ids), 0);
    jobs := 0;
    if examined = 0 then
        return;
    end if;
    with was_dead as (
        delete from flyball.dead d where d.job_id = any(ids) returning *
    ),
    keyed as materialized (
        select unnest(flyball.lock_unique_keys(array(select w.job_id from was_dead w))) as job_id
    ),
    requeued as (
        insert into flyball.ready (lane_id, priority, job_id, attempt, cost, holds_unique)
        select w.lane_id, w.priority, w.job_id, 0, w.cost, w.job_id in (select h.job_id from keyed h) from was_dead w
        on conflict do nothing
    )
    select count(*), left(string_agg(distinct w.lane_id::text, ','), 7900) into jobs, notified_lanes from was_dead w;
    -- Jobs that are not dead any more were handled by another process. A message records first that
    -- it found no account and then dies, so one with a fresh mark may be about to die.
    update flyball.delivery d set unsent = false
    where d.job_id = any(ids) and d.unsent and d.updated_at < clock_timestamp() - interval '1 minute';
    if jobs > 0 then
        perform flyball.write_audit(null, flyball.audit_actor(requeue_unsent.by), 'dead.requeue', requeue_unsent.pool, null,
            jsonb_build_object('jobs', jobs, 'filter', jsonb_build_object('throttle', requeue_unsent.pool, 'unsent', true)),
            'accounts are available again');
        perform pg_notify('flyball', notified_lanes);
    end if;
end $$;

-- A dead message that is requeued, by any entry point, is queued again with a new deadline. It
-- starts afresh: its last end says nothing about this run.
create function flyball.record_requeued() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
begin
    insert into flyball.delivery as d (job_id, channel, pool, tenant, state, recipient_digest, recipient, category, requeued_at)
    select j.id, coalesce(j.args ->> 'channel', ''), j.throttle, j.tenant, 'queued', flyball.recipient_digest(j.args ->> 'channel', j.args ->> 'to'),
        coalesce(flyball.mask_recipient(j.args ->> 'channel', j.args ->> 'to'), ''), coalesce(j.args ->> 'category', ''), now()
    from (select * from deleted order by deleted.job_id) g
    cross join lateral (select * from flyball.job where job.id = g.job_id limit 1) j
    where j.kind = 'notification'
        and exists (select from flyball.ready r where r.lane_id = g.lane_id and r.priority = g.priority and r.job_id = g.job_id)
    on conflict on constraint delivery_pkey do update
    set state = case when d.state in ('failed', 'suppressed') then 'queued' else d.state end,
        last_outcome = null, unsent = false, requeued_at = excluded.requeued_at, updated_at = clock_timestamp();
    return null;
end $$;

create trigger record_requeued after delete on flyball.dead
referencing old table as deleted for each statement execute function flyball.record_requeued();

-- === Views =======================================================================================

-- Every message with its state: the recorded one, else that of its job.
create view flyball.notification as
select j.id as job_id, j.tenant, coalesce(d.channel, j.args ->> 'channel') as channel, coalesce(d.pool, j.throttle) as pool,
    coalesce(d.provider, '') as provider, d.account,
    case when coalesce(d.state, 'queued') <> 'queued' then d.state
        when l.is_running or w.is_waiting then 'queued'
        when x.error is not null or a.outcome in ('cancelled', 'dropped') then 'failed'
        else 'queued' end as state,
    d.provider_id, coalesce(d.recipient, flyball.mask_recipient(j.args ->> 'channel', j.args ->> 'to'), '') as recipient,
    coalesce(d.category, j.args ->> 'category', '') as category, coalesce(d.attempts, '[]') as attempts, coalesce(d.attempt_count, 0) as attempt_count,
    case when coalesce(d.state, 'queued') <> 'queued' or l.is_running or w.is_waiting then coalesce(d.reason, '')
        when x.error is not null then x.error
        when a.outcome in ('cancelled', 'dropped') then coalesce(a.error, 'cancelled')
        else coalesce(d.reason, '') end as reason,
    coalesce(d.complained, false) as complained, d.requeued_at, j.created_at, coalesce(d.updated_at, j.created_at) as updated_at
from flyball.job j
left join lateral (select * from flyball.delivery h where h.job_id = j.id limit 1) d on true
left join lateral (
    select true as is_running from flyball.lease h where coalesce(d.state, 'queued') = 'queued' and h.job_id = j.id limit 1
) l on true
left join lateral (
    (select true as is_waiting from flyball.ready h
     where coalesce(d.state, 'queued') = 'queued' and h.lane_id in (j.lane_id, j.admission_lane) and h.priority = j.priority and h.job_id = j.id limit 1)
    union all
    (select true from flyball.scheduled h where coalesce(d.state, 'queued') = 'queued' and h.job_id = j.id limit 1)
    limit 1
) w on true
left join lateral (
    select coalesce(h.error, 'dead') as error from flyball.dead h
    where coalesce(d.state, 'queued') = 'queued' and h.job_id = j.id limit 1
) x on true
left join lateral (
    select h.outcome, h.error from flyball.attempt h
    where coalesce(d.state, 'queued') = 'queued' and l.is_running is null and w.is_waiting is null and h.job_id = j.id
    order by h.finished_at desc limit 1
) a on true
where j.kind = 'notification'
union all
select d.job_id, d.tenant, d.channel, d.pool, d.provider, d.account, d.state, d.provider_id, d.recipient, d.category, d.attempts, d.attempt_count, d.reason,
    d.complained, d.requeued_at, d.created_at, d.updated_at
from flyball.delivery d
where not exists (select from flyball.job j where j.id = d.job_id);

-- Every attempt that is kept, one row each.
create view flyball.delivery_attempt as
select d.job_id, d.channel, d.pool, d.provider, greatest(d.attempt_count - jsonb_array_length(d.attempts), 0) + e.n as attempt,
    (e.value ->> 'at')::timestamptz as at, e.value ->> 'account' as account, e.value ->> 'outcome' as outcome,
    e.value ->> 'status' as status, e.value ->> 'reason' as reason, (e.value ->> 'ms')::bigint as ms
from flyball.delivery d
cross join lateral jsonb_array_elements(d.attempts) with ordinality as e(value, n);

-- === Permissions =================================================================================

revoke execute on function flyball.keyed_digest, flyball.keyed_digests, flyball.recipient_digest, flyball.known_digest, flyball.check_recipient,
    flyball.suppress_known, flyball.unsuppress_known, flyball.suppress, flyball.unsuppress, flyball.is_suppressed,
    flyball.dead_letter_unsent, flyball.expire_notifications, flyball.requeue_unsent, flyball.record_requeued
from public;

comment on view flyball.notification is 'Every message with its state, account, attempts and reason; the recipient is masked.';
comment on view flyball.delivery_attempt is 'Every attempt at a message that is kept, one row each.';
comment on function flyball.suppress is 'Suppresses a recipient on a channel.';
comment on function flyball.unsuppress is 'Ends the suppression of a recipient.';
comment on function flyball.is_suppressed is 'Whether a recipient is suppressed on this channel.';
comment on function flyball.requeue_unsent is 'Requeues messages that died because no account was available.';
