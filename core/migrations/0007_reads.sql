-- Chapter 7: reads for programs that speak SQL: a job with what the API shows of it, its attempts,
-- its result, why it waits, jobs by a filter, failures, the audit log, workers, kinds and
-- suppressions; and the search of the API.
--
-- They run with the rights of the schema's owner, so a single grant gives a role one of them, and
-- they confine a role with a tenant to that tenant. They cannot tell the things that Redis knows,
-- such as tokens and pauses of a throttle.

-- === Helpers =====================================================================================

-- The tenant whose jobs a caller reads; null for all. A role with a tenant reads its own and may
-- not name another; other callers read those of the tenant that they name, an operator without one
-- those of the tenant that it acts for.
create function flyball.read_tenant(what text, tenant text) returns text
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set standard_conforming_strings = on as $$
declare
    own text;
begin
    if flyball.is_operator() then
        return coalesce(read_tenant.tenant, nullif(current_setting('flyball.tenant', true), ''));
    end if;
    own := (flyball.role_tenant()).tenant;
    if own is null then
        return read_tenant.tenant;
    elsif read_tenant.tenant <> own then
        raise exception using errcode = '42501', column = 'tenant',
            message = format('%s: tenant: %s is not the tenant of role %s; it reads those of %s', what,
                to_json(left(read_tenant.tenant, 80)), to_json(flyball.caller()), to_json(own));
    end if;
    return own;
end $$;

-- Refuses a caller that is bound to a tenant: what it reads or changes concerns all of them.
create function flyball.check_reads_all(what text) returns void
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set standard_conforming_strings = on as $$
begin
    if flyball.bound_tenant() is not null then
        raise exception using errcode = '42501',
            message = format('%s: concerns all tenants, and role %s is bound to one', what, to_json(flyball.caller()));
    end if;
end $$;

-- Refuses a number of rows that a list does not return.
create function flyball.check_most(what text, most int) returns void
language plpgsql as $$
begin
    if most is null or most not between 1 and 1000 then
        perform flyball.refuse(what, 'most', format('is %s; allowed are 1 to 1000', coalesce(most::text, 'null')));
    end if;
end $$;

-- === One job =====================================================================================

-- The reason for which a job waits for others: it names one of them and its state, in the words of
-- GET /api/v1/jobs/{id}. A dead letter comes first, because nothing goes on until a person requeues
-- or discards it. A job that is gone counts as cancelled.
create function flyball.why_after(job_id bigint) returns text
language sql stable as $$
    select case when w.state = 'dead' then format('it waits for job %s, which is dead: requeue it, or discard it', w.after_id)
            else format('it waits for the end of job %s, which is %s', w.after_id, w.state) end
        || case when w.others > 0 then format(', and for %s more', w.others) else '' end
    from (
        select o.after_id, coalesce(flyball.job_state(o.after_id), 'cancelled') as state, count(*) over () - 1 as others
        from flyball.job_after o
        where o.job_id = why_after.job_id
    ) w
    order by w.state <> 'dead', w.after_id
    limit 1
$$;

-- The reason for which no live worker runs jobs of a throttle and a kind; null if one does. The
-- rest that a job needs besides, such as a channel, is known to programs only.
create function flyball.unserved_reason(throttle text, kind text) returns text
language plpgsql stable as $$
#variable_conflict use_variable
declare
    live   bigint;
    serves bigint;
    runs   bigint;
    runnable bigint;
begin
    select count(*), count(*) filter (where w.of_throttle), count(*) filter (where w.of_kind),
        count(*) filter (where w.of_throttle and w.of_kind)
    into live, serves, runs, runnable
    from (
        select kind = any(o.kinds) as of_kind, cardinality(o.throttles) = 0 or exists (
            select from unnest(o.throttles) p(pattern)
            where case when right(p.pattern, 1) = '*' then starts_with(throttle, left(p.pattern, -1)) else throttle = p.pattern end
        ) as of_throttle
        from flyball.worker o
        where o.stopped_at is null and o.heartbeat_at + o.ttl >= clock_timestamp() and o.role <> 'remote'
    ) w;
    return case
        when runnable > 0 then null
        when live = 0 then 'no worker is live; start one'
        when serves = 0
            then format('no live worker serves the throttle %s; start one without --throttles, or with a pattern that stands for it', throttle)
        when runs = 0 then format('no live worker serves the kind %s; start a worker that does', kind)
        else format('no live worker serves the kind %s, the throttle %s together', kind, throttle) end;
end $$;

-- The reason for which a job does not run yet and the end of its wait, as {"reason", "until"}; null
-- if it does not wait, or if there is no such job. Tokens, pauses of keys and throttles, and limits
-- of concurrency are in Redis: a job that is ready may wait for any of them.
create function flyball.why_job(job_id bigint, tenant text default null) returns jsonb
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off
set standard_conforming_strings = on set jit = off as $$
#variable_conflict use_column
declare
    reads    constant text := flyball.read_tenant('why_job', why_job.tenant);
    job      flyball.job;
    due      record;
    everything flyball.pause;
    state    text;
    reason   text;
    until    timestamptz;
begin
    select * into job from flyball.job j where j.id = why_job.job_id and (reads is null or j.tenant = reads);
    if not found then
        return null;
    end if;
    state := flyball.job_state(why_job.job_id);
    if state in ('scheduled', 'retryable') then
        select s.run_at, s.attempt, s.turn into due from flyball.scheduled s where s.job_id = why_job.job_id;
        until := case when due.turn >= -4 or due.run_at > now() then due.run_at end;
        reason := case when due.turn < -4 then coalesce(flyball.why_after(job.id), 'it runs after other jobs, which have not ended')
            when state = 'scheduled' then 'it is scheduled for a later time'
            else format('attempt %s of %s failed%s and the next is due later', due.attempt, job.max_attempts, coalesce(' (' || (
                select flyball.first_line(a.error) from flyball.attempt a where a.job_id = why_job.job_id
                order by a.finished_at desc limit 1
            ) || ')', '')) end;
        if job.kind = 'notification' and flyball.batch_pause(job.id) is not null then
            reason := flyball.batch_pause(job.id);
            until := null;
        end if;
    elsif state = 'running' then
        if exists (select from flyball.cancel c where c.job_id = why_job.job_id) then
            reason := 'its cancellation was requested; its handler has not stopped yet';
        end if;
    elsif state = 'ready' then
        select * into everything from flyball.pause;
        if found then
            reason := case when reads is not null then 'everything is paused'
                else format('everything has been paused since %s by %s%s',
                    flyball.time_text(date_trunc('second', everything.since)), everything."by",
                    coalesce(': ' || nullif(flyball.first_line(everything.why), ''), '')) end;
        else
            reason := flyball.unserved_reason(job.throttle, job.kind);
        end if;
        if reason is null and job.admission_lane is not null
            and exists (select from flyball.ready r where r.lane_id = job.admission_lane and r.priority = job.priority
                and r.job_id = job.id)
        then
            reason := format('it waits for the limits of tenant %s and its module', job.tenant);
        end if;
        reason := coalesce(reason, format('it waits for tokens of throttle %s or for a free slot of a worker; Redis knows which: '
            || 'GET /api/v1/jobs/%s and flyball why --job %s tell it', job.throttle, job.id, job.id));
    end if;
    return case when reason is not null then jsonb_build_object('reason', reason, 'until', flyball.time_text(until)) end;
end $$;
comment on function flyball.why_job is 'The reason for which a job does not run yet, as far as Postgres knows it.';

-- Finished attempts of a job, newest first.
create function flyball.list_attempts(job_id bigint, before timestamptz default null, most int default 100, tenant text default null)
returns table (attempt int, outcome text, worker text, started_at timestamptz, finished_at timestamptz, error text)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off
set standard_conforming_strings = on set jit = off as $$
#variable_conflict use_column
declare
    reads constant text := flyball.read_tenant('list_attempts', list_attempts.tenant);
begin
    perform flyball.check_most('list_attempts', most);
    return query
        select a.attempt::int, a.outcome::text, w.name, a.started_at, a.finished_at, a.error
        from flyball.attempt a
        left join flyball.worker w on w.id = a.worker_id
        where a.job_id = list_attempts.job_id and (list_attempts.before is null or a.finished_at < list_attempts.before)
            and (reads is null or exists (select from flyball.job j where j.id = list_attempts.job_id and j.tenant = reads))
        order by a.finished_at desc
        limit most;
end $$;
comment on function flyball.list_attempts is 'Finished attempts of a job, newest first.';

-- The result of a completed job, as long as it is kept; null for none.
create function flyball.job_result(job_id bigint, tenant text default null) returns jsonb
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set standard_conforming_strings = on as $$
#variable_conflict use_column
declare
    reads constant text := flyball.read_tenant('job_result', job_result.tenant);
begin
    return (
        select o.result from flyball.result o
        where o.job_id = job_result.job_id and o.kept_until > now()
            and (reads is null or exists (select from flyball.job j where j.id = o.job_id and j.tenant = reads)));
end $$;
comment on function flyball.job_result is 'The result of a completed job, as long as it is kept.';

-- A job with all that the API shows of it, under the same names; null if there is no such job.
-- `waiting` says no more than flyball.why_job.
create function flyball.show_job(job_id bigint, tenant text default null) returns jsonb
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off
set standard_conforming_strings = on set jit = off as $$
#variable_conflict use_column
declare
    reads constant text := flyball.read_tenant('show_job', show_job.tenant);
    shown jsonb;
begin
    select jsonb_build_object('id', j.id, 'kind', j.kind, 'throttle', j.throttle, 'key', j.key, 'tenant', j.tenant,
            'state', flyball.job_state(j.id), 'priority', j.priority,
            'attempt', coalesce(l.attempt, r.attempt, s.attempt, d.attempt, a.attempt, 0), 'max_attempts', j.max_attempts, 'cost', j.cost,
            'created_at', flyball.time_text(j.created_at),
            'due_at', flyball.time_text(case when s.turn >= -4 or s.run_at > now() then s.run_at end),
            'ended_at', flyball.time_text(case when l.job_id is null and r.job_id is null and s.job_id is null
                then coalesce(d.died_at, a.finished_at) end),
            'last_error', coalesce(d.error, a.error), 'group', j.group_id, 'tags', coalesce(to_jsonb(j.tags), '[]'),
            'args', flyball.shown_args(j.kind, j.args), 'unique', j.unique_key is not null)
        || jsonb_build_object('worker', w.name, 'heartbeat_at', flyball.time_text(w.heartbeat_at),
            'heartbeat_age_s', extract(epoch from clock_timestamp() - w.heartbeat_at), 'started_at', flyball.time_text(l.claimed_at),
            'timeout_s', j.timeout_s, 'traceparent', j.traceparent,
            'cancelling', l.job_id is not null and exists (select from flyball.cancel x where x.job_id = j.id offset 0),
            'progress', (
                select jsonb_build_object('done', c.done, 'total', c.total,
                    'percent', case when c.total > 0 then least(c.done::float8 / c.total * 100, 100) end, 'note', c.note,
                    'at', flyball.time_text(c.updated_at))
                from flyball.checkpoint c where c.job_id = j.id),
            'after', coalesce(to_jsonb(j.after), '[]'), 'after_failure', j.after_failure, 'waits_for', coalesce(case when s.turn < -4 then (
                select jsonb_agg(jsonb_build_object('id', o.after_id, 'state', coalesce(flyball.job_state(o.after_id), 'cancelled'))
                    order by o.after_id)
                from flyball.job_after o where o.job_id = j.id) end, '[]'),
            'on_complete', j.on_complete, 'on_dead', j.on_dead, 'webhook_secret', j.webhook_secret, 'retry', j.retry,
            'result', flyball.job_result(j.id, reads))
    into shown
    from flyball.job j
    left join lateral (select * from flyball.lease h where h.job_id = j.id limit 1) l on true
    left join lateral (
        select * from flyball.ready h
        where h.lane_id in (j.lane_id, j.admission_lane) and h.priority = j.priority and h.job_id = j.id limit 1
    ) r on true
    left join lateral (select * from flyball.scheduled h where h.job_id = j.id limit 1) s on true
    left join lateral (select * from flyball.dead h where h.job_id = j.id limit 1) d on true
    left join flyball.worker w on w.id = l.worker_id
    left join lateral (
        select t.attempt, t.error, t.finished_at from flyball.attempt t where t.job_id = j.id order by t.finished_at desc limit 1
    ) a on true
    where j.id = show_job.job_id and (reads is null or j.tenant = reads);
    return shown || jsonb_build_object('waiting', flyball.why_job(show_job.job_id, reads), 'attempts', (
        select coalesce(jsonb_agg(jsonb_build_object('attempt', a.attempt, 'outcome', a.outcome, 'worker', a.worker,
            'started_at', flyball.time_text(a.started_at), 'finished_at', flyball.time_text(a.finished_at), 'error', a.error)
            order by a.finished_at), '[]')
        from flyball.list_attempts(show_job.job_id, null, 100, reads) a));
end $$;
comment on function flyball.show_job is 'A job with all that the API shows of it.';

-- === Search ======================================================================================

-- The index that finds jobs with a value of the filter, if there is one that is complete.
create function flyball.index_for(search flyball.job_search) returns flyball.job_index
language sql stable
begin atomic
    select i
    from flyball.job_index i
    join pg_catalog.pg_class c on c.relname = i.name and c.relnamespace = 'flyball'::regnamespace
    join pg_catalog.pg_index x on x.indexrelid = c.oid and x.indisvalid
    where case when i.path is null then (search).trace is not null
        else jsonb_typeof((search).args #> i.path) in ('string', 'number', 'boolean', 'null') end
    order by i.path is null desc, i.created_at
    limit 1;
end;

-- The first id of the day of `at` whose job was enqueued after `at`, found by bisection; the end of
-- the day if there is none.
create function flyball.id_at(at timestamptz) returns bigint
language plpgsql stable set enable_seqscan = off set search_path = pg_catalog, pg_temp set jit = off as $$
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

-- The first id whose job may have been enqueued at `after`, and an id behind the last that was
-- enqueued before `before`. An id begins with the day of the enqueueing transaction, and within a
-- day ids ascend with the time at which they were drawn, which may be later than the beginning of
-- the transaction: the range leaves an hour for that.
create function flyball.id_range(after timestamptz, before timestamptz, out low bigint, out high bigint)
language sql stable
return (
    case when after is null or after < timestamptz '2020-01-02 00:00:00Z' then 0
        when after > timestamptz '2100-01-01 00:00:00Z' then 9007199254740992
        else greatest(flyball.day_of(after) << 38, flyball.id_at(after - interval '1 hour')) end,
    case when before is null or before > timestamptz '2100-01-01 00:00:00Z' then 9223372036854775807
        when before < timestamptz '2020-01-02 00:00:00Z' then 0
        else least((flyball.day_of(before) + 1) << 38, flyball.id_at(before + interval '1 hour')) end
);

-- Returns true if so few jobs of a day have all these tags that reading all of them takes little:
-- by the statistics, in which a frequent tag has its share; a day without any, or without its part
-- of the index of tags, is as large as its file.
create function flyball.are_rare(tags text[], day bigint) returns boolean
language sql stable
begin atomic
    select case
        when s.most_common_elems is null or not exists (
            select from pg_catalog.pg_index x join pg_catalog.pg_inherits h on h.inhrelid = x.indexrelid
            where x.indrelid = c.oid and h.inhparent = 'flyball.job_tags'::regclass
        ) then pg_catalog.pg_relation_size(c.oid) < 16 * 1024 * 1024
        else coalesce((
            select min(coalesce(s.most_common_elem_freqs[array_position(s.most_common_elems::text::text[], t.tag)], 0))
            from unnest(are_rare.tags) as t(tag)
        ), 0) * (1 - s.null_frac) * c.reltuples < 10000 end
    from pg_catalog.pg_class c
    left join pg_catalog.pg_stats s on s.schemaname = 'flyball' and s.tablename = c.relname and s.attname = 'tags'
    where c.relnamespace = 'flyball'::regnamespace and c.relname = 'job_' || are_rare.day;
end;

-- The newest jobs of a range of ids that have tags, by the index of tags, of which only a bitmap
-- can be made: all with the tags are read.
create function flyball.tagged(filter flyball.job_filter, lane bigint, low bigint, high bigint, most int) returns bigint[]
language plpgsql stable
set enable_seqscan = off set enable_indexscan = off set enable_bitmapscan = on set jit = off set plan_cache_mode = force_generic_plan
set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    tags constant text[] := (filter.search).tags;
begin
    return array(
        select j.id
        from flyball.job j
        where j.tags @> tags and j.tags is not null and j.id >= low and j.id < high
            and flyball.fits_filter(filter, lane, j.kind, j.throttle, j.key, j.admission_lane, j.tenant, j.created_at,
                j.group_id, j.traceparent, j.unique_key, j.args, j.tags)
        order by j.id desc
        limit most
    );
end $$;

-- A page of jobs, newest first: a walk from the newest to the oldest that reads a bounded number of
-- rows at a time.
--
-- No index serves every filter, and one that did would not be worth its cost on the path of
-- enqueue. A page is therefore found by walking back over the rows that can hold it: the small
-- table of a rare state, the index prefix of a lane, the jobs of a tenant or a group, those with
-- the value of an added index, or the jobs themselves. A walk ends when the page is full or after
-- 25 ms; then the page may be short, or empty, and `next` says where to go on. Null means that no
-- older job matches.
--
-- Steps over arguments begin small and grow while they are fast, because one job may have 256 KiB
-- of them; so do those over unique keys, of which each job may take a thousand digests.
create function flyball.find_jobs(filter flyball.job_filter, before bigint, max_jobs int, out jobs flyball.listed_job[], out next bigint)
language plpgsql volatile
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
set plan_cache_mode = force_generic_plan set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    probes_max constant int := 1000;
    walk_time  constant interval := '25 ms';
    search     constant flyball.job_search := filter.search;
    state      constant text := case when cardinality(filter.states) = 1 then filter.states[1] end;
    lane       constant bigint := flyball.lane_of(filter.throttle, filter.key);
    is_expensive constant boolean := flyball.is_expensive(search);
    error_like constant text := search.error_like;
    begun      constant timestamptz := clock_timestamp();
    source     text;
    added      flyball.job_index;
    lookup     text;
    wanted     bigint;
    low        bigint;
    high       bigint;
    rows_max   int := 10000;
    rows       int;
    step_begun timestamptz;
    walked     bigint;
    walked_to  bigint;
    hits       bigint[];
    listed     flyball.listed_job[];
    is_first   boolean := true;
    day_low    bigint;
    first_day  bigint;
begin
    jobs := '{}';
    select r.low, least(r.high, coalesce(before, 9223372036854775807)) into low, high
    from flyball.id_range(filter.created_after, filter.created_before) r;
    -- An added index has the jobs of all tenants side by side, and its positions would reveal them.
    if filter.tenant is null and (search.args is not null or search.trace is not null) then
        added := flyball.index_for(search);
    end if;
    if filter.tenant is not null and search."group" is not null
        and exists (select from flyball.job_group g where g.id = search."group" and g.tenant <> filter.tenant)
    then
        return;
    end if;
    source := case
        when added.name is not null then 'index'
        when search."group" is not null then 'group'
        when filter.tenant <> '' then 'tenant'
        when state = 'ready' and lane is not null then 'lane'
        when state in ('running', 'dead') then state
        when state in ('scheduled', 'retryable') then 'scheduled'
        else 'job' end;
    if source in ('lane', 'running', 'dead', 'scheduled') then
        rows_max := probes_max;
    end if;
    if source = 'index' then
        -- The expressions are those of the index, so they are part of the text. A range instead of
        -- an equality leaves the planner no other index that has the order.
        wanted := case when added.path is null then 0 else jsonb_hash_extended(search.args #> added.path, 0) end;
        lookup := case when added.path is null
            then $q$select j.id, j as job from flyball.job j
                where substr(j.traceparent, 4, 32) >= $1 and (substr(j.traceparent, 4, 32), j.id) < ($1, $3) and j.id >= $4
                order by substr(j.traceparent, 4, 32) desc, j.id desc limit $5$q$
            else format($q$select j.id, j as job from flyball.job j
                where jsonb_hash_extended(j.args #> %1$L::text[], 0) >= $2
                    and (jsonb_hash_extended(j.args #> %1$L::text[], 0), j.id) < ($2, $3) and j.id >= $4
                order by jsonb_hash_extended(j.args #> %1$L::text[], 0) desc, j.id desc limit $5$q$, added.path) end;
        lookup := format('
            select count(*), min(w.id), array_agg(w.id order by w.id desc) filter (where
                flyball.fits_filter($6, $7, (w.job).kind, (w.job).throttle, (w.job).key, (w.job).admission_lane, (w.job).tenant,
                    (w.job).created_at, (w.job).group_id, (w.job).traceparent, (w.job).unique_key, (w.job).args, (w.job).tags))
            from (%s) w', lookup);
    end if;
    -- Small steps come first, because most pages are full after one of them.
    rows := case when is_expensive then 50 else least(greatest(max_jobs * 4, 400), rows_max) end;
    if search is null and coalesce(filter.kind, filter.throttle, filter.key, filter.states::text, filter.created_after::text,
        filter.created_before::text) is null
    then
        rows := max_jobs;
    end if;
    loop
        step_begun := clock_timestamp();
        -- A tag that the newest jobs do not have is looked up, a day at a time.
        if source in ('job', 'tenant') and search.tags is not null and not is_first and flyball.are_rare(search.tags, (high - 1) >> 38) then
            first_day := coalesce(first_day, (
                select min(substr(c.relname, 5)::bigint) from pg_catalog.pg_inherits i join pg_catalog.pg_class c on c.oid = i.inhrelid
                where i.inhparent = 'flyball.job'::regclass));
            day_low := greatest(low, ((high - 1) >> 38) << 38);
            hits := flyball.tagged(filter, lane, day_low, high, probes_max + 1);
            walked := case when day_low > greatest(low, first_day << 38) then rows else 0 end;
            walked_to := day_low;
        elsif source = 'job' then
            select count(*), min(w.id), array_agg(w.id order by w.id desc) filter (where w.hit) into walked, walked_to, hits
            from (
                select j.id, flyball.fits_filter(filter, lane, j.kind, j.throttle, j.key, j.admission_lane, j.tenant, j.created_at,
                    j.group_id, j.traceparent, j.unique_key, j.args, j.tags) as hit
                from flyball.job j
                where j.id < high and j.id >= low
                order by j.id desc
                limit rows
            ) w;
        elsif source = 'tenant' then
            -- The positions are jobs of the tenant, so they reveal nothing about those of others.
            select count(*), min(w.id), array_agg(w.id order by w.id desc) filter (where w.hit) into walked, walked_to, hits
            from (
                select j.id, flyball.fits_filter(filter, lane, j.kind, j.throttle, j.key, j.admission_lane, j.tenant, j.created_at,
                    j.group_id, j.traceparent, j.unique_key, j.args, j.tags) as hit
                from flyball.job j
                where j.tenant = filter.tenant and j.tenant <> '' and j.id < high and j.id >= low
                order by j.id desc
                limit rows
            ) w;
        elsif source = 'group' then
            select count(*), min(w.id), array_agg(w.id order by w.id desc) filter (where w.hit) into walked, walked_to, hits
            from (
                select j.id, flyball.fits_filter(filter, lane, j.kind, j.throttle, j.key, j.admission_lane, j.tenant, j.created_at,
                    j.group_id, j.traceparent, j.unique_key, j.args, j.tags) as hit
                from flyball.job j
                where j.group_id = search."group" and j.id < high and j.id >= low
                order by j.id desc
                limit rows
            ) w;
        elsif source = 'index' then
            execute lookup into walked, walked_to, hits using search.trace, wanted, high, low, rows, filter, lane;
        else
            -- The rows of a state's own table, each with its job.
            select count(*), min(w.job_id), array_agg(w.job_id order by w.job_id desc) filter (where w.hit) into walked, walked_to, hits
            from (
                select h.job_id, flyball.fits_filter(filter, lane, j.kind, j.throttle, j.key, j.admission_lane, j.tenant, j.created_at,
                    j.group_id, j.traceparent, j.unique_key, j.args, j.tags) as hit
                from (
                    (select l.job_id from flyball.lease l
                     where source = 'running' and l.job_id < high and l.job_id >= low order by l.job_id desc limit rows)
                    union all
                    (select s.job_id from flyball.scheduled s
                     where source = 'scheduled' and s.job_id < high and s.job_id >= low order by s.job_id desc limit rows)
                    union all
                    (select d.job_id from flyball.dead d
                     where source = 'dead' and d.job_id < high and d.job_id >= low order by d.job_id desc limit rows)
                    union all
                    (select r.job_id
                     from generate_series(0, 3) p
                     cross join lateral (
                         select q.job_id
                         from flyball.ready q
                         where source = 'lane' and q.lane_id = lane and q.priority = p::smallint and q.job_id < high and q.job_id >= low
                         order by q.lane_id desc, q.priority desc, q.job_id desc
                         limit rows
                     ) r
                     order by r.job_id desc
                     limit rows)
                ) h
                left join lateral (select * from flyball.job where id = h.job_id limit 1) j on true
            ) w;
        end if;
        hits := coalesce(hits, '{}');
        next := case when cardinality(hits) > probes_max then hits[probes_max] when walked >= rows then walked_to end;

        -- Laterals with a limit are run once per row and in order, so that the look at the states
        -- stops as soon as the page is full; the planner can neither hash a whole table for them
        -- nor sort.
        listed := array(
            select row(m.id, m.kind, m.throttle, m.key, m.tenant, m.group_id, m.priority, m.max_attempts, m.cost, m.created_at, s.run_at,
                coalesce(l.attempt, r.attempt, s.attempt, d.attempt, a.attempt, 0::smallint), coalesce(d.error, a.error),
                t.state, m.tags, case when t.state in ('completed', 'cancelled', 'dead')
                    then coalesce(d.died_at, a.finished_at) end)::flyball.listed_job
            from unnest(hits[1:probes_max]) with ordinality as w(id, n)
            cross join lateral (
                select j.id, j.kind, j.throttle, j.key, j.tenant, j.group_id, j.priority, j.max_attempts, j.cost, j.created_at, j.lane_id,
                    j.admission_lane, j.tags
                from flyball.job j where j.id = w.id limit 1
            ) m
            left join lateral (
                select h.attempt from flyball.lease h where h.job_id = m.id limit 1
            ) l on true
            left join lateral (
                select h.attempt from flyball.ready h
                where h.lane_id in (m.lane_id, m.admission_lane) and h.priority = m.priority and h.job_id = m.id
                limit 1
            ) r on true
            left join lateral (
                select h.attempt, case when h.turn >= -4 or h.run_at > now() then h.run_at end as run_at, h.retry
                from flyball.scheduled h where h.job_id = m.id limit 1
            ) s on true
            left join lateral (
                select h.attempt, h.error, h.died_at from flyball.dead h where h.job_id = m.id limit 1
            ) d on true
            left join lateral (
                select h.attempt, h.outcome, h.error, h.finished_at from flyball.attempt h where h.job_id = m.id
                order by h.finished_at desc limit 1
            ) a on true
            cross join lateral (
                select case when l.attempt is not null then 'running'
                    when r.attempt is not null then 'ready'
                    when s.attempt is not null then case when s.retry then 'retryable' else 'scheduled' end
                    when d.attempt is not null then 'dead'
                    when a.outcome in ('cancelled', 'dropped') then 'cancelled'
                    else 'completed' end as state
            ) t
            where (filter.states is null or t.state = any(filter.states))
                and (error_like is null or case when d.attempt is not null then coalesce(d.error, '') else a.error end like error_like)
            limit max_jobs - cardinality(jobs)
        );
        jobs := jobs || listed;
        if cardinality(jobs) >= max_jobs then
            next := jobs[max_jobs].id;
            return;
        elsif next is null or clock_timestamp() > begun + walk_time then
            return;
        end if;
        high := next;
        is_first := false;
        -- Grows while a step is fast, so that one step takes a few milliseconds.
        rows := case
            when not is_expensive then least(rows * 5, rows_max)
            when clock_timestamp() < step_begun + interval '4 ms' then least(rows * 4, rows_max)
            when clock_timestamp() > step_begun + interval '12 ms' then greatest(rows / 4, 10)
            else rows end;
    end loop;
end $$;

-- === Lists =======================================================================================

-- Jobs that match a filter, newest first. While `next` is not null, older jobs may match: call
-- again with before => next.
create function flyball.list_jobs(filter jsonb default '{}', before bigint default null, max_jobs int default 100,
    out jobs jsonb, out next bigint)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set standard_conforming_strings = on as $$
#variable_conflict use_variable
declare
    reads constant text := flyball.read_tenant('list_jobs', filter ->> 'tenant');
    page  record;
begin
    if max_jobs is null or max_jobs not between 1 and 1000 then
        perform flyball.refuse('list_jobs', 'max_jobs', format('is %s; allowed are 1 to 1000', coalesce(max_jobs::text, 'null')));
    elsif before < 1 then
        perform flyball.refuse('list_jobs', 'before', format('is %s; give what "next" answered, or null to begin', before));
    end if;
    select f.jobs, f.next into page from flyball.find_jobs(flyball.read_filter('list_jobs', filter, reads), before, max_jobs) f;
    next := page.next;
    select coalesce(jsonb_agg(to_jsonb(j) - 'group_id' || jsonb_build_object('group', j.group_id, 'tags', coalesce(j.tags, '{}'),
        'created_at', flyball.time_text(j.created_at), 'due_at', flyball.time_text(j.due_at), 'ended_at', flyball.time_text(j.ended_at))
        order by j.id desc), '[]') into jobs
    from unnest(page.jobs) j;
end $$;
comment on function flyball.list_jobs is 'Jobs that match a filter, newest first; call again with before => next for more.';

-- The last attempts that failed, newest first. A job that is gone is known by its number only.
create function flyball.list_failures(most int default 100, in_tenant text default null)
returns table (job_id bigint, kind text, throttle text, key text, tenant text, "group" bigint, attempt int, outcome text,
    error text, at timestamptz)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set standard_conforming_strings = on as $$
#variable_conflict use_column
declare
    reads constant text := flyball.read_tenant('list_failures', in_tenant);
begin
    perform flyball.check_most('list_failures', most);
    return query
        select f.job_id, coalesce(j.kind, ''), coalesce(j.throttle, ''), coalesce(j.key, ''), coalesce(j.tenant, ''), j.group_id,
            f.attempt::int, f.outcome::text, f.error, f.at
        from (select * from flyball.failure o order by o.id desc limit case when reads is null then most else 10000 end) f
        left join lateral (select * from flyball.job o where o.id = f.job_id limit 1) j on true
        where reads is null or j.tenant = reads
        order by f.id desc
        limit most;
end $$;
comment on function flyball.list_failures is 'The last attempts that failed, newest first.';

-- The audit log, newest first; of a tenant what its tokens did.
create function flyball.list_audit(most int default 100, before_id bigint default null, in_tenant text default null)
returns table (id bigint, at timestamptz, actor text, token text, tenant text, action text, subject text, before jsonb,
    after jsonb, why text)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set standard_conforming_strings = on as $$
#variable_conflict use_column
declare
    reads constant text := flyball.read_tenant('list_audit', in_tenant);
begin
    perform flyball.check_most('list_audit', most);
    return query
        select a.id, a.at, a.actor, a.token, a.tenant, a.action, a.subject, a.before, a.after, coalesce(a.why, '')
        from flyball.audit a
        where (reads is null or a.tenant = reads) and a.id < coalesce(before_id, 9223372036854775807)
        order by a.id desc
        limit most;
end $$;
comment on function flyball.list_audit is 'The audit log, newest first.';

-- The live workers with the number of jobs that each runs, by their numbers.
create function flyball.list_workers()
returns table (id bigint, name text, remote boolean, host text, started_at timestamptz, heartbeat_at timestamptz, running bigint,
    throttles text[], kinds text[], capabilities jsonb)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set standard_conforming_strings = on as $$
#variable_conflict use_column
begin
    perform flyball.check_reads_all('list_workers');
    return query
        with held as (select l.worker_id, count(*) as jobs from flyball.lease l group by l.worker_id)
        select w.id::bigint, w.name, w.role = 'remote', w.host, w.started_at, w.heartbeat_at, coalesce(h.jobs, 0), w.throttles, w.kinds,
            w.capabilities
        from flyball.worker w
        left join held h on h.worker_id = w.id
        where w.stopped_at is null and w.heartbeat_at + w.ttl >= clock_timestamp() and w.role <> 'broker'
        order by w.id
        limit 1000;
end $$;
comment on function flyball.list_workers is 'The live workers.';

-- The kinds that can be enqueued, by name, with the number of attempts that have ended and their
-- mean cost in tokens.
create function flyball.list_kinds()
returns table (name text, public boolean, registered_at timestamptz, attempts bigint, mean_cost float8)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set standard_conforming_strings = on as $$
#variable_conflict use_column
begin
    perform flyball.check_reads_all('list_kinds');
    return query select k.name, k.public, k.registered_at, k.attempts, k.mean_cost from flyball.kind k order by k.name limit 1000;
end $$;
comment on function flyball.list_kinds is 'The kinds that can be enqueued.';

-- The recipients that get no messages, in the order of channel and digest, after a place that is
-- written `channel:digest`.
create function flyball.list_suppressions(in_channel text default null, after text default null, most int default 100)
returns table (channel text, recipient_digest text, reason text, pool text, account text, created_at timestamptz)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set standard_conforming_strings = on as $$
#variable_conflict use_column
begin
    perform flyball.check_reads_all('list_suppressions');
    perform flyball.check_most('list_suppressions', most);
    if in_channel not in ('sms', 'email', 'push', 'chat', 'webhook', 'inapp') then
        perform flyball.refuse('list_suppressions', 'in_channel',
            format('%s is not a channel; allowed are sms, email, push, chat, webhook and inapp',
            to_json(left(in_channel, 40))));
    elsif after !~ '^[a-z]+:[0-9a-f]{64}$' then
        perform flyball.refuse('list_suppressions', 'after',
            'is not a place in this list; allowed is a channel, a colon and a recipient_digest');
    end if;
    return query
        select s.channel, encode(s.recipient_digest, 'hex'), s.reason, s.pool, s.account, s.created_at
        from flyball.suppression s
        where (s.channel, s.recipient_digest)
                > (coalesce(split_part(after, ':', 1), in_channel, ''), coalesce(decode(split_part(after, ':', 2), 'hex'), ''))
            and (in_channel is null or s.channel = in_channel)
        order by s.channel, s.recipient_digest
        limit most;
end $$;
comment on function flyball.list_suppressions is 'The recipients that get no messages, by their digests.';

-- === Permissions =================================================================================

revoke execute on function flyball.read_tenant, flyball.check_reads_all, flyball.check_most, flyball.why_after, flyball.unserved_reason,
    flyball.why_job, flyball.list_attempts, flyball.job_result, flyball.show_job, flyball.index_for, flyball.id_at, flyball.id_range,
    flyball.are_rare, flyball.tagged, flyball.find_jobs, flyball.list_jobs, flyball.list_failures, flyball.list_audit, flyball.list_workers,
    flyball.list_kinds, flyball.list_suppressions
from public;
