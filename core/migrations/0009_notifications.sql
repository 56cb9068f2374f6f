-- Chapter 9: notifications: the delivery record of each message, suppressions, and deadlines.
--
-- One row per message, written after each attempt by a statement that writes many. An address is
-- kept as a digest and in a masked form, so this record may outlive the job and its arguments.

-- === Deliveries ==================================================================================

-- Order of the states. A late report of an earlier state changes nothing.
create function flyball.delivery_rank(state text) returns int
language sql immutable parallel safe
return case state when 'queued' then 0 when 'sent' then 1 when 'delivered' then 3 when 'bounced' then 4
    when 'failed' then 2 when 'suppressed' then 2 when 'collected' then 2 when 'opted_out' then 2 when 'duplicate' then 2
    when 'capped' then 2 when 'quiet' then 2 when 'unreachable' then 2 else -1 end;

-- The last 50 of both lists of attempts.
create function flyball.append_attempts(have jsonb, more jsonb) returns jsonb
language sql immutable parallel safe as $$
    select case when jsonb_array_length(have) + jsonb_array_length(more) <= 50 then have || more else (
        select jsonb_agg(e.value order by e.n)
        from jsonb_array_elements(have || more) with ordinality as e(value, n)
        where e.n > jsonb_array_length(have) + jsonb_array_length(more) - 50
    ) end
$$;

-- === Suppressions ================================================================================

-- A suppression holds for the messages of all tenants: a role with a tenant neither reads nor
-- changes one, whatever it was granted.

-- Suppresses the recipient with this digest. False if it is suppressed already; the first reason is
-- kept.
create function flyball.suppress_known(channel text, known bytea, shown text, reason text, by text) returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set standard_conforming_strings = on as $$
#variable_conflict use_column
begin
    insert into flyball.suppression (channel, recipient_digest, reason)
    values (suppress_known.channel, flyball.keyed_digest(known), left(coalesce(suppress_known.reason, ''), 1000))
    on conflict do nothing;
    if not found then
        return false;
    end if;
    perform flyball.write_audit(null, flyball.audit_actor(suppress_known.by), 'recipient.suppress',
        suppress_known.channel || '/' || shown, null, null,
        suppress_known.reason);
    return true;
end $$;

-- Ends the suppression of the recipient with this digest. False if it was not suppressed.
create function flyball.unsuppress_known(channel text, known bytea, shown text, why text, by text) returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set standard_conforming_strings = on as $$
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
    perform flyball.write_audit(null, flyball.audit_actor(unsuppress_known.by), 'recipient.unsuppress',
        unsuppress_known.channel || '/' || shown, removed, null,
        unsuppress_known.why);
    return true;
end $$;

-- Suppresses a recipient on a channel. False if it is suppressed already; the first reason is kept.
create function flyball.suppress(channel text, recipient text, reason text default '', by text default null) returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set standard_conforming_strings = on as $$
begin
    perform flyball.check_reads_all('suppress');
    perform flyball.check_recipient('suppress', suppress.channel, suppress.recipient);
    return flyball.suppress_known(suppress.channel, flyball.known_digest(suppress.channel, suppress.recipient),
        flyball.mask_recipient(suppress.channel, suppress.recipient), suppress.reason, suppress.by);
end $$;
comment on function flyball.suppress is 'Suppresses a recipient on a channel.';

-- Ends the suppression of a recipient. False if it was not suppressed.
create function flyball.unsuppress(channel text, recipient text, by text default null, why text default '') returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set standard_conforming_strings = on as $$
begin
    perform flyball.check_reads_all('unsuppress');
    perform flyball.check_recipient('unsuppress', unsuppress.channel, unsuppress.recipient);
    return flyball.unsuppress_known(unsuppress.channel, flyball.known_digest(unsuppress.channel, unsuppress.recipient),
        flyball.mask_recipient(unsuppress.channel, unsuppress.recipient), unsuppress.why, unsuppress.by);
end $$;
comment on function flyball.unsuppress is 'Ends the suppression of a recipient.';

-- Whether a recipient is suppressed on this channel.
create function flyball.is_suppressed(channel text, recipient text) returns boolean
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off
set standard_conforming_strings = on set jit = off as $$
begin
    perform flyball.check_reads_all('is_suppressed');
    perform flyball.check_recipient('is_suppressed', is_suppressed.channel, is_suppressed.recipient);
    return exists (
        select from flyball.suppression s
        where s.channel = is_suppressed.channel
            and s.recipient_digest = (select flyball.recipient_digest(is_suppressed.channel, is_suppressed.recipient))
    );
end $$;
comment on function flyball.is_suppressed is 'Whether a recipient is suppressed on this channel.';

-- === Deadlines ===================================================================================

-- The longest wait of a message, from its arguments or else from its pool.
create function flyball.valid_for(args jsonb, otherwise float8) returns interval
language sql immutable parallel safe
return make_interval(secs => case when jsonb_typeof(args -> 'valid_for_s') = 'number'
    then greatest(least((args -> 'valid_for_s')::numeric, 316224000), 0.001)::float8 else least(otherwise, 316224000) end);

-- The time until which the gates of its recipient held a message that has no deadline of its own:
-- the pool's deadline counts from then. The deadline that a sender sets beside a local time counts
-- from the end of a hold as well. Where another gate holds the message after its time, that is
-- later than the deadline of the gates, which look again in each attempt.
create function flyball.held_until_of(job_id bigint, args jsonb) returns timestamptz
language plpgsql stable set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off as $$
begin
    if flyball.needs_plan('notification', args)
        and (jsonb_typeof(args -> 'valid_for_s') is distinct from 'number' or args ->> 'local_time' is not null)
    then
        return (select p.until from flyball.message_plan p where p.job_id = held_until_of.job_id);
    end if;
    return null;
end $$;

-- Makes messages dead that were taken out of their queue because their deadline had passed.
-- `errors` are the reasons and `outcome` that of the attempt in the record; `holders` are those
-- that hold their unique keys. `unsent` says that no account was available: such messages are
-- requeued when one is.
create function flyball.dead_letter_messages(
    ids bigint[], attempts smallint[], errors text[], holders bigint[], outcome text, unsent boolean)
returns void
language plpgsql volatile set enable_seqscan = off set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_column
begin
    with expired as materialized (
        select g.job_id, g.attempt, g.error, j.lane_id, j.priority, j.cost, j.args, j.tenant, j.throttle
        from unnest(ids, dead_letter_messages.attempts, errors) as g(job_id, attempt, error)
        cross join lateral (select * from flyball.job where job.id = g.job_id limit 1) j
    ),
    dead_rows as (
        insert into flyball.dead (job_id, lane_id, priority, attempt, cost, error)
        select e.job_id, e.lane_id, e.priority, e.attempt, e.cost, e.error from expired e order by e.job_id
        on conflict do nothing
    ),
    history as (
        insert into flyball.attempt (job_id, attempt, outcome, error) select e.job_id, e.attempt, 'dead', e.error from expired e
    ),
    failures as (
        insert into flyball.failure (job_id, attempt, outcome, error) select e.job_id, e.attempt, 'dead', e.error from expired e
    ),
    released_keys as (
        delete from flyball.unique_holder
        where digest = any(array(
            select u.digest from flyball.unique_holder u where u.expires_at is null and u.job_id = any(holders) for update skip locked
        ))
    )
    insert into flyball.delivery as d
        (job_id, channel, pool, tenant, state, recipient_digest, recipient, category, attempts, attempt_count, last_outcome, reason, unsent)
    select e.job_id, coalesce(e.args ->> 'channel', ''), e.throttle, e.tenant, 'failed',
        flyball.recipient_digest(e.args ->> 'channel', e.args ->> 'to'),
        coalesce(flyball.mask_recipient(e.args ->> 'channel', e.args ->> 'to'), ''), coalesce(e.args ->> 'category', ''),
        jsonb_build_array(jsonb_build_object('at', to_char(now() at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'), 'account', null,
            'outcome', dead_letter_messages.outcome, 'status', '', 'reason', e.error, 'ms', 0)),
        1, dead_letter_messages.outcome, e.error, dead_letter_messages.unsent
    from expired e
    order by e.job_id
    on conflict on constraint delivery_pkey do update
    set state = case when flyball.delivery_rank(d.state) < 2 then 'failed' else d.state end,
        attempts = flyball.append_attempts(d.attempts, excluded.attempts), attempt_count = d.attempt_count + 1,
        last_outcome = excluded.last_outcome, reason = excluded.reason,
        unsent = excluded.unsent and flyball.delivery_rank(d.state) <= 2, updated_at = clock_timestamp();
end $$;

-- Makes waiting messages of a throttle dead if their deadline has passed, at most max_jobs, walking
-- through a bounded part of its lanes. While `next` is not null the walk is not complete: call
-- again with `start` set to it. A message that a worker claims at the same moment belongs to that
-- worker.
create function flyball.expire_notifications(throttle text, valid_for float8, max_jobs int default 1000,
    start text default null, out jobs bigint, out next text)
language plpgsql volatile set enable_seqscan = off set enable_bitmapscan = off set jit = off set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    -- Rows and lanes read per call, so that a call ends within a fraction of a second.
    walk_rows   constant int := 5000;
    walk_lanes  constant int := 200;
    error_text  constant text := format('no account of pool %s was available until its deadline', expire_notifications.throttle);
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
            perform flyball.refuse('expire_notifications', 'start',
                'is not a place to go on from; give what "next" answered, or null to begin');
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
                    and greatest(j.created_at, j.run_at, d.requeued_at, flyball.held_until_of(j.id, j.args))
                        + flyball.valid_for(j.args, expire_notifications.valid_for) <= now()
                limit jobs_left
            ),
            removed as (
                delete from flyball.ready
                where ctid = any(array(
                    select q.ctid from flyball.ready q where q.ctid = any(array(select l.tid from overdue l)) for update skip locked))
                returning *
            ),
            collected as (
                select array_agg(t.job_id) as ids, array_agg(t.attempt) as attempts,
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
                perform flyball.dead_letter_messages(result.ids, result.attempts, array_fill(error_text, array[cardinality(result.ids)]),
                    result.holders, 'no_account', true);
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
            where q.lane_id <= lane.lane_id and (q.lane_id, q.job_id) > (lane.lane_id, at_id)
            order by q.lane_id, q.job_id
            limit rows_left
        ),
        overdue as materialized (
            select w.*
            from walk w
            cross join lateral (select * from flyball.job where job.id = w.job_id limit 1) j
            left join lateral (select d.requeued_at from flyball.delivery d where d.job_id = w.job_id limit 1) d on true
            where j.kind = 'notification'
                and greatest(j.created_at, j.run_at, d.requeued_at, flyball.held_until_of(j.id, j.args))
                    + flyball.valid_for(j.args, expire_notifications.valid_for) <= now()
            limit jobs_left
        ),
        removed as (
            delete from flyball.scheduled
            where ctid = any(array(
                select q.ctid from flyball.scheduled q where q.ctid = any(array(select l.tid from overdue l)) for update skip locked))
            returning *
        ),
        collected as (
            select array_agg(t.job_id) as ids, array_agg(t.attempt) as attempts,
                array_agg(t.job_id) filter (where t.holds_unique) as holders
            from removed t
        )
        select n.*, (select count(*) from walk) as walked, (select count(*) from overdue) as overdue,
            case when (select count(*) from overdue) = jobs_left then (select max(job_id) from overdue)
                else (select max(job_id) from walk) end as job_id
        into result
        from collected n;
        if result.ids is not null then
            perform flyball.dead_letter_messages(result.ids, result.attempts, array_fill(error_text, array[cardinality(result.ids)]),
                result.holders, 'no_account', true);
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

-- === Dead letters ================================================================================

-- Requeues messages of a pool that died because no account was available, at most max_jobs, the
-- oldest first; their deadlines start again, and messages of tenants wait for the limits again. A
-- mark that is younger than a minute is left for the next call: such a message may be dying at this
-- moment. Messages whose unique key, or whose dead letter, an open transaction has locked are left
-- as they are, and counted. The reason is for the audit log.
create function flyball.requeue_unsent(pool text, max_jobs integer default 1000, by text default null, why text default null,
    out examined bigint, out jobs bigint, out skipped bigint)
language plpgsql set enable_seqscan = off set enable_bitmapscan = off set jit = off set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    ids            bigint[];
    dead_ids       bigint[];
    keys           bigint[] := '{}';
    busy           bigint[];
    one            bigint;
    notified_lanes text;
    caller_timeout constant text := current_setting('lock_timeout');
begin
    if (max_jobs between 1 and 10000) is not true then
        perform flyball.refuse('requeue_unsent', 'max_jobs', format('is %s; allowed are 1 to 10000: call again for more',
            coalesce(max_jobs::text, 'null')));
    end if;
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
    skipped := 0;
    if examined = 0 then
        return;
    end if;
    dead_ids := array(select d.job_id from flyball.dead d where d.job_id = any(ids) order by d.job_id desc for update skip locked);
    busy := array(select d.job_id from flyball.dead d where d.job_id = any(ids) and d.job_id <> all (dead_ids));
    begin
        perform set_config('lock_timeout', '100ms', true);
        keys := flyball.lock_unique_keys(dead_ids);
        perform set_config('lock_timeout', caller_timeout, true);
    exception when lock_not_available then
        foreach one in array dead_ids loop
            begin
                perform set_config('lock_timeout', '10ms', true);
                keys := keys || flyball.lock_unique_keys(array[one]);
                perform set_config('lock_timeout', caller_timeout, true);
            exception when lock_not_available then
                busy := busy || one;
            end;
        end loop;
    end;
    skipped := cardinality(busy);
    with was_dead as (
        delete from flyball.dead d where d.job_id = any(dead_ids) and d.job_id <> all (busy) returning *
    ),
    keyed as materialized (
        select unnest(keys) as job_id
    ),
    waiting as materialized (
        select a.job_id, a.lane_id from flyball.await_admission(array(select w.job_id from was_dead w)) a
    ),
    targets as materialized (
        select w.job_id, coalesce(a.lane_id, w.lane_id) as lane_id, w.priority, w.cost
        from was_dead w
        left join waiting a on a.job_id = w.job_id
    ),
    requeued as (
        insert into flyball.ready (lane_id, priority, job_id, attempt, cost, holds_unique)
        select w.lane_id, w.priority, w.job_id, 0, w.cost, w.job_id in (select h.job_id from keyed h) from targets w
        on conflict do nothing
    )
    select count(*), left(string_agg(distinct w.lane_id::text, ','), 7900) into jobs, notified_lanes from targets w;
    -- Jobs that are not dead any more were handled by another process. A message records first that
    -- it found no account and then dies, so one with a fresh mark may be about to die.
    update flyball.delivery d set unsent = false
    where d.job_id = any(ids) and d.job_id <> all (busy) and coalesce(d.unsent, false)
        and d.updated_at < clock_timestamp() - interval '1 minute';
    if jobs > 0 then
        perform flyball.write_audit(null, flyball.audit_actor(requeue_unsent.by), 'dead.requeue', requeue_unsent.pool, null,
            jsonb_build_object('jobs', jobs, 'filter', jsonb_build_object('throttle', requeue_unsent.pool, 'unsent', true)),
            coalesce(nullif(requeue_unsent.why, ''), 'accounts are available again'));
        perform pg_notify('flyball', notified_lanes);
    end if;
end $$;
comment on function flyball.requeue_unsent is 'Requeues messages that died because no account was available.';

-- A dead message that is requeued, by any entry point, is queued again with a new deadline. It
-- begins again: its last end says nothing about this run. A digest that is requeued takes the
-- present texts of its type: it may have died of an error in those that it had.
create function flyball.record_requeued() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set standard_conforming_strings = on
set jit = off as $$
begin
    insert into flyball.delivery as d (job_id, channel, pool, tenant, state, recipient_digest, recipient, category, requeued_at)
    select j.id, coalesce(j.args ->> 'channel', ''), j.throttle, j.tenant, 'queued',
        flyball.recipient_digest(j.args ->> 'channel', j.args ->> 'to'),
        coalesce(flyball.mask_recipient(j.args ->> 'channel', j.args ->> 'to'), ''), coalesce(j.args ->> 'category', ''), now()
    from (select * from deleted order by deleted.job_id) g
    cross join lateral (select * from flyball.job where job.id = g.job_id limit 1) j
    where j.kind = 'notification'
        and exists (
            select from flyball.ready r
            where r.lane_id in (g.lane_id, j.admission_lane) and r.priority = g.priority and r.job_id = g.job_id offset 0)
    on conflict on constraint delivery_pkey do update
    set state = case when d.state in ('failed', 'suppressed') then 'queued' else d.state end,
        last_outcome = null, unsent = false, requeued_at = excluded.requeued_at, updated_at = clock_timestamp();
    with digests as materialized (
        select p.job_id, r.digest_texts -> p.digest_type as texts
        from deleted g
        cross join lateral (select * from flyball.message_plan h where h.job_id = g.job_id limit 1) p
        join flyball.recipient_rules r on r.digest_texts ? p.digest_type
        where p.origin = 'digest'
            and exists (
                select from flyball.ready h
                where h.lane_id in (g.lane_id, (select o.admission_lane from flyball.job o where o.id = g.job_id))
                    and h.priority = g.priority and h.job_id = g.job_id offset 0)
    ),
    -- As `DigestTexts::template` in core/src/recipient/digest.rs makes it.
    present as materialized (
        select j.id, jsonb_strip_nulls(jsonb_build_object('body', d.texts -> 'body',
            'subject', case when j.args ->> 'channel' in ('email', 'push', 'inapp') then d.texts -> 'subject' end,
            'html', case when j.args ->> 'channel' = 'email' then d.texts -> 'html' end)) as template
        from digests d
        cross join lateral (select * from flyball.job where job.id = d.job_id limit 1) j
        -- That of a webhook is the same for all texts.
        where j.args ? 'template' and j.args ->> 'channel' <> 'webhook'
    )
    update flyball.job j
    set args = jsonb_set(j.args, '{template}', (select jsonb_object_agg(p.id, p.template) from present p) -> j.id::text)
    where j.id = any(array(select p.id from present p))
        and j.args -> 'template' <> (select jsonb_object_agg(p.id, p.template) from present p) -> j.id::text;
    return null;
end $$;

create trigger record_requeued after delete on flyball.dead
referencing old table as deleted for each statement execute function flyball.record_requeued();

-- === Views =======================================================================================

-- Every message that has a job or a record. A message whose job has completed is not `queued` for
-- ever if its record is missing: an attempt is over when the provider has answered, even if
-- Postgres was away for so long, or its worker stopped, that the answer could not be written. Most
-- of these were accepted.
create view flyball.notification as
select j.id as job_id, j.tenant, coalesce(d.channel, j.args ->> 'channel') as channel, coalesce(d.pool, j.throttle) as pool,
    coalesce(d.provider, '') as provider, d.account,
    case when coalesce(d.state, 'queued') <> 'queued' then d.state
        when l.is_running or w.is_waiting then 'queued'
        when x.error is not null or a.outcome in ('cancelled', 'dropped') then 'failed'
        when a.outcome = 'completed' then 'sent'
        else 'queued' end as state,
    d.provider_id, coalesce(d.recipient, flyball.mask_recipient(j.args ->> 'channel', j.args ->> 'to'), '') as recipient,
    coalesce(d.category, j.args ->> 'category', '') as category, coalesce(d.attempts, '[]') as attempts,
    coalesce(d.attempt_count, 0) as attempt_count,
    case when coalesce(d.state, 'queued') <> 'queued' or l.is_running or w.is_waiting then coalesce(d.reason, '')
        when x.error is not null then x.error
        when a.outcome in ('cancelled', 'dropped') then coalesce(a.error, 'cancelled')
        when a.outcome = 'completed' then 'its attempt ended, but the outcome could not be recorded; the worker logged it'
        else coalesce(d.reason, '') end as reason,
    coalesce(d.complained, false) as complained, d.requeued_at, j.created_at, coalesce(d.updated_at, j.created_at) as updated_at
from flyball.job j
left join lateral (select * from flyball.delivery h where h.job_id = j.id limit 1) d on true
left join lateral (
    select true as is_running from flyball.lease h where coalesce(d.state, 'queued') = 'queued' and h.job_id = j.id limit 1
) l on true
left join lateral (
    (select true as is_waiting from flyball.ready h
     where coalesce(d.state, 'queued') = 'queued' and h.lane_id in (j.lane_id, j.admission_lane) and h.priority = j.priority
         and h.job_id = j.id limit 1)
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
select d.job_id, d.tenant, d.channel, d.pool, d.provider, d.account, d.state, d.provider_id, d.recipient, d.category,
    d.attempts, d.attempt_count, d.reason,
    d.complained, d.requeued_at, d.created_at, d.updated_at
from flyball.delivery d
where not exists (select from flyball.job j where j.id = d.job_id);
comment on view flyball.notification is 'Every message with its state, account, attempts and reason; the recipient is masked.';

-- Every attempt that is kept, one row each.
create view flyball.delivery_attempt as
select d.job_id, d.channel, d.pool, d.provider, greatest(d.attempt_count - jsonb_array_length(d.attempts), 0) + e.n as attempt,
    (e.value ->> 'at')::timestamptz as at, e.value ->> 'account' as account, e.value ->> 'outcome' as outcome,
    e.value ->> 'status' as status, e.value ->> 'reason' as reason, (e.value ->> 'ms')::bigint as ms
from flyball.delivery d
cross join lateral jsonb_array_elements(d.attempts) with ordinality as e(value, n);
comment on view flyball.delivery_attempt is 'Every attempt at a message that is kept, one row each.';

-- === Permissions =================================================================================

revoke execute on function flyball.suppress_known, flyball.unsuppress_known, flyball.suppress, flyball.unsuppress, flyball.is_suppressed,
    flyball.dead_letter_messages, flyball.expire_notifications, flyball.requeue_unsent, flyball.record_requeued
from public;
