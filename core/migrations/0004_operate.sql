-- Chapter 4: operations on existing jobs. Functions on one job run with the rights of the schema's
-- owner, so a single grant gives a role one of them; functions on many jobs run with the caller's
-- rights. By default only the owner may call them.
--
-- A function that walks over many rows reads a bounded number of them and returns where to
-- continue, so no call holds locks for long and none becomes slower with the size of the queue.

-- A row means that everything is paused: no worker claims until it is deleted.
create table flyball.pause (
    one   boolean     primary key default true check (one),
    since timestamptz not null default now(),
    by    text        not null default '',
    why   text        not null default ''
);

-- The audit log.
create table flyball.audit (
    id      bigint      generated always as identity primary key,
    at      timestamptz not null default clock_timestamp(),
    actor   text        not null,
    action  text        not null,
    subject text        not null,
    before  jsonb,
    after   jsonb,
    why     text,
    -- The HTTP API's token, by its name in the settings, and its tenant; null for other entry
    -- points.
    token   text,
    tenant  text
);

-- Browser sessions that were ended before they expired. A session is a signed cookie without a row
-- of its own; the digest of a revoked one is kept here until it expires, so that every process
-- refuses it.
create table flyball.revoked_session (
    digest  text   primary key,
    until_s bigint not null
);

-- === Helpers =====================================================================================

-- The actor: the owner of the schema may name another one, as the server does; every other caller
-- is recorded under the name of its role. The server appends the token after a unit separator, and
-- its tenant after another.
create function flyball.audit_actor(by text) returns text
language sql stable
return left(case when flyball.caller() = current_user then coalesce(nullif(by, ''), flyball.caller()::text)
    else translate(flyball.caller()::text, chr(31), '') end, 400);

-- Refuses an argument.
create function flyball.refuse(what text, field text, message text) returns void
language plpgsql as $$
begin
    raise exception using
        errcode = '22023',
        column = field,
        message = format('%s: %s: %s', what, field, message),
        hint = 'Nothing was changed.';
end $$;

-- Writes one line of the audit log per operation, however many batches it takes: the numbers of a
-- later batch are added to it.
create function flyball.write_audit(operation bigint, actor text, action text, subject text, before jsonb, after jsonb, why text)
returns bigint
language plpgsql as $$
#variable_conflict use_column
declare
    actor_name   constant text := left(split_part(write_audit.actor, chr(31), 1), 200);
    actor_token  constant text := nullif(split_part(write_audit.actor, chr(31), 2), '');
    actor_tenant constant text := nullif(split_part(write_audit.actor, chr(31), 3), '');
    entry_id     bigint;
begin
    update flyball.audit a
    set after = (
        select jsonb_object_agg(n.key, case jsonb_typeof(n.value)
            when 'number' then to_jsonb((n.value)::numeric + coalesce((a.after -> n.key)::numeric, 0)) else n.value end)
        from jsonb_each(write_audit.after) n
    )
    where a.id = write_audit.operation and a.action = write_audit.action and a.actor = actor_name and a.token is not distinct from actor_token
        and a.tenant is not distinct from actor_tenant
    returning a.id into entry_id;
    if entry_id is null then
        insert into flyball.audit (actor, action, subject, before, after, why, token, tenant)
        values (actor_name, write_audit.action, write_audit.subject, write_audit.before, write_audit.after, left(coalesce(write_audit.why, ''), 1000), actor_token, actor_tenant)
        returning id into entry_id;
    end if;
    return entry_id;
end $$;

-- Returns what is wrong with the name of a lane, by the rules of enqueue; or nothing.
create function flyball.check_lane(what text, throttle text, key text) returns void
language plpgsql as $$
begin
    if check_lane.throttle is null or check_lane.throttle !~ '^[A-Za-z0-9._/:{}-]+$' or octet_length(check_lane.throttle) > 128 then
        perform flyball.refuse(what, 'throttle', format('%s is not a throttle''s name; use 1 to 128 letters, digits or any of . _ - / : { }',
            coalesce(to_json(left(check_lane.throttle, 64))::text, 'null')));
    elsif check_lane.key is null then
        perform flyball.refuse(what, 'key', 'must not be null; '''' is the lane of jobs without a key');
    elsif octet_length(check_lane.key) > 512 then
        perform flyball.refuse(what, 'key', format('is %s bytes long; at most 512 are allowed', octet_length(check_lane.key)));
    end if;
end $$;

-- === One job =====================================================================================

-- An operation for a tenant reaches the jobs of that tenant; those of others are not found, as if
-- they did not exist. Without a tenant it reaches all jobs.
create function flyball.is_of_tenant(job_id bigint, tenant text) returns boolean
language sql stable
return is_of_tenant.tenant is null
    or exists (select from flyball.job j where j.id = is_of_tenant.job_id and j.tenant = is_of_tenant.tenant);

-- The state of a job; null if there is no such job. A job is in one table at a time, and in none
-- once it has ended.
create function flyball.job_state(job_id bigint) returns text
language sql stable security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
    select case
        when exists (select from flyball.lease l where l.job_id = j.id) then 'running'
        when exists (select from flyball.ready r where r.lane_id in (j.lane_id, j.admission_lane) and r.priority = j.priority and r.job_id = j.id) then 'ready'
        when exists (select from flyball.scheduled s where s.job_id = j.id and s.retry) then 'retryable'
        when exists (select from flyball.scheduled s where s.job_id = j.id) then 'scheduled'
        when exists (select from flyball.dead d where d.job_id = j.id) then 'dead'
        when (select a.outcome from flyball.attempt a where a.job_id = j.id order by a.finished_at desc limit 1)
            in ('cancelled', 'dropped') then 'cancelled'
        else 'completed' end
    from flyball.job j
    where j.id = job_state.job_id
$$;

-- Cancels a waiting job at once and asks a running one to stop. Returns 'cancelled', 'requested',
-- 'already completed' (or cancelled, or dead), or 'not found'.
create function flyball.cancel(job_id bigint, by text default null, why text default '', tenant text default null) returns text
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
#variable_conflict use_column
declare
    result record;
    state  text;
begin
    if not flyball.is_of_tenant(cancel.job_id, cancel.tenant) then
        return 'not found';
    end if;
    -- A job may be claimed or come back between two looks, so look again before reporting that it
    -- ended.
    for i in 1..20 loop
        with target as (
            select j.id, j.lane_id, j.admission_lane, j.priority from flyball.job j where j.id = cancel.job_id
        ),
        was_ready as (
            -- By values and not by a join, which the planner may reverse if it believes that
            -- nothing waits.
            delete from flyball.ready r
            where r.lane_id in ((select n.lane_id from target n), (select n.admission_lane from target n))
                and r.priority = (select n.priority from target n)
                and r.job_id = cancel.job_id
            returning r.job_id, r.attempt
        ),
        was_scheduled as (
            delete from flyball.scheduled s where s.job_id = cancel.job_id
            returning s.job_id, s.attempt
        ),
        waiting as (
            select * from was_ready union all select * from was_scheduled
        ),
        history as (
            insert into flyball.attempt (job_id, attempt, outcome)
            select w.job_id, w.attempt, 'cancelled' from waiting w
        ),
        released_keys as (
            -- A key that a producer holds at this moment passes to its job; waiting for it here
            -- could deadlock.
            delete from flyball.unique_holder
            where digest = any(array(
                select u.digest from flyball.unique_holder u
                where u.expires_at is null and u.job_id = any(array(select w.job_id from waiting w))
                for update skip locked
            ))
        ),
        cancel_requests as (
            insert into flyball.cancel (job_id)
            select l.job_id from flyball.lease l where l.job_id = cancel.job_id
            on conflict on constraint cancel_pkey do update set requested_at = flyball.cancel.requested_at
            returning flyball.cancel.job_id
        )
        select exists (select from target) as found, exists (select from waiting) as cancelled, exists (select from cancel_requests) as requested
        into result;

        if result.cancelled or result.requested then
            perform flyball.write_audit(null, flyball.audit_actor(by), 'job.cancel', cancel.job_id::text, null,
                jsonb_build_object('state', case when result.cancelled then 'cancelled' else 'asked to stop' end), why);
            return case when result.cancelled then 'cancelled' else 'requested' end;
        elsif not result.found then
            return 'not found';
        end if;
        state := flyball.job_state(cancel.job_id);
        if state in ('completed', 'cancelled', 'dead') then
            return 'already ' || state;
        end if;
    end loop;
    raise exception using errcode = '40001', message = format('cancel: job %s moves faster than it can be caught; try again', job_id);
end $$;

-- Takes the unique keys of dead jobs that are requeued, as far as they are free, and returns the
-- jobs whose keys other jobs hold until they end. If several jobs have one key, the newest gets it.
-- A key with a duration of its own (unique_for) neither ends nor restarts with its job.
create function flyball.lock_unique_keys(jobs bigint[]) returns bigint[]
language plpgsql volatile set enable_seqscan = off as $$
declare
    ids     bigint[];
    digests bytea[];
begin
    select array_agg(w.id order by w.digest), array_agg(w.digest order by w.digest) into ids, digests
    from (
        select distinct on (j.unique_key) j.id, j.unique_key as digest
        from unnest(jobs) as d(id)
        cross join lateral (select * from flyball.job where job.id = d.id limit 1) j
        where j.unique_key is not null and j.unique_until is null
        order by j.unique_key, j.id desc
    ) w;
    if ids is null then
        return '{}';
    end if;
    delete from flyball.unique_holder
    where digest = any(array(
        select u.digest from flyball.unique_holder u where u.digest = any(digests) and u.expires_at <= now() for update skip locked
    ));
    -- Like a second producer, this waits for a first one that has not committed; in the order in
    -- which every transaction takes many keys.
    insert into flyball.unique_holder (digest, job_id) select unnest(digests), unnest(ids) on conflict do nothing;
    return array(select u.job_id from flyball.unique_holder u where u.digest = any(digests) and u.job_id = any(ids) and u.expires_at is null);
end $$;

-- Makes a dead, retryable or scheduled job ready now. A dead one starts over with all its attempts
-- unless they are kept, and takes its unique key again; if another job holds the key, it becomes
-- ready without it. Returns 'ready', 'already ready' (or completed, or cancelled), 'still running',
-- or 'not found'.
create function flyball.retry(job_id bigint, keep_attempts boolean default false, by text default null, why text default '', tenant text default null)
returns text
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
#variable_conflict use_column
declare
    lane  bigint;
    state text;
begin
    if not flyball.is_of_tenant(retry.job_id, retry.tenant) then
        return 'not found';
    end if;
    for i in 1..20 loop
        with was_dead as (
            delete from flyball.dead d where d.job_id = retry.job_id
            returning d.lane_id, d.priority, d.job_id, case when coalesce(keep_attempts, false) then d.attempt else 0 end as attempt, d.cost
        ),
        was_scheduled as (
            delete from flyball.scheduled s where s.job_id = retry.job_id
            returning s.lane_id, s.priority, s.job_id, s.attempt, s.cost, s.holds_unique
        ),
        requeued as (
            insert into flyball.ready (lane_id, priority, job_id, attempt, cost, holds_unique)
            select d.*, d.job_id = any(flyball.lock_unique_keys(array[d.job_id])) from was_dead d
            union all
            select * from was_scheduled
            on conflict do nothing
            returning flyball.ready.lane_id
        )
        select a.lane_id into lane from requeued a;

        if lane is not null then
            perform flyball.write_audit(null, flyball.audit_actor(by), 'job.retry', retry.job_id::text, null, null, why);
            perform pg_notify('flyball', lane::text);
            return 'ready';
        end if;
        state := flyball.job_state(retry.job_id);
        if state is null then
            return 'not found';
        elsif state = 'running' then
            return 'still running';
        elsif state in ('ready', 'completed', 'cancelled') then
            return 'already ' || state;
        end if;
    end loop;
    raise exception using errcode = '40001', message = format('retry: job %s moves faster than it can be caught; try again', job_id);
end $$;

-- Moves a waiting job to a time. Returns 'scheduled', 'still running', 'already completed' (or
-- cancelled, or dead), or 'not found'.
create function flyball.reschedule(job_id bigint, run_at timestamptz, by text default null, why text default '', tenant text default null) returns text
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
#variable_conflict use_column
declare
    moved boolean;
    state text;
begin
    if reschedule.run_at is null or reschedule.run_at < timestamptz '1970-01-01 00:00:00Z' or reschedule.run_at > now() + interval '3660 days' then
        perform flyball.refuse('reschedule', 'run_at',
            format('is %s; allowed are times from 1970 (at once) to ten years from now', coalesce(reschedule.run_at::text, 'null')));
    end if;
    if not flyball.is_of_tenant(reschedule.job_id, reschedule.tenant) then
        return 'not found';
    end if;
    for i in 1..20 loop
        with target as (
            select j.id, j.lane_id, j.admission_lane, j.priority from flyball.job j where j.id = reschedule.job_id
        ),
        was_ready as (
            delete from flyball.ready r
            where r.lane_id in ((select n.lane_id from target n), (select n.admission_lane from target n))
                and r.priority = (select n.priority from target n)
                and r.job_id = reschedule.job_id
            returning r.job_id, r.lane_id, r.priority, r.attempt, r.cost, r.holds_unique
        ),
        postponed as (
            insert into flyball.scheduled (job_id, run_at, lane_id, priority, attempt, cost, retry, holds_unique)
            select w.job_id, reschedule.run_at, w.lane_id, w.priority, w.attempt, w.cost, false, w.holds_unique from was_ready w
            on conflict do nothing
            returning flyball.scheduled.job_id
        ),
        rescheduled as (
            update flyball.scheduled s set run_at = reschedule.run_at, retry = false where s.job_id = reschedule.job_id
            returning s.job_id
        )
        select exists (select from postponed) or exists (select from rescheduled) into moved;

        if moved then
            perform flyball.write_audit(null, flyball.audit_actor(by), 'job.reschedule', reschedule.job_id::text, null,
                jsonb_build_object('run_at', reschedule.run_at), why);
            return 'scheduled';
        end if;
        state := flyball.job_state(reschedule.job_id);
        if state is null then
            return 'not found';
        elsif state = 'running' then
            return 'still running';
        elsif state in ('completed', 'cancelled', 'dead') then
            return 'already ' || state;
        end if;
    end loop;
    raise exception using errcode = '40001', message = format('reschedule: job %s moves faster than it can be caught; try again', job_id);
end $$;

-- Discards a dead job: it ends as cancelled. Returns 'cancelled', 'already completed' (or
-- cancelled), 'still running' (or ready, scheduled, retryable), or 'not found'.
create function flyball.discard(job_id bigint, by text default null, why text default '', tenant text default null) returns text
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
#variable_conflict use_column
declare
    discarded boolean;
    state     text;
begin
    if not flyball.is_of_tenant(discard.job_id, discard.tenant) then
        return 'not found';
    end if;
    for i in 1..20 loop
        with was_dead as (
            delete from flyball.dead d where d.job_id = discard.job_id
            returning d.job_id, d.attempt
        ),
        history as (
            insert into flyball.attempt (job_id, attempt, outcome)
            select w.job_id, w.attempt, 'cancelled' from was_dead w
        )
        select exists (select from was_dead) into discarded;

        if discarded then
            perform flyball.write_audit(null, flyball.audit_actor(by), 'job.discard', discard.job_id::text, null, null, why);
            return 'cancelled';
        end if;
        state := flyball.job_state(discard.job_id);
        if state is null then
            return 'not found';
        elsif state in ('completed', 'cancelled') then
            return 'already ' || state;
        elsif state <> 'dead' then
            return 'still ' || state;
        end if;
    end loop;
    raise exception using errcode = '40001', message = format('discard: job %s moves faster than it can be caught; try again', job_id);
end $$;

-- === Many jobs ===================================================================================

-- Validates the arguments of a walk.
create function flyball.check_walk(what text, max_jobs int, start text, shape text, low timestamptz, high timestamptz, low_name text, high_name text)
returns void
language plpgsql as $$
begin
    if max_jobs is null or max_jobs not between 1 and 10000 then
        perform flyball.refuse(what, 'max_jobs', format('is %s; allowed are 1 to 10000: call again for more', coalesce(max_jobs::text, 'null')));
    elsif start !~ shape then
        perform flyball.refuse(what, 'start', format('%s is not a place to go on from; give what "next" answered, or null to begin',
            to_json(left(start, 60))));
    elsif split_part(start, '/', 2) ~ '^-?[0-9]+$'
        and split_part(start, '/', 2)::numeric not between -9223372036854775808 and 9223372036854775807 then
        perform flyball.refuse(what, 'start', format('%s names no lane; give what "next" answered, or null to begin', to_json(left(start, 60))));
    elsif low >= high then
        perform flyball.refuse(what, low_name, format('is %s, which is not before %s, %s', low, high_name, high));
    end if;
end $$;

-- The walk of cancel_jobs and purge_lane: ready jobs in the order of their lanes, then scheduled
-- ones, then running ones. The walked rows are materialized in the order of an index, and a lateral
-- with a limit runs once per row in that order: so `matched` stops at its limit without sorting,
-- and its last row is where the next call continues.
create function flyball.cancel_walk(
    what text, action text, subject text, kind text, throttle text, key text, states text[],
    created_after timestamptz, created_before timestamptz, max_jobs int, dry_run boolean, start text, by text, why text, tenant text,
    out cancelled bigint, out requested bigint, out next text)
language plpgsql volatile set enable_seqscan = off set jit = off as $$
#variable_conflict use_column
declare
    -- Rows read per call, so that a call ends within a fraction of a second with any filter.
    walk_rows   constant bigint := 10000;
    shape       constant text := case when cancel_walk.tenant is not null then '^(jobs/[0-9]{1,18})(#[0-9]{1,18})?$' else
        '^((ready/-?[0-9]{1,19}/[0-9]/[0-9]{1,18})|(scheduled/-?[0-9]{1,19}/[0-9]{1,18})|(running/[0-9]{1,18}))(#[0-9]{1,18})?$' end;
    lane_low    bigint := -9223372036854775808;
    lane_high   bigint := 9223372036854775807;
    id_low      bigint := 0;
    id_high     bigint := 9007199254740992;
    by_job      boolean;
    phase       text := 'ready';
    part        text[];
    at_lane     bigint;
    at_priority smallint := -1;
    at_id       bigint := 0;
    operation   bigint;
    rows_left   bigint := walk_rows;
    jobs_left   bigint := max_jobs;
    result      record;
begin
    perform flyball.check_walk(what, max_jobs, start, shape, created_after, created_before, 'created_after', 'created_before');
    cancelled := 0;
    requested := 0;
    if throttle is not null and key is not null then
        lane_low := flyball.lane_of(throttle, key);
        lane_high := lane_low;
    end if;
    by_job := kind is not null or created_after is not null or created_before is not null or (throttle is null) <> (key is null);
    -- An id begins with its day.
    if created_after > timestamptz '2020-01-01 00:00:00Z' then
        id_low := least(flyball.day_of(least(created_after, timestamptz '2100-01-01 00:00:00Z')), 32000) << 38;
    end if;
    if created_before < timestamptz '2100-01-01 00:00:00Z' then
        id_high := (greatest(flyball.day_of(greatest(created_before, timestamptz '2020-01-01 00:00:00Z')), 0) + 1) << 38;
    end if;
    at_lane := lane_low;
    if start is not null then
        operation := nullif(split_part(start, '#', 2), '')::bigint;
        part := string_to_array(split_part(start, '#', 1), '/');
        phase := part[1];
        at_id := part[array_length(part, 1)]::bigint;
        if phase in ('ready', 'scheduled') then
            at_lane := part[2]::bigint;
        end if;
        if phase = 'ready' then
            at_priority := part[3]::smallint;
        end if;
        -- The position may come from another walk: if it is before the named lane, the walk begins
        -- at that lane.
        if at_lane < lane_low then
            at_lane := lane_low;
            at_priority := -1;
            at_id := 0;
        end if;
    end if;

    if cancel_walk.tenant is not null then
        phase := 'jobs';
    end if;

    loop
        exit when phase is null or rows_left <= 0 or jobs_left <= 0;
        if phase = 'jobs' then
            -- A tenant's jobs in any state by their ids: the position tells nothing about the jobs
            -- of others.
            with walk as materialized (
                select j.id, j.lane_id, j.admission_lane, j.priority, j.kind, j.throttle, j.key, j.created_at
                from flyball.job j
                where j.tenant = cancel_walk.tenant and j.tenant <> '' and j.id > at_id and j.id >= id_low and j.id < id_high
                order by j.id
                limit rows_left
            ),
            matched as materialized (
                select w.id, r.tid as ready_at, s.job_id as scheduled, l.job_id as running
                from walk w
                left join lateral (
                    select q.ctid as tid from flyball.ready q
                    where q.lane_id in (w.lane_id, w.admission_lane) and q.priority = w.priority and q.job_id = w.id limit 1
                ) r on true
                left join lateral (select h.job_id, h.retry from flyball.scheduled h where h.job_id = w.id limit 1) s on true
                left join lateral (select h.job_id from flyball.lease h where h.job_id = w.id limit 1) l on true
                where (r.tid is not null and 'ready' = any(states)
                        or s.job_id is not null and case when s.retry then 'retryable' else 'scheduled' end = any(states)
                        or l.job_id is not null and 'running' = any(states))
                    and (cancel_walk.kind is null or w.kind = cancel_walk.kind)
                    and (w.lane_id between lane_low and lane_high
                            and (cancel_walk.throttle is null or w.throttle = cancel_walk.throttle)
                            and (cancel_walk.key is null or w.key = cancel_walk.key)
                        or w.admission_lane = flyball.lane_of(cancel_walk.throttle, cancel_walk.key))
                    and (created_after is null or w.created_at >= created_after)
                    and (created_before is null or w.created_at < created_before)
                limit jobs_left
            ),
            was_ready as (
                delete from flyball.ready r
                where not dry_run and r.ctid = any(array(select m.ready_at from matched m where m.ready_at is not null))
                returning r.job_id, r.attempt, r.holds_unique
            ),
            was_scheduled as (
                delete from flyball.scheduled s
                where not dry_run and s.job_id = any(array(select m.scheduled from matched m))
                returning s.job_id, s.attempt, s.holds_unique
            ),
            removed as (
                select * from was_ready union all select * from was_scheduled
            ),
            history as (
                insert into flyball.attempt (job_id, attempt, outcome)
                select t.job_id, t.attempt, 'cancelled' from removed t
            ),
            released_keys as (
                delete from flyball.unique_holder
                where digest = any(array(
                    select u.digest from flyball.unique_holder u
                    where u.job_id = any(array(select t.job_id from removed t where t.holds_unique)) and u.expires_at is null
                    for update skip locked
                ))
            ),
            cancel_requests as (
                insert into flyball.cancel (job_id)
                select m.running from matched m where not dry_run and m.running is not null
                on conflict on constraint cancel_pkey do nothing
            )
            select (select count(*) from walk) as walked, (select count(*) from matched) as matched, (select count(*) from removed) as removed,
                (select count(*) from matched m where m.running is not null) as requested,
                case when (select count(*) from matched) = jobs_left then (select max(m.id) from matched m)
                    else (select max(w.id) from walk w) end as job_id
            into result;
            cancelled := cancelled + case when dry_run then result.matched - result.requested else result.removed end;
            requested := requested + result.requested;
        elsif phase = 'ready' and 'ready' = any(states) then
            with walk as materialized (
                select r.ctid as tid, r.lane_id, r.priority, r.job_id, row_number() over () as place
                from (
                    select q.ctid, q.lane_id, q.priority, q.job_id
                    from flyball.ready q
                    where (q.lane_id, q.priority, q.job_id) > (at_lane, at_priority, at_id)
                        and q.lane_id >= lane_low and q.lane_id <= lane_high
                    order by q.lane_id, q.priority, q.job_id
                    limit rows_left
                ) r
            ),
            matched as materialized (
                select w.*
                from walk w
                left join lateral (
                    select j.kind, j.throttle, j.key, j.created_at from flyball.job j where by_job and j.id = w.job_id limit 1
                ) j on true
                where w.job_id >= id_low and w.job_id < id_high
                    and (not by_job or ((cancel_walk.kind is null or j.kind = cancel_walk.kind)
                        and (cancel_walk.throttle is null or j.throttle = cancel_walk.throttle)
                        and (cancel_walk.key is null or j.key = cancel_walk.key)
                        and (created_after is null or j.created_at >= created_after)
                        and (created_before is null or j.created_at < created_before)))
                limit jobs_left
            ),
            removed as (
                delete from flyball.ready r
                where not dry_run and r.ctid = any(array(select m.tid from matched m))
                returning r.job_id, r.attempt, r.holds_unique
            ),
            history as (
                insert into flyball.attempt (job_id, attempt, outcome)
                select t.job_id, t.attempt, 'cancelled' from removed t
            ),
            released_keys as (
                delete from flyball.unique_holder
                where digest = any(array(
                    select u.digest from flyball.unique_holder u
                    where u.job_id = any(array(select t.job_id from removed t where t.holds_unique)) and u.expires_at is null
                    for update skip locked
                ))
            )
            select (select count(*) from walk) as walked, (select count(*) from matched) as matched, (select count(*) from removed) as removed,
                last.lane_id, last.priority, last.job_id
            from (select 1) one
            left join lateral (
                select w.lane_id, w.priority, w.job_id from walk w
                where w.place <= case when (select count(*) from matched) = jobs_left then (select max(m.place) from matched m) else rows_left end
                order by w.place desc limit 1
            ) last on true
            into result;
            cancelled := cancelled + case when dry_run then result.matched else result.removed end;
            at_lane := result.lane_id;
            at_priority := result.priority;
        elsif phase = 'scheduled' and states && array['scheduled', 'retryable'] then
            with walk as materialized (
                select s.lane_id, s.job_id, s.retry, row_number() over () as place
                from (
                    select q.lane_id, q.job_id, q.retry
                    from flyball.scheduled q
                    where (q.lane_id, q.job_id) > (at_lane, at_id)
                        and q.lane_id >= lane_low and q.lane_id <= lane_high
                    order by q.lane_id, q.job_id
                    limit rows_left
                ) s
            ),
            matched as materialized (
                select w.*
                from walk w
                left join lateral (
                    select j.kind, j.throttle, j.key, j.created_at from flyball.job j where by_job and j.id = w.job_id limit 1
                ) j on true
                where w.job_id >= id_low and w.job_id < id_high and case when w.retry then 'retryable' else 'scheduled' end = any(states)
                    and (not by_job or ((cancel_walk.kind is null or j.kind = cancel_walk.kind)
                        and (cancel_walk.throttle is null or j.throttle = cancel_walk.throttle)
                        and (cancel_walk.key is null or j.key = cancel_walk.key)
                        and (created_after is null or j.created_at >= created_after)
                        and (created_before is null or j.created_at < created_before)))
                limit jobs_left
            ),
            removed as (
                delete from flyball.scheduled s
                where not dry_run and s.job_id = any(array(select m.job_id from matched m))
                returning s.job_id, s.attempt, s.holds_unique
            ),
            history as (
                insert into flyball.attempt (job_id, attempt, outcome)
                select t.job_id, t.attempt, 'cancelled' from removed t
            ),
            released_keys as (
                delete from flyball.unique_holder
                where digest = any(array(
                    select u.digest from flyball.unique_holder u
                    where u.job_id = any(array(select t.job_id from removed t where t.holds_unique)) and u.expires_at is null
                    for update skip locked
                ))
            )
            select (select count(*) from walk) as walked, (select count(*) from matched) as matched, (select count(*) from removed) as removed,
                last.lane_id, 0::smallint as priority, last.job_id
            from (select 1) one
            left join lateral (
                select w.lane_id, w.job_id from walk w
                where w.place <= case when (select count(*) from matched) = jobs_left then (select max(m.place) from matched m) else rows_left end
                order by w.place desc limit 1
            ) last on true
            into result;
            cancelled := cancelled + case when dry_run then result.matched else result.removed end;
            at_lane := result.lane_id;
        elsif phase = 'running' and 'running' = any(states) then
            with walk as materialized (
                select l.job_id, l.lane_id
                from flyball.lease l
                where l.job_id > at_id
                order by l.job_id
                limit rows_left
            ),
            matched as materialized (
                select w.*
                from walk w
                left join lateral (
                    select j.kind, j.throttle, j.key, j.created_at from flyball.job j where by_job and j.id = w.job_id limit 1
                ) j on true
                where w.job_id >= id_low and w.job_id < id_high and w.lane_id between lane_low and lane_high
                    and (not by_job or ((cancel_walk.kind is null or j.kind = cancel_walk.kind)
                        and (cancel_walk.throttle is null or j.throttle = cancel_walk.throttle)
                        and (cancel_walk.key is null or j.key = cancel_walk.key)
                        and (created_after is null or j.created_at >= created_after)
                        and (created_before is null or j.created_at < created_before)))
                limit jobs_left
            ),
            cancel_requests as (
                insert into flyball.cancel (job_id)
                select m.job_id from matched m where not dry_run
                on conflict on constraint cancel_pkey do nothing
            )
            select (select count(*) from walk) as walked, (select count(*) from matched) as matched, 0::bigint as removed,
                0::bigint as lane_id, 0::smallint as priority,
                case when (select count(*) from matched) = jobs_left then (select max(m.job_id) from matched m)
                    else (select max(w.job_id) from walk w) end as job_id
            into result;
            requested := requested + result.matched;
        else
            select 0::bigint as walked, 0::bigint as matched, 0::bigint as removed, null::bigint as lane_id, null::smallint as priority,
                null::bigint as job_id into result;
        end if;

        if result.walked < rows_left and result.matched < jobs_left then
            phase := case phase when 'ready' then 'scheduled' when 'scheduled' then 'running' end;
            at_lane := lane_low;
            at_id := 0;
        else
            at_id := result.job_id;
        end if;
        rows_left := rows_left - result.walked;
        jobs_left := jobs_left - result.matched;
    end loop;

    if not dry_run and cancelled + requested > 0 then
        operation := flyball.write_audit(operation, flyball.audit_actor(by), action, subject, null,
            jsonb_build_object('cancelled', cancelled, 'requested', requested, 'filter', jsonb_strip_nulls(jsonb_build_object(
                'kind', kind, 'throttle', throttle, 'key', key, 'states', to_jsonb(states), 'created_after', created_after,
                'created_before', created_before))), why);
    end if;
    next := case phase
        when 'ready' then format('ready/%s/%s/%s', at_lane, at_priority, at_id)
        when 'scheduled' then format('scheduled/%s/%s', at_lane, at_id)
        when 'running' then format('running/%s', at_id)
        when 'jobs' then format('jobs/%s', at_id) end || coalesce('#' || operation, '');
end $$;

-- Cancels up to max_jobs jobs that match the filter: waiting ones at once, running ones are asked
-- to stop. While `next` is not null there may be more: call again with `start` set to it. With
-- dry_run nothing changes and the numbers say what would change.
create function flyball.cancel_jobs(
    kind text default null, throttle text default null, key text default null, state text default null,
    created_after timestamptz default null, created_before timestamptz default null,
    max_jobs int default 1000, dry_run boolean default false, start text default null, by text default null, why text default '',
    tenant text default null,
    out cancelled bigint, out requested bigint, out next text)
language plpgsql volatile as $$
declare
    known constant text[] := array['ready', 'scheduled', 'retryable', 'running'];
begin
    if coalesce(kind, throttle, key, state, created_after::text, created_before::text) is null then
        perform flyball.refuse('cancel_jobs', 'state',
            'is missing, as is every other filter; name at least one of kind, throttle, key, state, created_after, created_before');
    elsif state <> all(known) then
        perform flyball.refuse('cancel_jobs', 'state', format('%s is not a state that can be cancelled; allowed are %s',
            to_json(left(state, 40)), array_to_string(known, ', ')));
    end if;
    select w.cancelled, w.requested, w.next into cancel_jobs.cancelled, cancel_jobs.requested, cancel_jobs.next
    from flyball.cancel_walk('cancel_jobs', 'jobs.cancel', coalesce(throttle || coalesce('/' || nullif(key, ''), ''), kind, 'jobs'), kind, throttle, key,
        case when state is null then known else array[state] end, created_after, created_before, max_jobs, coalesce(dry_run, false),
        start, by, why, cancel_jobs.tenant) w;
end $$;

-- Cancels up to max_jobs waiting jobs of one lane, the oldest first; running ones continue. While
-- `next` is not null there may be more.
create function flyball.purge_lane(
    throttle text, key text, max_jobs int default 10000, dry_run boolean default false, start text default null,
    by text default null, why text default '', tenant text default null,
    out cancelled bigint, out next text)
language plpgsql volatile as $$
begin
    perform flyball.check_lane('purge_lane', throttle, key);
    select w.cancelled, w.next into purge_lane.cancelled, purge_lane.next
    from flyball.cancel_walk('purge_lane', 'lane.purge', throttle || coalesce('/' || nullif(key, ''), ''), null, throttle, key,
        array['ready', 'scheduled', 'retryable'], null, null, max_jobs, coalesce(dry_run, false), start, by, why, purge_lane.tenant) w;
end $$;

-- The walk of requeue_dead and discard_dead, the oldest job first.
create function flyball.dead_walk(
    what text, action text, discard boolean, kind text, throttle text, key text, error_like text,
    died_after timestamptz, died_before timestamptz, keep_attempts boolean, max_jobs int, dry_run boolean, start text, by text, why text,
    tenant text,
    out jobs bigint, out next text)
language plpgsql volatile set enable_seqscan = off set jit = off as $$
#variable_conflict use_column
declare
    walk_rows constant bigint := 10000;
    lane      bigint;
    by_job    boolean;
    at_id     bigint := 0;
    operation bigint;
    result    record;
begin
    perform flyball.check_walk(what, max_jobs, start, '^dead/[0-9]{1,18}(#[0-9]{1,18})?$', died_after, died_before, 'died_after', 'died_before');
    if octet_length(error_like) > 500 or length(error_like) - length(replace(error_like, '%', '')) > 5 then
        perform flyball.refuse(what, 'error_like', 'is too long or has more than five %; allowed are patterns of LIKE up to 500 bytes with up to five %');
    elsif error_like ~ '(^|[^\\])(\\\\)*\\$' then
        perform flyball.refuse(what, 'error_like', 'ends with a lone backslash; write \\ for a backslash itself');
    elsif coalesce(kind, throttle, key, error_like, died_after::text, died_before::text) is null then
        perform flyball.refuse(what, 'error_like', 'is missing, as is every other filter; name at least one of kind, throttle, key, '
            'error_like, died_after, died_before; ''%'' names every error');
    end if;
    if throttle is not null and key is not null then
        lane := flyball.lane_of(throttle, key);
    end if;
    by_job := kind is not null or (throttle is null) <> (key is null);
    if start is not null then
        operation := nullif(split_part(start, '#', 2), '')::bigint;
        at_id := split_part(split_part(start, '#', 1), '/', 2)::bigint;
    end if;

    -- All dead jobs, or those of a tenant among its jobs: the position tells nothing about the jobs
    -- of others.
    with walk as materialized (
        (select d.job_id, d.lane_id, d.died_at, d.error
         from flyball.dead d
         where dead_walk.tenant is null and d.job_id > at_id
         order by d.job_id
         limit walk_rows)
        union all
        (select j.id, d.lane_id, d.died_at, d.error
         from (
             select o.id from flyball.job o
             where o.tenant = dead_walk.tenant and o.tenant <> '' and o.id > at_id
             order by o.id
             limit walk_rows
         ) j
         left join lateral (select h.lane_id, h.died_at, h.error from flyball.dead h where h.job_id = j.id limit 1) d on true)
    ),
    matched as materialized (
        select w.job_id
        from walk w
        left join lateral (
            select j.kind, j.throttle, j.key from flyball.job j where by_job and j.id = w.job_id limit 1
        ) j on true
        where w.lane_id is not null and (lane is null or w.lane_id = lane)
            and (died_after is null or w.died_at >= died_after) and (died_before is null or w.died_at < died_before)
            and (error_like is null or coalesce(w.error, '') like error_like)
            and (not by_job or ((dead_walk.kind is null or j.kind = dead_walk.kind)
                and (dead_walk.throttle is null or j.throttle = dead_walk.throttle)
                and (dead_walk.key is null or j.key = dead_walk.key)))
        limit max_jobs
    ),
    removed as (
        delete from flyball.dead d
        where not dry_run and d.job_id = any(array(select m.job_id from matched m))
        returning d.*
    ),
    held as materialized (
        select unnest(flyball.lock_unique_keys(array(select t.job_id from removed t))) as job_id
    ),
    requeued as (
        insert into flyball.ready (lane_id, priority, job_id, attempt, cost, holds_unique)
        select t.lane_id, t.priority, t.job_id, case when keep_attempts then t.attempt else 0 end, t.cost,
            t.job_id in (select h.job_id from held h)
        from removed t
        where not discard
        on conflict do nothing
    ),
    history as (
        insert into flyball.attempt (job_id, attempt, outcome)
        select t.job_id, t.attempt, 'cancelled' from removed t where discard
    )
    select (select count(*) from walk) as walked, (select count(*) from matched) as matched, (select count(*) from removed) as removed,
        (select max(w.job_id) from walk w) as walked_to, (select max(m.job_id) from matched m) as matched_to,
        (select left(string_agg(distinct t.lane_id::text, ','), 7900) from removed t) as lanes
    into result;

    jobs := case when dry_run then result.matched else result.removed end;
    if not dry_run and jobs > 0 then
        operation := flyball.write_audit(operation, flyball.audit_actor(by), action,
            coalesce(throttle || coalesce('/' || nullif(key, ''), ''), kind, 'dead letters'), null,
            jsonb_build_object('jobs', jobs, 'filter', jsonb_strip_nulls(jsonb_build_object('kind', kind, 'throttle', throttle, 'key', key,
                'error_like', error_like, 'died_after', died_after, 'died_before', died_before,
                'keep_attempts', case when not discard then keep_attempts end))), why);
        if not discard then
            -- At most as many lanes as a notification can carry; the next sweep finds the others.
            perform pg_notify('flyball', result.lanes);
        end if;
    end if;
    next := case when result.matched = max_jobs then 'dead/' || result.matched_to
        when result.walked = walk_rows then 'dead/' || result.walked_to end || coalesce('#' || operation, '');
end $$;

-- Makes up to max_jobs dead jobs ready again, each with its unique key if the key is free.
-- error_like is a pattern of LIKE: 'timeout%' begins with, '%timeout%' contains.
create function flyball.requeue_dead(
    kind text default null, throttle text default null, key text default null, error_like text default null,
    max_jobs int default 1000, died_after timestamptz default null, died_before timestamptz default null,
    keep_attempts boolean default false, dry_run boolean default false, start text default null,
    by text default null, why text default '', tenant text default null,
    out jobs bigint, out next text)
language sql volatile as $$
    select w.jobs, w.next
    from flyball.dead_walk('requeue_dead', 'dead.requeue', false, kind, throttle, key, error_like, died_after, died_before,
        coalesce(keep_attempts, false), max_jobs, coalesce(dry_run, false), start, by, why, tenant) w
$$;

-- Discards up to max_jobs dead jobs; they end as cancelled.
create function flyball.discard_dead(
    kind text default null, throttle text default null, key text default null, error_like text default null,
    max_jobs int default 1000, died_after timestamptz default null, died_before timestamptz default null,
    dry_run boolean default false, start text default null, by text default null, why text default '', tenant text default null,
    out jobs bigint, out next text)
language sql volatile as $$
    select w.jobs, w.next
    from flyball.dead_walk('discard_dead', 'dead.discard', true, kind, throttle, key, error_like, died_after, died_before,
        false, max_jobs, coalesce(dry_run, false), start, by, why, tenant) w
$$;

-- === Pause of everything =========================================================================

-- Stops all claiming until resume_all; running jobs continue. False if everything is paused
-- already; that pause is kept.
create function flyball.pause_all(why text default '', by text default null) returns boolean
language plpgsql volatile as $$
begin
    insert into flyball.pause (by, why)
    values (left(split_part(flyball.audit_actor(pause_all.by), chr(31), 1), 200), left(coalesce(pause_all.why, ''), 1000)) on conflict do nothing;
    if not found then
        return false;
    end if;
    perform flyball.write_audit(null, flyball.audit_actor(pause_all.by), 'all.pause', 'everything', null, null, pause_all.why);
    return true;
end $$;

-- Ends the pause of everything. False if there is none.
create function flyball.resume_all(why text default '', by text default null) returns boolean
language plpgsql volatile as $$
declare
    ended jsonb;
begin
    delete from flyball.pause p returning jsonb_build_object('since', p.since, 'by', p.by, 'why', p.why) into ended;
    if ended is null then
        return false;
    end if;
    perform flyball.write_audit(null, flyball.audit_actor(resume_all.by), 'all.resume', 'everything', ended, null, resume_all.why);
    perform pg_notify('flyball', '');
    return true;
end $$;

-- === Lanes =======================================================================================

-- Sets a lane's share relative to the other lanes of its throttle. Returns the previous weight.
create function flyball.set_weight(throttle text, key text, weight float8, by text default null, why text default '') returns float8
language plpgsql volatile as $$
#variable_conflict use_column
declare
    previous_weight float8;
begin
    perform flyball.check_lane('set_weight', set_weight.throttle, set_weight.key);
    if set_weight.weight is null or set_weight.weight = 'NaN'::float8 or set_weight.weight < 0.001 or set_weight.weight > 1000 then
        perform flyball.refuse('set_weight', 'weight', format('is %s; allowed are 0.001 to 1000, and 1 is the weight of a lane that has none',
            coalesce(set_weight.weight::text, 'null')));
    end if;
    select l.weight into previous_weight
    from flyball.lane l
    where l.lane_id = flyball.lane_of(set_weight.throttle, set_weight.key)
    for update;
    insert into flyball.lane as l (lane_id, throttle, key, weight)
    values (flyball.lane_of(set_weight.throttle, set_weight.key), set_weight.throttle, set_weight.key, set_weight.weight)
    on conflict on constraint lane_pkey do update set weight = excluded.weight;
    perform flyball.write_audit(null, flyball.audit_actor(set_weight.by), 'lane.weight', throttle || coalesce('/' || nullif(key, ''), ''),
        jsonb_build_object('weight', coalesce(previous_weight, 1)), jsonb_build_object('weight', set_weight.weight), set_weight.why);
    return coalesce(previous_weight, 1);
end $$;

-- === Search by time ==============================================================================

-- The first id of the day of `at` whose job was enqueued after `at`, found by bisection; the end of
-- the day if there is none.
create function flyball.id_at(at timestamptz) returns bigint
language plpgsql stable set enable_seqscan = off as $$
#variable_conflict use_column
declare
    day    bigint := flyball.day_of(at);
    low    bigint;
    high   bigint := (day + 1) << 38;
    middle bigint;
    result record;
begin
    select j.id into low from flyball.job j where j.id >= day << 38 and j.id < high order by j.id limit 1;
    if low is null then
        return high;
    end if;
    select j.id + 1 into high from flyball.job j where j.id >= low and j.id < high order by j.id desc limit 1;
    while low < high loop
        middle := low + (high - low) / 2;
        select j.id, j.created_at into result from flyball.job j where j.id >= middle and j.id < high order by j.id limit 1;
        if result.id is null or result.created_at > at then
            high := middle;
        else
            low := result.id + 1;
        end if;
    end loop;
    return low;
end $$;

-- === Permissions =================================================================================

revoke execute on function flyball.audit_actor, flyball.refuse, flyball.write_audit, flyball.check_lane, flyball.check_walk, flyball.job_state,
    flyball.is_of_tenant,
    flyball.cancel, flyball.lock_unique_keys, flyball.retry, flyball.reschedule, flyball.discard, flyball.cancel_walk, flyball.cancel_jobs,
    flyball.purge_lane, flyball.dead_walk, flyball.requeue_dead, flyball.discard_dead, flyball.pause_all, flyball.resume_all,
    flyball.set_weight, flyball.id_at
from public;

comment on function flyball.job_state is 'The state of a job: scheduled, ready, running, retryable, completed, cancelled or dead; null if there is no such job.';
comment on function flyball.cancel is 'Cancels a waiting job at once and asks a running one to stop.';
comment on function flyball.retry is 'Makes a dead, retryable or scheduled job ready now.';
comment on function flyball.reschedule is 'Moves a waiting job to a time.';
comment on function flyball.discard is 'Discards a dead job.';
comment on function flyball.cancel_jobs is 'Cancels up to max_jobs jobs that match a filter; call again with start => next for more.';
comment on function flyball.purge_lane is 'Cancels up to max_jobs waiting jobs of one lane; call again for more.';
comment on function flyball.requeue_dead is 'Makes up to max_jobs dead jobs that match a filter ready again; call again with start => next for more.';
comment on function flyball.discard_dead is 'Discards up to max_jobs dead jobs that match a filter.';
comment on function flyball.pause_all is 'Stops all claiming until flyball.resume_all().';
comment on function flyball.resume_all is 'Ends the pause of everything.';
comment on function flyball.set_weight is 'Sets a lane''s share relative to the other lanes of its throttle.';
