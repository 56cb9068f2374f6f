-- Chapter 11: notifications. What became of each message, what its provider told afterwards, and to whom nothing goes any more.
--
-- One row for a message, written after each attempt by a statement that writes those of many; jobs stay as they are. An address
-- is kept as a digest and in a form that people may see, so that this record may outlive the job and its arguments.

insert into flyball.kind (name) values ('notification') on conflict do nothing;

-- === Recipients ======================================================================================================

-- The law of src/notify/recipient.rs in its own words; a test gives both the same recipients.

-- Two spellings of one recipient are the same recipient. Only letters of ASCII have their case changed, in both languages.
create function flyball.normal_recipient(channel text, recipient text) returns text
language sql immutable parallel safe
return case channel
    when 'email' then lower(btrim(recipient, E' \t\n\r\f' || chr(11)) collate "C")
    when 'sms' then translate(recipient, E' -().\t\n\r\f' || chr(11), '')
    else btrim(recipient, E' \t\n\r\f' || chr(11)) end;

create function flyball.recipient_digest(channel text, recipient text) returns bytea
language sql stable parallel safe
return sha256(convert_to(channel || chr(31) || flyball.normal_recipient(channel, recipient), 'UTF8'));

-- A recipient as people may see it.
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
    from flyball.normal_recipient(channel, recipient) as n
$$;

-- === Deliveries ======================================================================================================

-- What became of a message. A message without a row here is queued, or its job ended before anything was tried.
create table flyball.delivery (
    job_id           bigint      primary key,
    channel          text        not null,
    pool             text        not null,
    provider         text        not null default '',
    account          text,
    state            text        not null check (state in ('queued', 'sent', 'delivered', 'failed', 'bounced', 'suppressed')),
    provider_id      text,
    recipient_digest bytea,
    -- As people may see it.
    recipient        text        not null default '',
    category         text        not null default '',
    -- The last 50, oldest first: at, account, outcome, status, reason, ms.
    attempts         jsonb       not null default '[]',
    -- How many there were in all, and how the last one ended.
    tries            int         not null default 0,
    last_outcome     text,
    reason           text        not null default '',
    complained       boolean     not null default false,
    -- It died because no account was there.
    unsent           boolean     not null default false,
    requeued_at      timestamptz,
    created_at       timestamptz not null default clock_timestamp(),
    updated_at       timestamptz not null default clock_timestamp()
) with (fillfactor = 75);
create index delivery_provider_id on flyball.delivery (pool, provider_id) where provider_id is not null;
create index delivery_unsent on flyball.delivery (pool, job_id) where unsent;
alter table flyball.delivery set (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off);

-- How far a message has come. What comes late and would lead back changes nothing.
create function flyball.delivery_rank(state text) returns int
language sql immutable parallel safe
return case state when 'queued' then 0 when 'sent' then 1 when 'failed' then 2 when 'suppressed' then 2 when 'delivered' then 3
    when 'bounced' then 4 else -1 end;

-- The last 50 of both.
create function flyball.append_attempts(have jsonb, more jsonb) returns jsonb
language sql immutable parallel safe as $$
    select case when jsonb_array_length(have) + jsonb_array_length(more) <= 50 then have || more else (
        select jsonb_agg(e.value order by e.n)
        from jsonb_array_elements(have || more) with ordinality as e(value, n)
        where e.n > jsonb_array_length(have) + jsonb_array_length(more) - 50
    ) end
$$;

-- === What providers tell =============================================================================================

-- One row for each event. One that comes before its message was written down waits without a job.
create table flyball.delivery_event (
    pool             text        not null,
    event_id         text        not null,
    account          text        not null,
    channel          text        not null,
    provider_id      text        not null,
    happened         text        not null check (happened in ('sent', 'delivered', 'bounced', 'failed', 'complained', 'unsubscribed')),
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

-- What each account's messages came to, by the hour in which it was heard.
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

-- === Whom nothing goes to ============================================================================================

create table flyball.suppression (
    channel          text        not null,
    recipient_digest bytea       not null,
    reason           text        not null,
    -- Whose event or answer it was; null where a person said so.
    pool             text,
    account          text,
    created_at       timestamptz not null default clock_timestamp(),
    primary key (channel, recipient_digest)
);

create function flyball.check_recipient(what text, channel text, recipient text) returns void
language plpgsql as $$
begin
    if check_recipient.channel is null or check_recipient.channel not in ('sms', 'email', 'push', 'chat', 'webhook') then
        perform flyball.refuse(what, 'channel', format('%s is not a channel; allowed are sms, email, push, chat and webhook',
            coalesce(to_json(left(check_recipient.channel, 40))::text, 'null')));
    elsif coalesce(flyball.normal_recipient(check_recipient.channel, check_recipient.recipient), '') = '' then
        perform flyball.refuse(what, 'recipient', 'is empty; give the address, number, token, chat or URL');
    elsif octet_length(check_recipient.recipient) > 4096 then
        perform flyball.refuse(what, 'recipient', format('is %s bytes long; at most 4096 are allowed', octet_length(check_recipient.recipient)));
    end if;
end $$;

-- Nothing goes to the recipient on this channel any more. False if it was so already, for the reason that it had.
create function flyball.suppress(channel text, recipient text, reason text default '', by text default null) returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
begin
    perform flyball.check_recipient('suppress', suppress.channel, suppress.recipient);
    insert into flyball.suppression (channel, recipient_digest, reason)
    values (suppress.channel, flyball.recipient_digest(suppress.channel, suppress.recipient), left(coalesce(suppress.reason, ''), 1000))
    on conflict do nothing;
    if not found then
        return false;
    end if;
    perform flyball.note(null, flyball.signed(suppress.by), 'recipient.suppress',
        suppress.channel || '/' || flyball.mask_recipient(suppress.channel, suppress.recipient), null, null, suppress.reason);
    return true;
end $$;

-- Messages go to the recipient again. False if none were kept back.
create function flyball.unsuppress(channel text, recipient text, by text default null, why text default '') returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    was jsonb;
begin
    perform flyball.check_recipient('unsuppress', unsuppress.channel, unsuppress.recipient);
    delete from flyball.suppression s
    where s.channel = unsuppress.channel
        and s.recipient_digest = flyball.recipient_digest(unsuppress.channel, unsuppress.recipient)
    returning jsonb_build_object('reason', s.reason, 'created_at', s.created_at) into was;
    if not found then
        return false;
    end if;
    perform flyball.note(null, flyball.signed(unsuppress.by), 'recipient.unsuppress',
        unsuppress.channel || '/' || flyball.mask_recipient(unsuppress.channel, unsuppress.recipient), was, null, unsuppress.why);
    return true;
end $$;

create function flyball.is_suppressed(channel text, recipient text) returns boolean
language sql stable security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
    select exists (
        select from flyball.suppression s
        where s.channel = is_suppressed.channel
            and s.recipient_digest = flyball.recipient_digest(is_suppressed.channel, is_suppressed.recipient)
    )
$$;

-- === Deadlines =======================================================================================================

-- How long a message may wait, from its arguments or else the pool's own.
create function flyball.valid_for(args jsonb, otherwise float8) returns interval
language sql immutable parallel safe
return make_interval(secs => case when jsonb_typeof(args -> 'valid_for_s') = 'number'
    then greatest(least((args -> 'valid_for_s')::numeric, 316224000), 0.001)::float8 else least(otherwise, 316224000) end);

-- Buries messages that were taken out of their queue, because no account was there.
create function flyball.bury_unsent(pool text, ids bigint[], lanes bigint[], priorities smallint[], attempts smallint[], costs float8[], holders bigint[])
returns void
language plpgsql volatile set enable_seqscan = off as $$
#variable_conflict use_column
declare
    why constant text := format('no account of pool %s was available until its deadline', bury_unsent.pool);
begin
    with gone as (
        select * from unnest(ids, lanes, priorities, attempts, costs) as g(job_id, lane_id, priority, attempt, cost)
    ),
    buried as (
        insert into flyball.dead (job_id, lane_id, priority, attempt, cost, error)
        select g.job_id, g.lane_id, g.priority, g.attempt, g.cost, why from gone g order by g.job_id
        on conflict do nothing
    ),
    history as (
        insert into flyball.attempt (job_id, attempt, outcome, error)
        select g.job_id, g.attempt, 'dead', why from gone g
    ),
    trouble as (
        insert into flyball.failure (job_id, attempt, outcome, error)
        select g.job_id, g.attempt, 'dead', why from gone g
    )
    delete from flyball.uniq
    where digest = any(array(
        select u.digest from flyball.uniq u where u.expires_at is null and u.job_id = any(holders) for update skip locked
    ));
    insert into flyball.delivery as d
        (job_id, channel, pool, state, recipient_digest, recipient, category, attempts, tries, last_outcome, reason, unsent)
    select j.id, coalesce(j.args ->> 'channel', ''), bury_unsent.pool, 'failed',
        flyball.recipient_digest(j.args ->> 'channel', j.args ->> 'to'),
        coalesce(flyball.mask_recipient(j.args ->> 'channel', j.args ->> 'to'), ''), coalesce(j.args ->> 'category', ''),
        jsonb_build_array(jsonb_build_object('at', to_char(now() at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'), 'account', null,
            'outcome', 'no_account', 'status', '', 'reason', why, 'ms', 0)),
        1, 'no_account', why, true
    from (select unnest(ids) as job_id order by 1) g
    cross join lateral (select * from flyball.job where job.id = g.job_id limit 1) j
    on conflict on constraint delivery_pkey do update
    set state = case when flyball.delivery_rank(d.state) < 2 then 'failed' else d.state end,
        attempts = flyball.append_attempts(d.attempts, excluded.attempts), tries = d.tries + 1, last_outcome = excluded.last_outcome,
        reason = excluded.reason, unsent = flyball.delivery_rank(d.state) <= 2, updated_at = clock_timestamp();
end $$;

-- Buries waiting messages of a throttle whose deadline has passed, at most max_jobs, walking through a bounded part of its lanes.
-- While `next` is not null the walk has not come to its end: call again with `start` set to it. What somebody claims just then is his.
create function flyball.expire_notifications(throttle text, valid_for float8, max_jobs int default 1000, start text default null, out jobs bigint, out next text)
language plpgsql volatile set enable_seqscan = off set enable_bitmapscan = off set jit = off as $$
#variable_conflict use_column
declare
    -- Rows and lanes that one call looks at, so that it ends within a fraction of a second.
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
    seen        record;
begin
    jobs := 0;
    if start is not null then
        -- 'r' or 's', priority, job, key: the key may hold anything.
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
        -- The lane where the last call stopped may be gone from the directory.
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
            late as materialized (
                select w.*
                from walk w
                cross join lateral (select * from flyball.job where job.id = w.job_id limit 1) j
                left join lateral (select d.requeued_at from flyball.delivery d where d.job_id = w.job_id limit 1) d on true
                where j.kind = 'notification'
                    and greatest(j.created_at, j.run_at, d.requeued_at) + flyball.valid_for(j.args, expire_notifications.valid_for) <= now()
                limit jobs_left
            ),
            taken as (
                delete from flyball.ready
                where ctid = any(array(select q.ctid from flyball.ready q where q.ctid = any(array(select l.tid from late l)) for update skip locked))
                returning *
            ),
            listed as (
                select array_agg(t.job_id) as ids, array_agg(t.lane_id) as lanes, array_agg(t.priority) as priorities,
                    array_agg(t.attempt) as attempts, array_agg(t.cost) as costs,
                    array_agg(t.job_id) filter (where t.holds_unique) as holders
                from taken t
            )
            select n.*, (select count(*) from walk) as walked, (select count(*) from late) as late, w.priority, w.job_id
            into seen
            from listed n
            left join lateral (
                select p.priority, p.job_id
                from (select priority, job_id from late where (select count(*) from late) = jobs_left
                      union all
                      select priority, job_id from walk where (select count(*) from late) < jobs_left) p
                order by p.priority desc, p.job_id desc limit 1
            ) w on true;
            if seen.ids is not null then
                perform flyball.bury_unsent(expire_notifications.throttle, seen.ids, seen.lanes, seen.priorities, seen.attempts, seen.costs, seen.holders);
                jobs := jobs + cardinality(seen.ids);
            end if;
            if seen.walked >= rows_left or seen.late >= jobs_left then
                next := format('r/%s/%s/%s', seen.priority, seen.job_id, at_key);
                return;
            end if;
            rows_left := rows_left - seen.walked;
            jobs_left := jobs_left - seen.late;
            at_id := 0;
        end if;
        with walk as materialized (
            select q.ctid as tid, q.job_id
            from flyball.scheduled q
            where q.lane_id = lane.lane_id and q.job_id > at_id
            order by q.lane_id, q.job_id
            limit rows_left
        ),
        late as materialized (
            select w.*
            from walk w
            cross join lateral (select * from flyball.job where job.id = w.job_id limit 1) j
            left join lateral (select d.requeued_at from flyball.delivery d where d.job_id = w.job_id limit 1) d on true
            where j.kind = 'notification'
                and greatest(j.created_at, j.run_at, d.requeued_at) + flyball.valid_for(j.args, expire_notifications.valid_for) <= now()
            limit jobs_left
        ),
        taken as (
            delete from flyball.scheduled
            where ctid = any(array(select q.ctid from flyball.scheduled q where q.ctid = any(array(select l.tid from late l)) for update skip locked))
            returning *
        ),
        listed as (
            select array_agg(t.job_id) as ids, array_agg(t.lane_id) as lanes, array_agg(t.priority) as priorities,
                array_agg(t.attempt) as attempts, array_agg(t.cost) as costs,
                array_agg(t.job_id) filter (where t.holds_unique) as holders
            from taken t
        )
        select n.*, (select count(*) from walk) as walked, (select count(*) from late) as late,
            case when (select count(*) from late) = jobs_left then (select max(job_id) from late) else (select max(job_id) from walk) end as job_id
        into seen
        from listed n;
        if seen.ids is not null then
            perform flyball.bury_unsent(expire_notifications.throttle, seen.ids, seen.lanes, seen.priorities, seen.attempts, seen.costs, seen.holders);
            jobs := jobs + cardinality(seen.ids);
        end if;
        if seen.walked >= rows_left or seen.late >= jobs_left then
            next := format('s/0/%s/%s', seen.job_id, at_key);
            return;
        end if;
        rows_left := rows_left - seen.walked;
        jobs_left := jobs_left - seen.late;
    end loop;
    -- The directory may have more lanes than were looked at.
    select format('r/-1/0/%s', l.key) into next
    from flyball.lane l
    where l.throttle = expire_notifications.throttle and l.key > at_key
    order by l.throttle, l.key
    limit 1;
end $$;

-- Messages of a pool that died because no account was there run again, at most max_jobs, the oldest first; their deadlines
-- count from now on.
create function flyball.requeue_unsent(pool text, max_jobs int default 1000, by text default null, out looked_at bigint, out jobs bigint)
language plpgsql volatile set enable_seqscan = off set enable_bitmapscan = off set jit = off as $$
#variable_conflict use_column
declare
    ids  bigint[];
    rung text;
begin
    select array_agg(u.job_id) into ids
    from (
        select d.job_id from flyball.delivery d
        where d.pool = requeue_unsent.pool and d.unsent
        order by d.pool, d.job_id
        limit max_jobs
        for update skip locked
    ) u;
    looked_at := coalesce(cardinality(ids), 0);
    jobs := 0;
    if looked_at = 0 then
        return;
    end if;
    with was_dead as (
        delete from flyball.dead d where d.job_id = any(ids) returning *
    ),
    held as materialized (
        select unnest(flyball.hold_keys(array(select w.job_id from was_dead w))) as job_id
    ),
    again as (
        insert into flyball.ready (lane_id, priority, job_id, attempt, cost, holds_unique)
        select w.lane_id, w.priority, w.job_id, 0, w.cost, w.job_id in (select h.job_id from held h) from was_dead w
        on conflict do nothing
    )
    select count(*), left(string_agg(distinct w.lane_id::text, ','), 7900) into jobs, rung from was_dead w;
    -- Those that are not dead any more have been seen to by somebody else.
    update flyball.delivery d set unsent = false where d.job_id = any(ids) and d.unsent;
    if jobs > 0 then
        perform flyball.note(null, flyball.signed(requeue_unsent.by), 'dead.requeue', requeue_unsent.pool, null,
            jsonb_build_object('jobs', jobs, 'filter', jsonb_build_object('throttle', requeue_unsent.pool, 'unsent', true)),
            'accounts are available again');
        perform pg_notify('flyball', rung);
    end if;
end $$;

-- A dead message that runs again, by whatever door, is queued again and waits as long as a new one.
create function flyball.note_requeued() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
begin
    insert into flyball.delivery as d (job_id, channel, pool, state, recipient_digest, recipient, category, requeued_at)
    select j.id, coalesce(j.args ->> 'channel', ''), j.throttle, 'queued', flyball.recipient_digest(j.args ->> 'channel', j.args ->> 'to'),
        coalesce(flyball.mask_recipient(j.args ->> 'channel', j.args ->> 'to'), ''), coalesce(j.args ->> 'category', ''), now()
    from (select * from gone order by gone.job_id) g
    cross join lateral (select * from flyball.job where job.id = g.job_id limit 1) j
    where j.kind = 'notification'
        and exists (select from flyball.ready r where r.lane_id = g.lane_id and r.priority = g.priority and r.job_id = g.job_id)
    on conflict on constraint delivery_pkey do update
    set state = case when d.state in ('failed', 'suppressed') then 'queued' else d.state end,
        unsent = false, requeued_at = excluded.requeued_at, updated_at = clock_timestamp();
    return null;
end $$;

create trigger note_requeued after delete on flyball.dead
referencing old table as gone for each statement execute function flyball.note_requeued();

-- === For people who look =============================================================================================

-- Every message with its state: what was written down, else what its job says.
create view flyball.notification as
select j.id as job_id, coalesce(d.channel, j.args ->> 'channel') as channel, coalesce(d.pool, j.throttle) as pool,
    coalesce(d.provider, '') as provider, d.account,
    case when coalesce(d.state, 'queued') <> 'queued' then d.state
        when l.held or w.waits then 'queued'
        when x.error is not null or a.outcome in ('cancelled', 'dropped') then 'failed'
        else 'queued' end as state,
    d.provider_id, coalesce(d.recipient, flyball.mask_recipient(j.args ->> 'channel', j.args ->> 'to'), '') as recipient,
    coalesce(d.category, j.args ->> 'category', '') as category, coalesce(d.attempts, '[]') as attempts, coalesce(d.tries, 0) as tries,
    case when coalesce(d.state, 'queued') <> 'queued' or l.held or w.waits then coalesce(d.reason, '')
        when x.error is not null then x.error
        when a.outcome in ('cancelled', 'dropped') then coalesce(a.error, 'cancelled')
        else coalesce(d.reason, '') end as reason,
    coalesce(d.complained, false) as complained, d.requeued_at, j.created_at, coalesce(d.updated_at, j.created_at) as updated_at
from flyball.job j
left join lateral (select * from flyball.delivery h where h.job_id = j.id limit 1) d on true
left join lateral (
    select true as held from flyball.lease h where coalesce(d.state, 'queued') = 'queued' and h.job_id = j.id limit 1
) l on true
left join lateral (
    (select true as waits from flyball.ready h
     where coalesce(d.state, 'queued') = 'queued' and h.lane_id = j.lane_id and h.priority = j.priority and h.job_id = j.id limit 1)
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
    where coalesce(d.state, 'queued') = 'queued' and l.held is null and w.waits is null and h.job_id = j.id
    order by h.finished_at desc limit 1
) a on true
where j.kind = 'notification'
union all
select d.job_id, d.channel, d.pool, d.provider, d.account, d.state, d.provider_id, d.recipient, d.category, d.attempts, d.tries, d.reason,
    d.complained, d.requeued_at, d.created_at, d.updated_at
from flyball.delivery d
where not exists (select from flyball.job j where j.id = d.job_id);

-- Every attempt that is kept, one row each.
create view flyball.delivery_attempt as
select d.job_id, d.channel, d.pool, d.provider, greatest(d.tries - jsonb_array_length(d.attempts), 0) + e.n as attempt,
    (e.value ->> 'at')::timestamptz as at, e.value ->> 'account' as account, e.value ->> 'outcome' as outcome,
    e.value ->> 'status' as status, e.value ->> 'reason' as reason, (e.value ->> 'ms')::bigint as ms
from flyball.delivery d
cross join lateral jsonb_array_elements(d.attempts) with ordinality as e(value, n);

-- === Priority ========================================================================================================

-- The priority of a job whose arguments name the urgency of a message.
create function flyball.notification_priority(args jsonb) returns int
language sql immutable parallel safe
return case args ->> 'priority' when 'critical' then 0 when 'high' then 1 when 'low' then 3 else 2 end;

-- The front doors as they were, but that a message of the default priority gets that of its arguments.
create or replace function flyball.enqueue(
    kind text,
    args jsonb default '{}',
    throttle text default 'default',
    key text default '',
    priority int default 1,
    run_at timestamptz default null,
    max_attempts int default 10,
    unique_key text default null,
    unique_for interval default null,
    cost float8 default 1,
    traceparent text default null,
    timeout interval default null,
    debounce interval default null,
    debounce_max interval default null,
    replace boolean default false,
    out job_id bigint,
    out duplicate boolean,
    out replaced boolean,
    out backlog jsonb)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    bad   record;
    rings boolean;
begin
    if kind = 'notification' and priority = 1 then
        priority := flyball.notification_priority(args);
    end if;

    if run_at is null and unique_key is null and unique_for is null and debounce is null and debounce_max is null and not replace then
        -- The whole of a plain job. It inserts nothing where `check_job` might have a word to say, where today's partition
        -- is missing, and where the throttle has a cap on its backlogs. The text of the arguments is measured itself: what they
        -- take as jsonb says little about it, as 1e100000 takes as much as 1.5, and a value from a table may be compressed.
        with kept as (
            insert into flyball.job
                (id, lane_id, priority, max_attempts, cost, kind, throttle, key, args, traceparent, timeout_s)
            select flyball.next_id(), flyball.lane_of(throttle, key), priority, max_attempts, cost, kind, throttle, key, args,
                traceparent, extract(epoch from timeout)
            from flyball.kind k
            where k.name = kind
                and octet_length(args::text) <= 262144
                and throttle ~ '^[A-Za-z0-9._/:{}-]+$' and octet_length(throttle) <= 128
                and octet_length(key) <= 512
                and priority between 0 and 3
                and max_attempts between 1 and 1000
                and cost > 0 and cost <= 1e9
                and (traceparent is null or flyball.is_traceparent(traceparent))
                and (timeout is null or timeout >= interval '1 microsecond' and timeout <= interval '366 days')
                and to_regclass('flyball.job_' || flyball.day_of(now())) is not null
                and not exists (select from flyball.knobs b where b.throttle = throttle and b.fields ? 'max_backlog')
            returning id, lane_id
        )
        insert into flyball.ready as r (lane_id, priority, job_id, cost, holds_unique)
        select kept.lane_id, priority, kept.id, cost, false from kept
        returning r.job_id, false, false, (select d.asleep from flyball.doorbell d) is distinct from false
        into job_id, duplicate, replaced, rings;
        if rings then
            perform pg_notify('flyball', flyball.lane_of(throttle, key)::text);
            return;
        elsif rings is not null then
            return;
        end if;
    end if;

    select * into bad from flyball.check_job(kind, args, throttle, key, priority, max_attempts, unique_key, unique_for, cost,
        run_at, traceparent, timeout, debounce, debounce_max, replace);
    if bad.field is not null then
        raise exception using
            errcode = '22023',
            message = format('enqueue: %s: %s', bad.field, bad.message),
            column = bad.field,
            hint = 'Nothing was enqueued.';
    end if;
    select a.job_id, a.duplicate, a.replaced, a.backlog into job_id, duplicate, replaced, backlog
    from flyball.admit('enqueue', kind, args, throttle, key, priority, run_at, max_attempts, unique_key, unique_for, cost,
        traceparent, timeout, debounce, debounce_max, replace) a;
end $$;

create or replace function flyball.enqueue_rows(
    kinds text[], args jsonb[], throttles text[], keys text[], priorities int[], run_ats timestamptz[], max_attempts int[],
    unique_keys text[], unique_fors float8[], costs float8[], traceparents text[], timeouts float8[],
    debounces float8[], debounce_maxes float8[], replaces boolean[])
returns table (job_id bigint, duplicate boolean, replaced boolean, backlog jsonb)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    size     constant int := coalesce(cardinality(kinds), 0);
    today    constant bigint := flyball.day_of(now());
    at_once  constant boolean := run_ats is not null and array_remove(run_ats, null) = '{}';
    plain    constant boolean := unique_keys is not null and array_remove(unique_keys, null) = '{}';
    untraced constant boolean := array_remove(traceparents, null) = '{}';
    untimed  constant boolean := array_remove(timeouts, null) = '{}';
    one      record;
    got      record;
    over     jsonb;
    place    bigint;
    ids      bigint[];
    lanes    bigint[];
    twins    boolean[];
    swaps    boolean[];
    backlogs jsonb[];
begin
    if size > 10000 then
        raise exception using errcode = '22023', column = '',
            message = format('enqueue_many: jobs: has %s elements; at most 10000 are allowed', size),
            hint = 'Nothing was enqueued.';
    elsif array[cardinality(args), cardinality(throttles), cardinality(keys), cardinality(priorities), cardinality(run_ats),
            cardinality(max_attempts), cardinality(unique_keys), cardinality(unique_fors), cardinality(costs),
            cardinality(traceparents), cardinality(timeouts), cardinality(debounces), cardinality(debounce_maxes),
            cardinality(replaces)] is distinct from array_fill(size, array[14]) then
        raise exception using errcode = '22023', column = '',
            message = 'enqueue_rows: every argument must be an array with one element for each job', hint = 'Nothing was enqueued.';
    elsif size = 0 then
        return;
    end if;

    if 'notification' = any (kinds) and 1 = any (priorities) then
        priorities := array(
            select case when g.kind = 'notification' and g.priority = 1 then flyball.notification_priority(g.args) else g.priority end
            from unnest(kinds, priorities, args) with ordinality as g(kind, priority, args, n)
            order by g.n);
    end if;

    -- Each column is looked at as a whole, which costs a fraction of looking at each job. Only if a column holds something that
    -- might be wrong are the jobs judged one by one.
    if (plain and at_once
        and array_remove(unique_fors, null) = '{}' and array_remove(debounces, null) = '{}' and array_remove(debounce_maxes, null) = '{}'
        and false = all (replaces)
        and case when kinds[1] = all (kinds) then exists (select from flyball.kind k where k.name = kinds[1])
                 else kinds <@ array(select k.name from flyball.kind k where k.name in (select distinct unnest(kinds))) end
        and array_position(args, null) is null
        and 262144 >= all (select octet_length(a::text) from unnest(args) as a)
        and case when throttles[1] = all (throttles) then throttles[1] ~ '^[A-Za-z0-9._/:{}-]+$' and octet_length(throttles[1]) <= 128
                 else true = all (select t ~ '^[A-Za-z0-9._/:{}-]+$' and octet_length(t) <= 128
                                  from (select distinct unnest(throttles) as t) as t) end
        and 512 >= all (select octet_length(k) from unnest(keys) as k)
        and 0 <= all (priorities) and 3 >= all (priorities)
        and 1 <= all (max_attempts) and 1000 >= all (max_attempts)
        and 0 < all (costs) and 1e9 >= all (costs)
        and (untraced or true = all (select flyball.is_traceparent(t) from unnest(array_remove(traceparents, null)) as t))
        and (untimed or 1e-6 <= all (array_remove(timeouts, null)) and 366 * 86400.0 >= all (array_remove(timeouts, null)))) is not true
    then
        for one in
            select g.n, c.field, c.message
            from unnest(kinds, args, throttles, keys, priorities, run_ats, max_attempts, unique_keys, unique_fors, costs,
                    traceparents, timeouts, debounces, debounce_maxes, replaces) with ordinality
                as g(kind, args, throttle, key, priority, run_at, max_attempts, unique_key, unique_for, cost, traceparent,
                    timeout, debounce, debounce_max, replace, n)
            cross join lateral flyball.check_job(g.kind, g.args, g.throttle, g.key, g.priority, g.max_attempts, g.unique_key,
                flyball.span(g.unique_for), g.cost, g.run_at, g.traceparent, flyball.span(g.timeout), flyball.span(g.debounce),
                flyball.span(g.debounce_max), g.replace) c
            where c.field is not null
            order by g.n
            limit 1
        loop
            raise exception using
                errcode = '22023',
                message = format('enqueue_many: jobs[%s].%s: %s', one.n - 1, one.field, one.message),
                column = one.field,
                table = (one.n - 1)::text,
                hint = 'Nothing was enqueued.';
        end loop;
    end if;

    if to_regclass('flyball.job_' || today) is null then
        perform flyball.ensure_day(today);
    end if;

    -- Lanes with a cap are looked at once each, before anything is added to them.
    if exists (
        select from (select distinct unnest(throttles)) as t(name)
        join flyball.knobs b on b.throttle = t.name and b.fields ? 'max_backlog'
    ) then
        backlogs := array_fill(null::jsonb, array[size]);
        for one in
            select g.throttle, g.key, flyball.lane_of(g.throttle, g.key) as lane, array_agg(g.n) as places
            from unnest(throttles, keys, run_ats, unique_keys) with ordinality as g(throttle, key, run_at, unique_key, n)
            where g.unique_key is null and (g.run_at is null or g.run_at <= now())
            group by 1, 2, 3
            order by 3
        loop
            over := flyball.check_backlog('enqueue_many', one.throttle, one.key, one.lane, cardinality(one.places));
            if over is not null then
                foreach place in array one.places loop
                    backlogs[place] := over;
                end loop;
            end if;
        end loop;
    end if;

    ids := array(select today << 38 | nextval('flyball.job_seq') from generate_series(1, size));
    lanes := case when throttles[1] = all (throttles) and keys[1] = all (keys)
        then array_fill(flyball.lane_of(throttles[1], keys[1]), array[size])
        else array(select flyball.lane_of(g.throttle, g.key) from (select unnest(throttles) as throttle, unnest(keys) as key) as g) end;

    if plain and at_once and untraced and untimed then
        insert into flyball.job (id, lane_id, priority, max_attempts, cost, kind, throttle, key, args)
        select unnest(ids), unnest(lanes), unnest(priorities), unnest(max_attempts), unnest(costs), unnest(kinds), unnest(throttles),
            unnest(keys), unnest(args);
        insert into flyball.ready (lane_id, priority, job_id, cost, holds_unique)
        select unnest(lanes), unnest(priorities), unnest(ids), unnest(costs), false;
    else
        insert into flyball.job
            (id, lane_id, priority, max_attempts, cost, run_at, kind, throttle, key, args, traceparent, timeout_s)
        select g.id, g.lane, g.priority, g.max_attempts, g.cost, g.run_at, g.kind, g.throttle, g.key, g.args, g.traceparent, g.timeout
        from (
            select unnest(ids) as id, unnest(lanes) as lane, unnest(priorities) as priority, unnest(max_attempts) as max_attempts,
                unnest(costs) as cost, unnest(run_ats) as run_at, unnest(kinds) as kind, unnest(throttles) as throttle,
                unnest(keys) as key, unnest(args) as args, unnest(traceparents) as traceparent, unnest(timeouts) as timeout,
                unnest(unique_keys) as unique_key
        ) as g
        where g.unique_key is null;
        insert into flyball.ready (lane_id, priority, job_id, cost, holds_unique)
        select g.lane, g.priority, g.id, g.cost, false
        from (
            select unnest(lanes) as lane, unnest(priorities) as priority, unnest(ids) as id, unnest(costs) as cost,
                unnest(run_ats) as run_at, unnest(unique_keys) as unique_key
        ) as g
        where g.unique_key is null and (g.run_at is null or g.run_at <= now());
    end if;

    if not at_once then
        insert into flyball.scheduled (job_id, run_at, lane_id, priority, cost, retry, holds_unique)
        select g.id, g.run_at, g.lane, g.priority, g.cost, false, false
        from unnest(ids, run_ats, lanes, priorities, costs, unique_keys) as g(id, run_at, lane, priority, cost, unique_key)
        where g.unique_key is null and g.run_at > now();
    end if;

    if coalesce((select d.asleep from flyball.doorbell d), true) then
        -- No lane in particular where several got work.
        perform pg_notify('flyball', case when min(g.lane) = max(g.lane) then min(g.lane)::text else '' end)
        from unnest(lanes, run_ats, unique_keys) as g(lane, run_at, unique_key)
        where g.unique_key is null and (g.run_at is null or g.run_at <= now())
        having count(*) > 0;
    end if;

    if plain then
        return query select unnest(ids), false, false, unnest(backlogs);
        return;
    end if;

    twins := array_fill(false, array[size]);
    swaps := array_fill(false, array[size]);
    backlogs := coalesce(backlogs, array_fill(null::jsonb, array[size]));
    -- In the order of their keys' digests, as everybody takes many keys: who wants the same ones waits and never crosses.
    for one in
        select g.*
        from unnest(kinds, args, throttles, keys, priorities, run_ats, max_attempts, unique_keys, unique_fors, costs, traceparents,
                timeouts, debounces, debounce_maxes, replaces) with ordinality
            as g(kind, args, throttle, key, priority, run_at, max_attempts, unique_key, unique_for, cost, traceparent,
                timeout, debounce, debounce_max, replace, n)
        where g.unique_key is not null
        order by sha256(convert_to(g.kind || chr(31) || g.unique_key, 'UTF8')), g.n
    loop
        got := flyball.admit('enqueue_many', one.kind, one.args, one.throttle, one.key, one.priority, one.run_at,
            one.max_attempts, one.unique_key, flyball.span(one.unique_for), one.cost, one.traceparent, flyball.span(one.timeout),
            flyball.span(one.debounce), flyball.span(one.debounce_max), one.replace);
        ids[one.n] := got.job_id;
        twins[one.n] := got.duplicate;
        swaps[one.n] := got.replaced;
        backlogs[one.n] := got.backlog;
    end loop;
    return query select * from unnest(ids, twins, swaps, backlogs);
end $$;

-- === Who may =========================================================================================================

do $$
declare
    f regprocedure;
begin
    for f in
        select p.oid::regprocedure
        from pg_proc p
        where p.pronamespace = 'flyball'::regnamespace
            and p.proname = any(array['check_recipient', 'suppress', 'unsuppress', 'is_suppressed', 'bury_unsent', 'expire_notifications',
                'requeue_unsent', 'note_requeued'])
    loop
        execute format('revoke execute on function %s from public', f);
    end loop;
end $$;

comment on view flyball.notification is 'Every message with its state, account, attempts and reason; the recipient is masked.';
comment on view flyball.delivery_attempt is 'Every attempt at a message that is kept, one row each.';
comment on function flyball.suppress is 'Nothing goes to the recipient on this channel any more.';
comment on function flyball.unsuppress is 'Messages go to the recipient again.';
comment on function flyball.is_suppressed is 'Whether nothing goes to the recipient on this channel.';
comment on function flyball.requeue_unsent is 'Messages that died because no account was there run again.';
