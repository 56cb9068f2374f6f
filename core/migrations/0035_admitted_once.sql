-- Chapter 35: every message of a tenant passes the limits: after a pause of its batch, and when it is sent
-- anew; and one whose deadline passes while it waits for them uses no slot.

-- === The lane of the admission ===================================================================

-- Lets messages of tenants wait for the limits of their tenants, whatever they took before; returns them
-- with the lanes in which they wait. Others are left out. The caller puts them there.
create function flyball.await_admission(jobs bigint[]) returns table (job_id bigint, lane_id bigint)
language plpgsql volatile set search_path = pg_catalog, pg_temp set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
#variable_conflict use_column
begin
    update flyball.job j
    set admission_lane = flyball.lane_of(flyball.admission_throttle(j.tenant), j.module)
    where j.id = any (jobs) and j.kind = 'notification' and j.tenant <> '' and j.admission_lane is null;
    -- One that had ended is pending once more. A row that is still there is written anew, so that a sweep
    -- that saw its message as ended does not delete it.
    with written as (
        insert into flyball.pending as p (tenant, job_id)
        select j.tenant, j.id
        from unnest(jobs) as a(id)
        cross join lateral (select o.id, o.tenant, o.admission_lane from flyball.job o where o.id = a.id limit 1) j
        where j.admission_lane is not null
        order by j.tenant, j.id
        on conflict on constraint pending_pkey do update set job_id = excluded.job_id
        returning p.tenant, p.xmax = 0 as is_new
    ),
    -- Under this lock nobody waits for the row of the count.
    miscounted as materialized (
        select w.tenant
        from (select distinct n.tenant from written n where n.is_new) w
        where pg_try_advisory_xact_lock(hashtextextended('flyball.pending_count ' || w.tenant, 0))
    )
    -- The count of the older messages lacks them, so the next message has all counted anew.
    update flyball.pending_count
    set counted_at = '-infinity'
    where ctid = any(array(
        select c.ctid from flyball.pending_count c where c.tenant in (select m.tenant from miscounted m) for update skip locked
    ));
    return query
    select j.id, j.admission_lane
    from unnest(jobs) as a(id)
    cross join lateral (select o.id, o.admission_lane from flyball.job o where o.id = a.id limit 1) j
    where j.admission_lane is not null;
end $$;

-- === Dead letters ================================================================================

-- As in 0021, but messages of tenants wait for the limits again; messages whose unique key, or whose dead
-- letter, an open transaction has locked are left as they are, and counted; and `max_jobs` is checked.
drop function flyball.requeue_unsent(text, int, text, text);
create function flyball.requeue_unsent(pool text, max_jobs integer default 1000, by text default null, why text default null,
    out examined bigint, out jobs bigint, out skipped bigint)
language plpgsql set enable_seqscan = off set enable_bitmapscan = off set jit = off as $$
#variable_conflict use_column
declare
    ids            bigint[];
    dead_ids       bigint[];
    keys           bigint[] := '{}';
    busy           bigint[];
    one            bigint;
    notified_lanes text;
    patience       constant text := current_setting('lock_timeout');
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
        perform set_config('lock_timeout', patience, true);
    exception when lock_not_available then
        foreach one in array dead_ids loop
            begin
                perform set_config('lock_timeout', '10ms', true);
                keys := keys || flyball.lock_unique_keys(array[one]);
                perform set_config('lock_timeout', patience, true);
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
        select w.job_id, coalesce(a.lane_id, w.lane_id) as lane_id, w.priority, w.cost from was_dead w left join waiting a on a.job_id = w.job_id
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
    where d.job_id = any(ids) and d.job_id <> all (busy) and d.unsent and d.updated_at < clock_timestamp() - interval '1 minute';
    if jobs > 0 then
        perform flyball.write_audit(null, flyball.audit_actor(requeue_unsent.by), 'dead.requeue', requeue_unsent.pool, null,
            jsonb_build_object('jobs', jobs, 'filter', jsonb_build_object('throttle', requeue_unsent.pool, 'unsent', true)),
            coalesce(nullif(requeue_unsent.why, ''), 'accounts are available again'));
        perform pg_notify('flyball', notified_lanes);
    end if;
end $$;
revoke execute on function flyball.requeue_unsent from public;
comment on function flyball.requeue_unsent is 'Requeues messages that died because no account was available.';

-- === Unique keys of batches ======================================================================

-- As in 0009, but no slot is used if a message beyond the slots has a unique key: the messages with slots
-- are enqueued before the others, and all keys are taken in one order and before the places in the queue.
create or replace function flyball.accept_batch(
    tenant text, module text, digest bytea, body bytea, has_key boolean, admitted int,
    pool text, priority int, run_at timestamptz, messages jsonb, is_urgent boolean,
    out answer text, out job_id bigint, out batch_id bigint, out used int, out jobs bigint[])
language plpgsql volatile as $$
#variable_conflict use_variable
declare
    size  constant int := jsonb_array_length(messages);
    batch flyball.batch;
begin
    select f.answer, f.job_id, f.batch_id into answer, job_id, batch_id
    from flyball.find_request(digest, body, has_key, true) f;
    if answer <> 'new' then
        return;
    end if;
    used := case when admitted > 0 and (is_urgent or not flyball.has_waiting(tenant, module)) then least(admitted, size) else 0 end;
    if used between 1 and size - 1 then
        select case when max(g.n) > used then 0 else used end into used
        from jsonb_array_elements(messages) with ordinality as g(message, n)
        where g.message ->> 'unique_key' is not null;
    end if;
    insert into flyball.batch as b (tenant, module, state, pool, priority, run_at, recipients, messages)
    values (tenant, module, case when size > 100 then 'expanding' else 'running' end, pool, priority, run_at, size,
        case when size > 100 then messages else '[]' end)
    returning b.* into batch;
    batch_id := batch.id;
    if size > 100 then
        used := 0;
        if tenant <> '' then
            perform flyball.record_pending('batch', tenant,
                array(select flyball.place_in_queue(batch.id, n) from generate_series(1, size) n), is_urgent);
        end if;
        perform flyball.enqueue_expansion(batch.id);
    else
        jobs := array(select e.job_id from flyball.enqueue_batch_messages(batch, messages, used) e);
        if used > 0 and tenant <> '' then
            perform flyball.record_module(tenant, module);
        end if;
    end if;
    if digest is not null and has_key then
        perform flyball.remember_request(digest, body, null, batch.id);
    end if;
end $$;

-- A pause and a cancellation wait for an expansion, which waits no longer than this for a key or a place
-- that an open transaction has.
alter function flyball.expand_batch set lock_timeout = '700ms';

-- === Pauses of batches ===========================================================================

alter table flyball.batch_message
    -- The time and the turn to which it goes back when its batch is resumed; the time is null unless it
    -- was put aside, and the turn unless it was scheduled then.
    add column resumes_at timestamptz,
    add column resumes_turn smallint;

update flyball.batch_message m
set resumes_at = now()
from flyball.batch b
where b.id = m.batch_id and b.state = 'paused'
    and exists (select from flyball.scheduled s where s.job_id = m.job_id and s.run_at > now() + interval '3000 days');

-- As in 0030, but what waits for a time is put aside as well, and what has not been tried comes back
-- before the limits of its tenant, where it uses no slot while it is put aside.
create or replace function flyball.pause_batch(tenant text, batch_id bigint, by text default null, why text default '') returns text
language plpgsql volatile set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
#variable_conflict use_variable
declare
    found_state text;
begin
    select b.state into found_state from flyball.batch b
    where b.id = batch_id and (pause_batch.tenant is null or b.tenant = pause_batch.tenant) for update;
    if found_state = 'paused' and pause_batch.tenant is null then
        update flyball.batch b set paused_by_operators = true where b.id = batch_id and not b.paused_by_operators;
        if found then
            perform flyball.write_audit(null, flyball.audit_actor(pause_batch.by), 'batch.pause', batch_id::text,
                jsonb_build_object('state', found_state), jsonb_build_object('state', found_state), pause_batch.why);
        end if;
    end if;
    if found_state is null or found_state not in ('expanding', 'running') then
        return found_state;
    end if;
    update flyball.batch b
    set state = 'paused', paused_by_operators = pause_batch.tenant is null, updated_at = now()
    where b.id = batch_id;
    with members as materialized (
        select j.* from flyball.batch_jobs(batch_id) j
    ),
    was_ready as (
        delete from flyball.ready
        where ctid = any(array(
            select r.tid
            from members j
            cross join lateral (
                select q.ctid as tid from flyball.ready q
                where q.lane_id in (j.lane_id, j.admission_lane) and q.priority = j.priority and q.job_id = j.job_id
                limit 1 for update skip locked
            ) r
        ))
        returning *
    ),
    was_scheduled as (
        delete from flyball.scheduled
        where ctid = any(array(
            select s.ctid from flyball.scheduled s where s.job_id = any(array(select j.job_id from members j)) order by s.job_id for update skip locked
        ))
        returning *
    ),
    removed as materialized (
        select r.job_id, r.lane_id, r.priority, r.attempt, r.cost, false as retry, r.holds_unique, now() as run_at, null::smallint as turn from was_ready r
        union all
        select s.job_id, s.lane_id, s.priority, s.attempt, s.cost, s.retry, s.holds_unique, s.run_at, s.turn from was_scheduled s
    ),
    waiting as materialized (
        select w.job_id, w.lane_id from flyball.await_admission(array(select t.job_id from removed t where t.attempt = 0 and not t.retry)) w
    ),
    noted as (
        update flyball.batch_message m set resumes_at = t.run_at, resumes_turn = t.turn from removed t where m.job_id = t.job_id
    )
    insert into flyball.scheduled (job_id, run_at, lane_id, priority, attempt, cost, retry, holds_unique)
    select t.job_id, now() + interval '3650 days', coalesce(w.lane_id, t.lane_id), t.priority, t.attempt, t.cost, t.retry, t.holds_unique
    from removed t
    left join waiting w on w.job_id = t.job_id;
    perform flyball.write_audit(null, flyball.audit_actor(pause_batch.by), 'batch.pause', batch_id::text,
        jsonb_build_object('state', found_state), jsonb_build_object('state', 'paused'), pause_batch.why);
    return 'paused';
end $$;

-- As in 0030, and what waited for a time when the batch was paused waits for it again.
create or replace function flyball.resume_batch(tenant text, batch_id bigint, by text default null, why text default '') returns text
language plpgsql volatile set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
#variable_conflict use_variable
declare
    found_state  text;
    remaining    int;
    by_operators boolean;
begin
    select b.state, jsonb_array_length(b.messages), b.paused_by_operators into found_state, remaining, by_operators
    from flyball.batch b
    where b.id = batch_id and (resume_batch.tenant is null or b.tenant = resume_batch.tenant) for update;
    if found_state is distinct from 'paused' or by_operators and resume_batch.tenant is not null then
        return found_state;
    end if;
    found_state := case when remaining > 0 then 'expanding' else 'running' end;
    update flyball.batch b set state = found_state, paused_by_operators = false, updated_at = now() where b.id = batch_id;
    -- Somebody may have given one of them another time.
    update flyball.scheduled s set run_at = greatest(m.resumes_at, now()), turn = coalesce(m.resumes_turn, s.turn)
    from flyball.batch_message m
    where m.batch_id = resume_batch.batch_id and m.resumes_at is not null and s.job_id = m.job_id
        and s.run_at > now() + interval '3000 days';
    update flyball.batch_message m set resumes_at = null, resumes_turn = null
    where m.batch_id = resume_batch.batch_id and m.resumes_at is not null;
    if remaining > 0 then
        perform flyball.enqueue_expansion(batch_id);
    end if;
    perform pg_notify('flyball_plan', '');
    perform flyball.write_audit(null, flyball.audit_actor(resume_batch.by), 'batch.resume', batch_id::text,
        jsonb_build_object('state', 'paused'), jsonb_build_object('state', found_state), resume_batch.why);
    return found_state;
end $$;

-- What keeps a message of a paused batch, as a sentence without its end; null for any other.
create function flyball.batch_pause(job_id bigint) returns text
language sql stable set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
    select format('its batch %s is paused by %s since %s', b.id, case when b.paused_by_operators then 'operators' else 'the tenant' end,
        flyball.time_text(date_trunc('second', b.updated_at)))
    from flyball.batch_message m
    join flyball.batch b on b.id = m.batch_id
    where m.job_id = batch_pause.job_id and b.state = 'paused'
$$;

-- === Deadlines of messages that wait for the limits ==============================================

-- One process at a time looks for them.
insert into flyball.mutex (name) values ('expire_waiting');

-- Makes messages of a pool dead that wait for the limits of their tenants and whose deadline has passed, at
-- most about max_jobs. Looks at the first messages of a bounded number of lanes: those that are next. While
-- `next` is not null there are more lanes: call again with `start` set to it.
create function flyball.expire_waiting(pool text, valid_for float8, max_jobs int default 1000, start text default null,
    out jobs bigint, out next text)
language plpgsql volatile set search_path = pg_catalog, pg_temp set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off as $$
#variable_conflict use_column
declare
    lane_rows  constant int := 500;
    lanes_left int := 200;
    rows_left  int := 5000;
    at_tenant  text := coalesce(start::jsonb ->> 0, '');
    at_key     text := start::jsonb ->> 1;
    lane       record;
    result     record;
begin
    jobs := 0;
    perform from flyball.mutex m where m.name = 'expire_waiting' for update skip locked;
    if not found then
        next := start;
        return;
    end if;
    loop
        if lanes_left = 0 or rows_left <= 0 or jobs >= max_jobs then
            next := jsonb_build_array(at_tenant, at_key)::text;
            return;
        end if;
        lanes_left := lanes_left - 1;
        select l.lane_id, l.key into lane
        from flyball.lane l
        where l.throttle = flyball.admission_throttle(at_tenant) and l.key >= coalesce(at_key, '') and l.key is distinct from at_key
        order by l.throttle, l.key
        limit 1;
        if not found then
            select p.tenant into at_tenant from flyball.pending p where p.tenant > at_tenant and p.tenant <> '' order by p.tenant limit 1;
            at_key := null;
            if not found then
                return;
            end if;
            continue;
        end if;
        at_key := lane.key;
        with walk as materialized (
            (select q.ctid as tid, true as is_ready, q.job_id from flyball.ready q
             where q.lane_id = lane.lane_id
             order by q.lane_id, q.priority, q.job_id
             limit lane_rows)
            union all
            -- The others are planned next, and end at the gate of their deadline.
            (select s.ctid, false, s.job_id from flyball.scheduled s
             where s.lane_id = lane.lane_id and s.turn >= 0
             order by s.lane_id, s.job_id
             limit lane_rows)
        ),
        overdue as materialized (
            select w.tid, w.is_ready, w.job_id, v.span
            from walk w
            cross join lateral (select * from flyball.job where job.id = w.job_id limit 1) j
            left join lateral (select d.requeued_at from flyball.delivery d where d.job_id = w.job_id limit 1) d on true
            cross join lateral (select flyball.valid_for(j.args, expire_waiting.valid_for) as span) v
            where j.kind = 'notification' and j.throttle = expire_waiting.pool
                and greatest(j.created_at, j.run_at, d.requeued_at, flyball.held_until_of(j.id, j.args)) + v.span <= now()
        ),
        was_ready as (
            delete from flyball.ready
            where ctid = any(array(
                select q.ctid from flyball.ready q where q.ctid = any(array(select o.tid from overdue o where o.is_ready)) for update skip locked))
            returning job_id, attempt, holds_unique
        ),
        was_scheduled as (
            delete from flyball.scheduled
            where ctid = any(array(
                select s.ctid from flyball.scheduled s where s.ctid = any(array(select o.tid from overdue o where not o.is_ready)) for update skip locked))
            returning job_id, attempt, holds_unique
        ),
        removed as materialized (
            select r.* from was_ready r union all select s.* from was_scheduled s
        )
        select (select count(*) from walk) as walked, array_agg(t.job_id order by t.job_id) as ids, array_agg(t.attempt order by t.job_id) as attempts,
            array_agg(o.span order by t.job_id) as spans, array_agg(t.job_id) filter (where t.holds_unique) as holders
        into result
        from removed t
        join overdue o on o.job_id = t.job_id;
        rows_left := rows_left - result.walked;
        if result.ids is not null then
            perform flyball.dead_letter_expired(result.ids, result.attempts, result.spans, result.holders);
            jobs := jobs + cardinality(result.ids);
        end if;
    end loop;
end $$;

-- Makes messages dead that were taken out of their queue, because their deadline passed before they were
-- sent.
create function flyball.dead_letter_expired(ids bigint[], attempts smallint[], spans interval[], holders bigint[]) returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
begin
    with expired as materialized (
        select g.job_id, g.attempt, j.lane_id, j.priority, j.cost, j.args, j.tenant, j.throttle,
            format('its deadline passed %s s after it was queued, before it was sent', floor(extract(epoch from g.span))::bigint) as error
        from unnest(ids, dead_letter_expired.attempts, spans) as g(job_id, attempt, span)
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
        (job_id, channel, pool, tenant, state, recipient_digest, recipient, category, attempts, attempt_count, last_outcome, reason)
    select e.job_id, coalesce(e.args ->> 'channel', ''), e.throttle, e.tenant, 'failed',
        flyball.recipient_digest(e.args ->> 'channel', e.args ->> 'to'),
        coalesce(flyball.mask_recipient(e.args ->> 'channel', e.args ->> 'to'), ''), coalesce(e.args ->> 'category', ''),
        jsonb_build_array(jsonb_build_object('at', to_char(now() at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'), 'account', null,
            'outcome', 'expired', 'status', '', 'reason', e.error, 'ms', 0)),
        1, 'expired', e.error
    from expired e
    order by e.job_id
    on conflict on constraint delivery_pkey do update
    set state = case when flyball.delivery_rank(d.state) < 2 then 'failed' else d.state end,
        attempts = flyball.append_attempts(d.attempts, excluded.attempts), attempt_count = d.attempt_count + 1, last_outcome = excluded.last_outcome,
        reason = excluded.reason, unsent = false, updated_at = clock_timestamp();
end $$;

-- === The queue of a tenant =======================================================================

-- As in 0024, but of a longer queue also the part behind the one that was looked at last: what ended there
-- would count until the oldest have ended.
create or replace function flyball.sweep_pending(tenant text, max_jobs int default 20000) returns bigint
language plpgsql volatile as $$
declare
    behind constant bigint := coalesce((select d.swept_to from flyball.tenant_drain d where d.tenant = sweep_pending.tenant), 0);
    swept  record;
    total  bigint;
begin
    swept := flyball.sweep_pending_behind(sweep_pending.tenant, 0, max_jobs);
    total := swept.removed;
    if swept.reached > 0 then
        swept := flyball.sweep_pending_behind(sweep_pending.tenant, greatest(swept.reached, behind), max_jobs);
        total := total + swept.removed;
    end if;
    return total;
end $$;

-- === Parts of functions ==========================================================================

-- Each is put into its function as it is, because nothing else of it changes.
do $$
declare
    change record;
    body   text;
begin
    for change in
        select *
        from (values
            -- Dead letters that are put back into the queue wait for the limits.
            ('flyball.retry',
                'select d.*, d.job_id = any(flyball.lock_unique_keys(array[d.job_id])) from was_dead d',
                'select coalesce((select w.lane_id from flyball.await_admission(array[d.job_id]) w), d.lane_id), d.priority, d.job_id, d.attempt, d.cost, '
                    || 'd.job_id = any(flyball.lock_unique_keys(array[d.job_id])) from was_dead d'),
            ('flyball.dead_walk',
                'requeued as (',
                E'waiting as materialized (\n        select w.job_id, w.lane_id from flyball.await_admission(array(select t.job_id from removed t where not discard)) w\n    ),\n    requeued as ('),
            ('flyball.dead_walk',
                'select t.lane_id, t.priority, t.job_id, case when keep_attempts',
                'select coalesce(w.lane_id, t.lane_id), t.priority, t.job_id, case when keep_attempts'),
            ('flyball.dead_walk',
                E'from removed t\n        where not discard\n        on conflict do nothing',
                E'from removed t\n        left join waiting w on w.job_id = t.job_id\n        where not discard\n        on conflict do nothing'),
            ('flyball.dead_walk',
                '(select left(string_agg(distinct t.lane_id::text, '',''), 7900) from removed t) as lanes',
                '(select left(string_agg(distinct coalesce(w.lane_id, t.lane_id)::text, '',''), 7900) from removed t left join waiting w on w.job_id = t.job_id) as lanes'),
            ('flyball.record_requeued',
                'exists (select from flyball.ready r where r.lane_id = g.lane_id and',
                'exists (select from flyball.ready r where r.lane_id in (g.lane_id, j.admission_lane) and'),
            ('flyball.record_requeued',
                'exists (select from flyball.ready h where h.lane_id = g.lane_id and',
                'exists (select from flyball.ready h where h.lane_id in (g.lane_id, (select o.admission_lane from flyball.job o where o.id = g.job_id)) and'),
            -- A message that was sent before, and holds a unique key, is none of the batch, also if it was sent alone.
            ('flyball.enqueue_batch_messages',
                'select m.job_id, batch.id from enqueued m on conflict do nothing',
                'select m.job_id, batch.id from enqueued m where not m.duplicate on conflict do nothing'),
            -- One branch more where the wait of a scheduled job is explained.
            ('flyball.why_job',
                E'    elsif state = ''running'' then\n        if exists (select from flyball.cancel c',
                E'        if job.kind = ''notification'' and flyball.batch_pause(job.id) is not null then\n'
                    || E'            reason := flyball.batch_pause(job.id);\n            until := null;\n        end if;\n'
                    || E'    elsif state = ''running'' then\n        if exists (select from flyball.cancel c')
        ) as c(name, was, becomes)
    loop
        body := pg_get_functiondef(change.name::regproc);
        if length(body) - length(replace(body, change.was, '')) <> length(change.was) then
            raise exception '% does not contain once: %', change.name, change.was;
        end if;
        execute replace(body, change.was, change.becomes);
    end loop;
end $$;

-- === Permissions =================================================================================

revoke execute on function flyball.await_admission, flyball.expire_waiting, flyball.dead_letter_expired, flyball.batch_pause from public;
