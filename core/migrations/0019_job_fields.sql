-- Chapter 19: tags of jobs, retries of one job, jobs that run after others, and webhooks of jobs.
--
-- The functions that take jobs column by column get one more column, `options`: fields of a job that few
-- jobs have, as an object. So the next such field needs no further parameter, and jobs without any pay
-- for none.

-- Ends the replacement of functions by others with more parameters at the end. A migration renames the
-- old ones to <name>_before_<its number>, creates the new ones, and calls this. Each new one gets the
-- grants of its old one, as the operators left them. The old one goes, unless a function or a view of
-- theirs is bound to it: then it stays and calls the new one, whose grants alone count.
--
-- Only migrations need it, so the last one that does drops it.
create function flyball.replace_functions(migration int) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
    suffix constant text := '_before_' || migration;
    old    pg_proc;
    new    regprocedure;
    change text;
begin
    for old in
        select p.* from pg_proc p where p.pronamespace = 'flyball'::regnamespace and right(p.proname, length(suffix)) = suffix
    loop
        new := format('flyball.%I', left(old.proname, -length(suffix)))::regproc;
        for change in
            select c.change
            from (
                select 1 as step, format('revoke all on function %s from %s cascade', new, g.role) as change
                from pg_proc p
                cross join lateral aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
                cross join lateral (select case a.grantee when 0 then 'public' else a.grantee::regrole::text end as role) g
                where p.oid = new
                union all
                select 2, format('grant execute on function %s to %s', new, g.role) || case when a.is_grantable then ' with grant option' else '' end
                from aclexplode(coalesce(old.proacl, acldefault('f', old.proowner))) a
                cross join lateral (select case a.grantee when 0 then 'public' else a.grantee::regrole::text end as role) g
            ) c
            order by c.step
        loop
            execute change;
        end loop;
        begin
            execute format('drop function %s', old.oid::regprocedure);
        exception when dependent_objects_still_exist then
            execute format('create or replace function %s(%s) returns %s language sql as %L', old.oid::regproc,
                pg_get_function_arguments(old.oid), pg_get_function_result(old.oid), format('select %s from %s(%s)',
                    coalesce((
                        select string_agg(quote_ident(n.name), ', ' order by n.place)
                        from unnest(old.proargnames, old.proargmodes) with ordinality as n(name, mode, place)
                        where n.mode in ('o', 't')
                    ), '*'), new::regproc, (select string_agg('$' || n, ', ' order by n) from generate_series(1, old.pronargs) as n)));
            execute format('grant execute on function %s to public', old.oid::regprocedure);
        end;
    end loop;
end $$;
revoke execute on function flyball.replace_functions from public;

-- Short texts by which people find jobs; null for none.
alter table flyball.job add column tags text[];
-- Finds jobs by their tags. Jobs without are left out, so they cost it nothing; the list of pending
-- entries is off, because the search that reads it would take as long as nobody knows. Days of the past
-- have no tags, except where a waiting job is replaced, and are read without it: so it takes as long to
-- make as reading today does. Each day that comes gets its part with its table.
create index job_tags on only flyball.job using gin (tags) with (fastupdate = off) where tags is not null;
do $$
declare
    day text;
begin
    for day in
        select d.day from pg_inherits i
        cross join lateral substring(i.inhrelid::regclass::text from '[0-9]+$') as d(day)
        where i.inhparent = 'flyball.job'::regclass and d.day::bigint >= flyball.day_of(now())
    loop
        execute format('create index job_%1$s_tags_idx on flyball.job_%1$s using gin (tags) with (fastupdate = off) where tags is not null', day);
        execute format('alter index flyball.job_tags attach partition flyball.job_%s_tags_idx', day);
    end loop;
end $$;

-- === Options ======================================================================================

-- The waits among the options of a job, with what is not given; null for none.
create function flyball.retry_of(options jsonb) returns jsonb
language sql immutable parallel safe
return case when jsonb_typeof(options -> 'retry') = 'object' then (
    select jsonb_build_object('delay_s', trim_scale(r.delay_s), 'factor', coalesce(trim_scale(r.factor), 2),
        'max_delay_s', trim_scale(coalesce(r.max_delay_s, greatest(r.delay_s, 3600))))
    from jsonb_to_record(options -> 'retry') as r(delay_s numeric, factor numeric, max_delay_s numeric)
) end;

-- Returns all that is wrong with the waits of a job, or null.
create function flyball.retry_problem(retry jsonb) returns text
language sql immutable parallel safe
return case
    when retry is null or jsonb_typeof(retry) = 'null' then null
    when jsonb_typeof(retry) <> 'object'
        then format('must be an object such as {"delay_s": 5, "factor": 2, "max_delay_s": 600}, not %s', jsonb_typeof(retry))
    else (
        select string_agg(p.problem, '; ' order by p.n)
        from (
            select 0 as n, 'needs a delay_s: the longest wait after the first failure, 0.001 to 31622400 seconds (366 days)' as problem
            where coalesce(jsonb_typeof(retry -> 'delay_s'), 'null') = 'null'
            union all
            select b.n, format('%s is %s; allowed are %s', f.name,
                left(case when jsonb_typeof(f.value) = 'number' then trim_scale(f.value::numeric)::text else f.value::text end, 40), b.allowed)
            from jsonb_each(retry) as f(name, value)
            join (values (1, 'delay_s', 0.001, 31622400, '0.001 to 31622400 seconds (366 days)'),
                (2, 'factor', 1, 100, '1 (always the same) to 100'),
                (3, 'max_delay_s', 0.001, 31622400, '0.001 to 31622400 seconds (366 days)')) as b(n, name, low, high, allowed) on b.name = f.name
            where jsonb_typeof(f.value) <> 'null'
                and case when jsonb_typeof(f.value) = 'number' then f.value::numeric not between b.low and b.high else true end
            union all
            select 4, format('has %s; allowed are delay_s, factor, max_delay_s', to_json(left(f.name, 64)))
            from jsonb_object_keys(retry) as f(name) where f.name not in ('delay_s', 'factor', 'max_delay_s')
        ) p
    ) end;

-- The fields of a job that have no column of their own in enqueue_rows; null for none.
create function flyball.options_of(job jsonb) returns jsonb
language sql immutable parallel safe
return nullif(jsonb_strip_nulls(jsonb_build_object('tags', job -> 'tags',
    'after', job -> 'after',
    'after_failure', job -> 'after_failure',
    'on_complete', job -> 'on_complete',
    'on_dead', job -> 'on_dead',
    'webhook_secret', job -> 'webhook_secret',
    'retry', job -> 'retry')), '{}');

-- Returns what is wrong with the options of a job, or nothing.
create function flyball.check_options(options jsonb, out field text, out message text)
language plpgsql immutable as $$
#variable_conflict use_variable
declare
    tag  jsonb;
    ids  int;
begin
    if options is null or options in ('{}', 'null') then
        return;
    elsif jsonb_typeof(options) <> 'object' then
        field := 'options';
        message := format('must be an object, not %s', jsonb_typeof(options));
        return;
    end if;
    select format('%s is not an option of a job; allowed are tags, after, after_failure, on_complete, on_dead, webhook_secret, retry', to_json(left(o.name, 64))), 'options' into message, field
    from jsonb_object_keys(options) as o(name)
    where o.name not in ('tags', 'after', 'after_failure', 'on_complete', 'on_dead', 'webhook_secret', 'retry')
    limit 1;
    if found then
        return;
    end if;

    field := 'tags';
    if jsonb_typeof(options -> 'tags') not in ('array', 'null') then
        message := format('must be a list of texts, not %s', jsonb_typeof(options -> 'tags'));
        return;
    elsif jsonb_typeof(options -> 'tags') = 'array' then
        if jsonb_array_length(options -> 'tags') > 16 then
            message := format('has %s elements; at most 16 are allowed', jsonb_array_length(options -> 'tags'));
            return;
        end if;
        for tag in select t.value from jsonb_array_elements(options -> 'tags') t loop
            message := case
                when jsonb_typeof(tag) <> 'string' then format('has an element that is a %s; allowed are texts of 1 to 64 bytes', jsonb_typeof(tag))
                when octet_length(tag #>> '{}') not between 1 and 64
                    then format('has an element of %s bytes; allowed are texts of 1 to 64 bytes', octet_length(tag #>> '{}'))
                when tag #>> '{}' ~ '[\u0001-\u001f\u007f-\u009f]' then format('%s has a control character, which no tag may have', tag) end;
            if message is not null then
                return;
            end if;
        end loop;
    end if;

    field := 'after';
    if jsonb_typeof(options -> 'after') not in ('array', 'null') then
        message := format('must be a list of job numbers, not %s', jsonb_typeof(options -> 'after'));
        return;
    elsif jsonb_typeof(options -> 'after') = 'array' then
        ids := jsonb_array_length(options -> 'after');
        message := case when ids > 100 then format('has %s elements; at most 100 are allowed', ids) else (
            select format('has the element %s; allowed are the numbers of jobs', left(e.value::text, 40))
            from jsonb_array_elements(options -> 'after') e
            where case when jsonb_typeof(e.value) = 'number' then e.value::numeric <> trunc(e.value::numeric)
                or e.value::numeric not between 1 and 9007199254740991 else true end
            limit 1
        ) end;
        if message is not null then
            return;
        end if;
    end if;

    field := 'after_failure';
    if jsonb_typeof(options -> 'after_failure') <> 'null' then
        message := case
            when options -> 'after_failure' not in ('"cancel"', '"run"')
                then format('is %s; allowed are "cancel" and "run"', left((options -> 'after_failure')::text, 40))
            when coalesce(ids, 0) = 0 then 'needs an after' end;
        if message is not null then
            return;
        end if;
    end if;

    foreach field in array array['on_complete', 'on_dead'] loop
        message := case
            when jsonb_typeof(options -> field) = 'null' or not options ? field then null
            when jsonb_typeof(options -> field) <> 'string' then format('must be a URL, not %s', jsonb_typeof(options -> field))
            when octet_length(options ->> field) > 2048 then format('is %s bytes long; at most 2048 are allowed', octet_length(options ->> field))
            when options ->> field !~* '^https?://[!-"$-.0->A-[\]-~]+([/?#][!-~]*)?$'
                then 'must be a URL in ASCII that begins with https:// or http://, has a host, and has no blanks and no name or password' end;
        if message is not null then
            return;
        end if;
    end loop;

    field := 'webhook_secret';
    if options ? field and jsonb_typeof(options -> field) <> 'null' then
        message := case
            -- The secret itself may be here by mistake, so it is not shown.
            when jsonb_typeof(options -> field) <> 'string' or options ->> field !~ '^[A-Za-z0-9_]{1,64}$' or options ->> field like 'whsec\_%'
                then 'must be the name of a secret, 1 to 64 letters, digits or underscores: the secret itself is in the variable FLYBALL_WEBHOOK_SECRET_<NAME> of the workers'
            when coalesce(options ->> 'on_complete', options ->> 'on_dead') is null then 'needs an on_complete or an on_dead' end;
        if message is not null then
            return;
        end if;
    end if;

    field := 'retry';
    message := flyball.retry_problem(options -> 'retry');
    if message is not null then
        return;
    end if;

    field := null;
end $$;

-- The tags among the options of a job, each once and in order; null for none.
create function flyball.tags_of(options jsonb) returns text[]
language sql immutable parallel safe
return case when jsonb_typeof(options -> 'tags') = 'array' then (
    select array_agg(t.tag order by t.n)
    from (
        select e.tag, min(e.n) as n from jsonb_array_elements_text(options -> 'tags') with ordinality as e(tag, n) group by e.tag
    ) t
) end;

-- === Waiting for others ===========================================================================
--
-- A job that runs after others stands in `scheduled` with a turn from -8 to -5, by its priority, where
-- no promotion and no planner sees it. Nothing that ends a job knows who waits for it, so that ends cost
-- what they cost before. Workers look at the jobs that are waited for: at those that they have just
-- ended, and at all of them by and by. The place of a job counts and not what happened to it,
-- so no end is missed, whoever wrote it.

-- The jobs after which a job runs, as it was given; null for none. Without `after_failure` it is
-- cancelled if one of them does not complete.
alter table flyball.job
    add column after         bigint[],
    add column after_failure text;

-- Jobs that wait, and those that they wait for.
create table flyball.job_after (
    job_id      bigint  not null,
    after_id    bigint  not null,
    -- True if the job runs after any end of the other one.
    runs_anyway boolean not null,
    primary key (job_id, after_id)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0,
    vacuum_truncate = off);
create index job_after_after on flyball.job_after (after_id, job_id);

-- The place of the look at all jobs that others wait for, and its time.
create table flyball.after_sweep (
    one      boolean     primary key default true check (one),
    after_id bigint      not null default 0,
    at       timestamptz not null default '-infinity'
) with (fillfactor = 50);
insert into flyball.after_sweep default values;

-- The jobs after which a job runs, among its options; null for none.
create function flyball.after_of(options jsonb) returns bigint[]
language sql immutable parallel safe
return case when jsonb_typeof(options -> 'after') = 'array' then (
    select array_agg(distinct e.id::numeric::bigint) from jsonb_array_elements_text(options -> 'after') as e(id)) end;

-- Where jobs stand: 'live' until they have ended, else 'completed', 'dead' or 'cancelled'. One that is
-- gone counts as cancelled. One statement and so one snapshot, in which a job stands in one place; and
-- one plan for all of them.
create function flyball.ends_of(jobs bigint[]) returns table (job_id bigint, state text)
language plpgsql stable set enable_seqscan = off set jit = off as $$
#variable_conflict use_column
begin
    return query
    select u.id, case
            when l.job_id is not null or r.job_id is not null or s.job_id is not null then 'live'
            when d.job_id is not null then 'dead'
            when j.id is null or a.outcome in ('cancelled', 'dropped') then 'cancelled'
            else 'completed' end
    from unnest(jobs) as u(id)
    left join lateral (select o.id, o.lane_id, o.admission_lane, o.priority from flyball.job o where o.id = u.id limit 1) j on true
    left join lateral (select h.job_id from flyball.lease h where h.job_id = u.id limit 1) l on true
    left join lateral (
        select h.job_id from flyball.ready h
        where h.lane_id in (j.lane_id, j.admission_lane) and h.priority = j.priority and h.job_id = u.id limit 1
    ) r on true
    left join lateral (select h.job_id from flyball.scheduled h where h.job_id = u.id limit 1) s on true
    left join lateral (select h.job_id from flyball.dead h where h.job_id = u.id limit 1) d on true
    left join lateral (
        select h.outcome from flyball.attempt h where h.job_id = u.id order by h.finished_at desc limit 1
    ) a on true;
end $$;

-- Returns what is wrong with the jobs after which one runs, or null, if there is no `absent` one of the
-- caller's own. A job of others is like none.
create function flyball.after_problem(absent bigint, replaces boolean) returns text
language sql immutable parallel safe
return case
    when replaces then 'cannot be used together with replace or debounce: the job may take the place of one that waits for no other'
    when absent is not null then format('%s is not the number of a job of yours whose history is kept', absent) end;

-- The first of the jobs after which one runs that is not there for this tenant; null for none.
create function flyball.absent_of(jobs bigint[], tenant text) returns bigint
language plpgsql stable set enable_seqscan = off as $$
#variable_conflict use_variable
begin
    return (
        select a.id from unnest(jobs) as a(id)
        where (select 1 from flyball.job j where j.id = a.id and j.tenant = tenant limit 1) is null
        order by a.id
        limit 1);
end $$;

-- Those of the jobs after which one runs for which it waits now; null for none. A dead letter is
-- waited for, because it may be requeued and complete, unless the job runs after any end.
create function flyball.awaited(options jsonb) returns bigint[]
language plpgsql stable as $$
begin
    return (
        select array_agg(e.job_id order by e.job_id)
        from flyball.ends_of(flyball.after_of(options)) e
        where e.state = 'live' or e.state <> 'completed' and options ->> 'after_failure' is distinct from 'run');
end $$;

-- Records for which jobs one waits, in the transaction that enqueues it.
create function flyball.add_waits(job_id bigint, awaited bigint[], options jsonb) returns void
language sql volatile as $$
    insert into flyball.job_after (job_id, after_id, runs_anyway)
    select add_waits.job_id, a.id, coalesce(add_waits.options ->> 'after_failure' = 'run', false) from unnest(add_waits.awaited) as a(id);
$$;

-- A job leaves its place: it is free, or it was cancelled, started by hand, or replaced.
create function flyball.forget_waits() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    delete from flyball.job_after a where a.job_id = old.job_id;
    return null;
end $$;

-- Jobs that wait for no other cost one comparison.
create trigger job_waits_no_more after delete on flyball.scheduled
    for each row when (old.turn < -4) execute function flyball.forget_waits();

-- Frees jobs for which all others have ended, and cancels those for which one did not complete. It looks
-- at jobs that have `ended`; without, at the next of all that are waited for, at most once a second for
-- all workers together. Returns how many jobs are free now and their lanes, the jobs that were
-- cancelled, those that it looked at, whether jobs wait at all, and whether to look at them again.
--
-- Jobs that another transaction holds are left to the next call. The state of what they waited for is
-- read anew then, so none is forgotten.
create function flyball.release_waiting(ended bigint[] default null, most int default 1000,
    out released bigint, out lanes bigint[], out cancelled_jobs bigint[], out looked bigint[], out waiting boolean, out more boolean)
language plpgsql volatile set enable_seqscan = off set jit = off as $$
#variable_conflict use_variable
declare
    place     bigint;
    rung      bigint;
    completed bigint[];
    failed    bigint[];
    dead      bigint[];
    due       bigint[];
    free      bigint[];
    held      bigint[];
begin
    released := 0;
    lanes := '{}';
    cancelled_jobs := '{}';
    looked := '{}';
    more := false;
    waiting := (select 1 from flyball.job_after a limit 1) is not null;
    if not waiting then
        return;
    elsif ended is not null then
        looked := array(
            select e.id from (select distinct unnest(ended) as id) e
            where (select 1 from flyball.job_after a where a.after_id = e.id limit 1) is not null);
    else
        select s.after_id into place from flyball.after_sweep s
        where s.at <= clock_timestamp() - interval '0.8 seconds'
        for update skip locked;
        if not found then
            return;
        end if;
        looked := array(
            with recursive hop as (
                (select a.after_id from flyball.job_after a where a.after_id > place order by a.after_id limit 1)
                union all
                select n.after_id
                from hop h
                cross join lateral (
                    select a.after_id from flyball.job_after a where a.after_id > h.after_id order by a.after_id limit 1
                ) n
            )
            select h.after_id from hop h limit most
        );
        update flyball.after_sweep s
        set after_id = case when cardinality(looked) < most then 0 else looked[cardinality(looked)] end, at = clock_timestamp()
        where s.one;
    end if;

    -- No end is taken back, except that of a dead letter.
    select array_agg(l.id) filter (where l.state = 'completed'), array_agg(l.id) filter (where l.state = 'dead'),
        array_agg(l.id) filter (where l.state = 'cancelled')
    into completed, dead, failed
    from (select e.job_id as id, e.state from flyball.ends_of(looked) e) l;
    -- The holder of the row in `scheduled` decides about the job; the others leave it alone.
    held := array(
        select s.job_id
        from flyball.scheduled s
        where s.turn < -4 and s.job_id = any(array(
            select distinct a.job_id
            from flyball.job_after a
            where a.after_id = any(completed || failed) or a.after_id = any(dead) and a.runs_anyway
            limit most))
        for update skip locked
    );
    if held = '{}' then
        return;
    end if;

    with doomed as (
        select a.job_id, min(a.after_id) as after_id
        from flyball.job_after a
        where a.job_id = any(held) and a.after_id = any(failed) and not a.runs_anyway
        group by a.job_id
    ),
    gone as (
        delete from flyball.scheduled s using doomed d where s.job_id = d.job_id returning s.job_id, s.attempt, d.after_id
    ),
    history as (
        insert into flyball.attempt (job_id, attempt, outcome, error)
        select g.job_id, g.attempt, 'cancelled', format('job %s, after which this one was to run, did not complete', g.after_id) from gone g
    ),
    released_keys as (
        delete from flyball.unique_holder
        where digest = any(array(
            select u.digest from flyball.unique_holder u
            where u.expires_at is null and u.job_id = any(array(select g.job_id from gone g)) for update skip locked
        ))
    )
    select array(select g.job_id from gone g) into cancelled_jobs;

    delete from flyball.job_after a
    where a.job_id = any(held) and (a.after_id = any(completed || failed) or a.after_id = any(dead) and a.runs_anyway);
    free := array(
        select h.id from unnest(held) as h(id)
        where h.id <> all (cancelled_jobs) and (select 1 from flyball.job_after a where a.job_id = h.id limit 1) is null);
    due := array(
        select s.job_id
        from flyball.scheduled s
        cross join lateral (select o.kind, o.args from flyball.job o where o.id = s.job_id limit 1) j
        where s.job_id = any(free) and s.run_at <= now() and not flyball.needs_plan(j.kind, j.args)
    );
    with moved as (
        delete from flyball.scheduled s where s.job_id = any(due)
        returning s.lane_id, s.priority, s.job_id, s.attempt, s.cost, s.holds_unique
    ),
    arrived as (
        insert into flyball.ready (lane_id, priority, job_id, attempt, cost, holds_unique) select * from moved on conflict do nothing
    ),
    pages as (
        select l.lane_id, row_number() over () / 370 as page from (select distinct m.lane_id from moved m) l
    )
    -- A notification holds 8,000 bytes.
    select coalesce((select array_agg(p.lane_id) from pages p), '{}'), count(pg_notify('flyball', b.lanes))
    into lanes, rung
    from (select string_agg(p.lane_id::text, ',') as lanes from pages p group by p.page) b;
    -- The others have a time of their own, or gates to pass.
    update flyball.scheduled s
    set turn = case when flyball.needs_plan(j.kind, j.args) then s.priority - 4 else flyball.turn_of(j.throttle, s.priority, false) end
    from unnest(free) as f(id)
    cross join lateral (select o.kind, o.args, o.throttle from flyball.job o where o.id = f.id limit 1) j
    where s.job_id = f.id and f.id <> all (due);
    if found then
        perform pg_notify('flyball_plan', '');
    end if;
    released := cardinality(free);
    more := true;
end $$;

-- === Webhooks =====================================================================================

-- Webhooks of a job: URLs that are called when it has completed and when it is dead, and the name of
-- the secret that signs the calls; null for none.
alter table flyball.job
    add column on_complete    text,
    add column on_dead        text,
    add column webhook_secret text;

-- Jobs with webhooks that have not ended for good. So a copy of an attempt, as when a day is pruned,
-- calls nobody.
create table flyball.webhook_job (
    job_id bigint primary key
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay = 0,
    vacuum_truncate = off);

-- Calls that are to be enqueued, written by what ends the job and in its transaction.
create table flyball.webhook_call (
    id       bigint      generated always as identity primary key,
    job_id   bigint      not null,
    event    text        not null,
    at       timestamptz not null default clock_timestamp(),
    -- The reason for which it could not be enqueued; null before the first try.
    problem  text,
    -- The time of the next try, and so in the future for those that were refused alone.
    retry_at timestamptz not null default now()
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0,
    vacuum_truncate = off);
create index webhook_call_retry on flyball.webhook_call (retry_at, id);
-- Counts the groups that have not ended.
create index job_group_open on flyball.job_group (id) where ended_at is null;

-- Returns what is wrong with the webhooks of a job besides their form, and its error code, or nothing. A
-- call is a job of the kind `http`, so nobody gets one who may not enqueue those.
create function flyball.check_webhooks(options jsonb, replaces boolean, trusted boolean, out field text, out message text, out code text)
language plpgsql stable as $$
begin
    if not options ?| array['on_complete', 'on_dead'] then
        return;
    end if;
    field := case when options ? 'on_complete' then 'on_complete' else 'on_dead' end;
    if replaces then
        code := '22023';
        message := 'cannot be used together with replace or debounce: the job may take the place of one without webhooks';
    elsif not trusted and not flyball.may_enqueue('http') then
        code := '42501';
        message := format('is called by a job of the kind http, which role %s may not enqueue; it may enqueue: %s',
            to_json(flyball.caller()), flyball.enqueueable());
    else
        field := null;
    end if;
end $$;

-- The rate-limit key of calls: a tenant has one for all of its own, however many hosts it names; the
-- operators have one for each host.
create function flyball.webhook_key(tenant text, url text) returns text
language sql immutable parallel safe
return case when tenant <> '' then tenant else left(lower(substring(url from '^[a-zA-Z]+://([^/?#]+)')), 128) end;

-- The job that calls a webhook.
create function flyball.webhook_job_of(c flyball.webhook_call, j flyball.job) returns jsonb
language sql stable
return (
    select jsonb_build_object('kind', 'http', 'throttle', 'webhooks', 'key', flyball.webhook_key((j).tenant, t.url),
        'max_attempts', 15, 'tags', coalesce(to_jsonb((j).tags), '[]'),
        'args', jsonb_strip_nulls(jsonb_build_object('method', 'POST', 'url', t.url, 'secret', (j).webhook_secret))
            || jsonb_build_object('body', jsonb_build_object(
                'type', 'job.' || (c).event, 'timestamp', flyball.time_text((c).at),
                'data', jsonb_build_object(
                        'id', (j).id, 'kind', (j).kind, 'throttle', (j).throttle, 'key', (j).key, 'tags', coalesce(to_jsonb((j).tags), '[]'),
                        'group', (j).group_id, 'attempt', coalesce(a.attempt, 0), 'max_attempts', (j).max_attempts,
                        'created_at', flyball.time_text((j).created_at), 'started_at', flyball.time_text(a.started_at),
                        'ended_at', flyball.time_text((c).at))
                    || case when (c).event = 'dead' then jsonb_build_object('error', t.error)
                        when r.result is not null then jsonb_build_object('result', r.result) else '{}' end)))
    from (select 1) one
    left join lateral (
        select b.attempt, b.outcome, b.started_at, b.error
        from flyball.attempt b where b.job_id = (j).id and b.finished_at <= (c).at + interval '1 second'
        order by b.finished_at desc limit 1
    ) a on true
    left join lateral (
        select o.result from flyball.result o where o.job_id = (j).id and octet_length(o.result::text) <= 16384 limit 1
    ) r on true
    cross join lateral (
        -- The class of the error and not its text, which may repeat what others answered.
        select case (c).event when 'dead' then (j).on_dead else (j).on_complete end as url,
            coalesce(substring(a.error from '^answered [1-5][0-9][0-9]'), case a.outcome when 'dead' then 'failed' else a.outcome::text end,
                'failed') as error
    ) t
);

-- A member of a group, or a job with webhooks, has ended for good. Their rows are there once, so a copy
-- of its last attempt, as when a day is pruned, counts and calls nothing.
create or replace function flyball.count_ended_member() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    with ended as (
        delete from flyball.group_member m where m.job_id = new.job_id returning m.group_id, m.dead
    )
    insert into flyball.group_change (group_id, completed, dead, cancelled)
    select e.group_id, (new.outcome = 'completed')::int, -(e.dead::int), (new.outcome <> 'completed')::int from ended e;
    delete from flyball.webhook_job w where w.job_id = new.job_id;
    if found and new.outcome = 'completed' then
        insert into flyball.webhook_call (job_id, event)
        select j.id, 'completed' from flyball.job j where j.id = new.job_id and j.on_complete is not null;
    end if;
    return null;
end $$;

-- A member, or a job with webhooks, has become a dead letter, or is one no longer.
create or replace function flyball.count_dead_member() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    is_dead constant boolean := tg_op = 'INSERT';
    member  constant bigint := case when tg_op = 'INSERT' then new.job_id else old.job_id end;
begin
    with changed as (
        update flyball.group_member m set dead = is_dead where m.job_id = member and m.dead <> is_dead returning m.group_id
    )
    insert into flyball.group_change (group_id, dead)
    select c.group_id, case when is_dead then 1 else -1 end from changed c;
    if is_dead then
        insert into flyball.webhook_call (job_id, event)
        select j.id, 'dead'
        from flyball.webhook_job w
        cross join lateral (select o.id from flyball.job o where o.id = w.job_id and o.on_dead is not null limit 1) j
        where w.job_id = member;
    end if;
    return null;
end $$;

-- Enqueues up to `most` calls, each in one transaction with the end of its row; returns how many, and
-- whether there may be more. One that is refused, for instance by a full lane, is tried again for three
-- days; each time it waits as long again as it has waited so far, at least ten seconds and at most an
-- hour. Calls that another transaction holds are left to it.
create function flyball.enqueue_calls(most int default 500, out enqueued int, out more boolean)
language plpgsql volatile set enable_seqscan = off as $$
#variable_conflict use_variable
declare
    one    record;
    taken  bigint[];
    calls  bigint[];
    single bigint;
begin
    enqueued := 0;
    taken := array(
        select c.id from flyball.webhook_call c
        where c.retry_at <= now()
        order by c.retry_at, c.id
        limit most
        for update skip locked
    );
    more := cardinality(taken) = most;
    if taken = '{}' then
        return;
    end if;
    delete from flyball.webhook_call c
    where c.id = any(taken) and (select 1 from flyball.job j where j.id = c.job_id limit 1) is null;
    for one in
        select case when j.tenant <> '' then 'tenant:' || j.tenant else '' end as owner, j.module, array_agg(c.id order by c.id) as ids
        from flyball.webhook_call c
        cross join lateral (select o.tenant, o.module from flyball.job o where o.id = c.job_id limit 1) j
        where c.id = any(taken)
        group by 1, 2
    loop
        -- All at once, and one by one if that is refused.
        foreach single in array array[0::bigint] || one.ids loop
            calls := case when single = 0 then one.ids else array[single] end;
            begin
                perform flyball.enqueue_json_as(one.owner, one.module, (
                    select jsonb_agg(flyball.webhook_job_of(c, j) order by c.id)
                    from flyball.webhook_call c
                    cross join lateral (select o from flyball.job o where o.id = c.job_id limit 1) as f(j)
                    where c.id = any(calls)));
                delete from flyball.webhook_call c where c.id = any(calls);
                enqueued := enqueued + cardinality(calls);
                exit when single = 0;
            exception when data_exception or integrity_constraint_violation or raise_exception or configuration_limit_exceeded or insufficient_privilege then
                if single <> 0 then
                    update flyball.webhook_call c
                    set problem = left(sqlerrm, 1000), retry_at = clock_timestamp()
                        + greatest(interval '10 seconds', least(clock_timestamp() - c.at, interval '1 hour'))
                    where c.id = single and c.at > clock_timestamp() - interval '3 days';
                    if not found then
                        delete from flyball.webhook_call c where c.id = single;
                    end if;
                end if;
            end;
        end loop;
    end loop;
end $$;

alter function flyball.settle_groups rename to settle_groups_before_19;

-- Adds what has changed to the counts of up to `most` groups, and enqueues calls of webhooks; returns how
-- many groups ended, whether there may be more to do, and the number of calls.
--
-- Groups that another transaction holds are left to it, or to the next call.
create function flyball.settle_groups(most int default 100, out ended int, out more boolean, out calls int)
language plpgsql volatile as $$
#variable_conflict use_variable
declare
    found_groups bigint[];
    settled      int := 0;
    one          bigint;
begin
    ended := 0;
    found_groups := array(
        select distinct c.group_id from (select d.group_id from flyball.group_change d order by d.group_id limit 10000) c limit most
    );
    for one in
        select g.id from flyball.job_group g
        where g.id = any(found_groups || array(
            select r.id from flyball.job_group r where r.retry_at <= clock_timestamp() order by r.retry_at limit most))
        order by g.id
        for no key update skip locked
    loop
        settled := settled + 1;
        if flyball.settle_group(one) then
            ended := ended + 1;
        end if;
    end loop;
    select e.enqueued, e.more or cardinality(found_groups) = most and settled > 0 into calls, more from flyball.enqueue_calls() e;
end $$;

-- === Retries of one job ===========================================================================

-- The waits of this job after failed attempts, instead of those of its kind, as `{"delay_s": 5,
-- "factor": 2, "max_delay_s": 600}`; null for those of its kind. Workers compute each wait.
alter table flyball.job add column retry jsonb;

-- === A waiting job is rewritten ===================================================================

-- A job is written once, except while it waits: a job with `replace` or `debounce` takes the place of the
-- waiting one, and people change fields of one. Both take its row out of the queue, rewrite the job, and
-- put a new row in. The transaction that takes the row has the job, and only snapshots that see
-- the new row also see the job as it is now, so no claim runs a mix of the two.

-- Takes a waiting job out of its queue and returns its place; nulls if it does not wait. `run_at` is
-- null for one that was ready.
create function flyball.take_waiting(job_id bigint) returns flyball.scheduled
language plpgsql volatile as $$
#variable_conflict use_variable
declare
    taken flyball.scheduled;
begin
    -- Promotion moves a job from here to `ready`, so this is the order of the search. The transaction that
    -- deletes the row has the job: a claim skips it or was faster.
    delete from flyball.scheduled s where s.job_id = job_id returning s.* into taken;
    if not found then
        delete from flyball.ready r
        where r.lane_id in ((select j.lane_id from flyball.job j where j.id = job_id),
                (select j.admission_lane from flyball.job j where j.id = job_id))
            and r.priority = (select j.priority from flyball.job j where j.id = job_id) and r.job_id = job_id
        returning r.job_id, null, r.lane_id, r.priority, r.attempt, r.cost, false, r.holds_unique, 0 into taken;
    end if;
    return taken;
end $$;

-- Writes all that can change in a job that was taken out of its queue. With new arguments the cursor of
-- the old ones is forgotten.
create function flyball.rewrite_job(job flyball.job, has_new_args boolean) returns void
language plpgsql volatile as $$
#variable_conflict use_variable
begin
    update flyball.job as j
    set lane_id = job.lane_id, priority = job.priority, max_attempts = job.max_attempts, cost = job.cost, run_at = job.run_at,
        throttle = job.throttle, key = job.key, args = job.args, traceparent = job.traceparent, timeout_s = job.timeout_s,
        module = job.module, admission_lane = job.admission_lane, tags = job.tags, after = job.after,
        after_failure = job.after_failure, on_complete = job.on_complete, on_dead = job.on_dead, webhook_secret = job.webhook_secret,
        retry = job.retry, unique_until = job.unique_until
    where j.id = job.id;
    if has_new_args then
        delete from flyball.checkpoint c where c.job_id = job.id;
    end if;
end $$;

-- === Enqueue ======================================================================================

alter function flyball.admit_unchecked rename to admit_unchecked_before_19;
alter function flyball.admit rename to admit_before_19;
alter function flyball.enqueue rename to enqueue_before_19;
alter function flyball.enqueue_rows rename to enqueue_rows_before_19;
alter function flyball.enqueue_rows_as rename to enqueue_rows_as_before_19;

-- Enqueues one job with validated arguments, by all rules except those of its throttle's knobs.
create function flyball.admit_unchecked(
    entry_point text,
    kind text, args jsonb, throttle text, key text, priority int, run_at timestamptz, max_attempts int,
    unique_key text, unique_for interval, cost float8, traceparent text, timeout interval,
    debounce interval, debounce_max interval, replace boolean, owner text, module text default '', admitted boolean default false,
    group_id bigint default null, options jsonb default null,
    out job_id bigint, out duplicate boolean, out replaced boolean, out backlog jsonb)
language plpgsql volatile as $$
#variable_conflict use_variable
declare
    holder       record;
    holder_state record;
    taken        flyball.scheduled;
    job          flyball.job;
    lane         bigint := flyball.lane_of(throttle, key);
    owner_tenant constant text := flyball.tenant_of(owner);
    -- The lane in which a message of a tenant waits, unless the entry point took its slot.
    waiting_lane constant bigint := case when kind = 'notification' and owner_tenant <> '' and not admitted
        then flyball.lane_of(flyball.admission_throttle(owner_tenant), module) end;
    target_lane  constant bigint := coalesce(waiting_lane, lane);
    due_at       timestamptz := coalesce(now() + debounce, run_at);
    digest       bytea;
    until        timestamptz := now() + unique_for;
    burst_start  timestamptz := case when debounce is not null then now() end;
    replaces     constant boolean := replace or debounce is not null;
    awaited      constant bigint[] := case when options ? 'after' then flyball.awaited(options) end;
begin
    job_id := flyball.next_id() | (group_id is not null or coalesce(options ?| array['on_complete', 'on_dead'], false))::int;
    duplicate := false;
    replaced := false;

    if unique_key is not null then
        digest := flyball.unique_digest(owner, kind, unique_key);
        -- Each round takes the key, or takes the waiting job out of its queue, or has seen another
        -- transaction do so.
        for round in 1..1000 loop
            if round = 1000 then
                raise exception using errcode = '40001', message = format('%s: the job that holds the unique_key kept moving', entry_point),
                    hint = 'Nothing was enqueued. Try again.';
            end if;
            -- A second producer of the same new key waits here until the first commits or rolls
            -- back.
            insert into flyball.unique_holder as u (digest, job_id, expires_at, since) values (digest, job_id, until, burst_start)
            on conflict do nothing;
            exit when found;

            if replaces then
                -- Producers that replace run one after another, so that the key cannot pass to
                -- another job during the search for this one.
                select u.job_id, u.expires_at, u.since into holder from flyball.unique_holder u where u.digest = digest for update;
                continue when not found;
                taken := flyball.take_waiting(holder.job_id);
                replaced := taken.job_id is not null;
                exit when replaced;
            else
                select u.job_id, u.expires_at, u.since into holder from flyball.unique_holder u where u.digest = digest;
                continue when not found;
            end if;

            -- One statement and so one snapshot, in which a job is in one table only.
            select exists (select from flyball.scheduled s where s.job_id = holder.job_id)
                    or exists (
                        select from flyball.ready r
                        where r.lane_id in ((select j.lane_id from flyball.job j where j.id = holder.job_id),
                                (select j.admission_lane from flyball.job j where j.id = holder.job_id))
                            and r.priority = (select j.priority from flyball.job j where j.id = holder.job_id) and r.job_id = holder.job_id
                    ) as is_waiting,
                exists (select from flyball.lease l where l.job_id = holder.job_id) as is_running
            into holder_state;
            continue when replaces and holder_state.is_waiting;
            if not replaces and (holder.expires_at > now() or holder.expires_at is null and (holder_state.is_waiting or holder_state.is_running)) then
                job_id := holder.job_id;
                duplicate := true;
                return;
            end if;

            -- The key passes to the new job: it has expired, or the job that held it is running or
            -- has ended.
            update flyball.unique_holder as u set job_id = job_id, expires_at = until, since = burst_start
            where u.digest = digest and u.job_id = holder.job_id and u.expires_at is not distinct from holder.expires_at;
            exit when found;
        end loop;
    end if;

    if replaced then
        -- The waiting job keeps its place and its id and gets the new arguments. Workers read it
        -- only after they claim the row that is inserted below, so none can run it with the old
        -- arguments.
        job_id := holder.job_id;
        duplicate := true;
        -- The burst of the waiting job continues. A job that was not delayed is not a burst, and
        -- one that was tried and failed is over: then a new burst begins, with all attempts.
        if debounce is not null and taken.attempt = 0 then
            burst_start := coalesce(holder.since, burst_start);
        end if;
        due_at := least(due_at, burst_start + coalesce(debounce_max, debounce * 10));
        -- A job that replaces holds its key until it has ended. One that was taken for a time stays taken
        -- for it, but would be free too early if that time is over before the job can run.
        until := case when holder.expires_at > greatest(due_at, now()) then holder.expires_at end;
        update flyball.unique_holder as u set since = burst_start, expires_at = until
        where u.digest = digest and (u.since is distinct from burst_start or u.expires_at is distinct from until);
        select o.* into job from flyball.job o where o.id = job_id;
        job.unique_until := until;
        job.lane_id := lane;
        job.priority := priority;
        job.max_attempts := max_attempts;
        job.cost := cost;
        job.run_at := due_at;
        job.throttle := throttle;
        job.key := key;
        job.args := args;
        job.traceparent := traceparent;
        job.timeout_s := extract(epoch from timeout);
        job.module := module;
        job.admission_lane := waiting_lane;
        job.tags := flyball.tags_of(options);
        job.after := null;
        job.after_failure := null;
        job.on_complete := null;
        job.on_dead := null;
        job.webhook_secret := null;
        job.retry := flyball.retry_of(options);
        perform flyball.rewrite_job(job, true);
    else
        if to_regclass('flyball.job_' || (job_id >> 38)) is null then
            perform flyball.ensure_day(job_id >> 38);
        end if;
        if awaited is null and (due_at is null or due_at <= now()) then
            backlog := flyball.check_backlog(entry_point, throttle, key, lane, 1);
        end if;
        if kind = 'notification' and owner_tenant <> '' then
            perform flyball.record_pending(entry_point, owner_tenant, array[job_id], priority = 0);
        end if;
        insert into flyball.job
            (id, lane_id, priority, max_attempts, cost, run_at, kind, throttle, key, tenant, unique_key, unique_until, args,
             traceparent, timeout_s, module, admission_lane, group_id, tags,
             after, after_failure, on_complete, on_dead, webhook_secret, retry)
        values (job_id, lane, priority, max_attempts, cost, due_at, kind, throttle, key, owner_tenant, digest, until, args,
            traceparent, extract(epoch from timeout), module, waiting_lane, group_id,
            -- A first call costs as much as the insert of a row, whatever it is given.
            case when options is not null then flyball.tags_of(options) end,
            case when options is not null then flyball.after_of(options) end, options ->> 'after_failure',
            options ->> 'on_complete', options ->> 'on_dead', options ->> 'webhook_secret',
            case when options is not null then flyball.retry_of(options) end);
        if group_id is not null then
            perform flyball.add_members(group_id, array[job_id]);
        end if;
        if options ?| array['on_complete', 'on_dead'] then
            insert into flyball.webhook_job (job_id) values (job_id);
        end if;
    end if;

    if awaited is not null then
        insert into flyball.scheduled (job_id, run_at, lane_id, priority, cost, retry, holds_unique, turn)
        values (job_id, coalesce(due_at, now()), target_lane, priority, cost, false, unique_key is not null and unique_for is null,
            priority - 8);
        perform flyball.add_waits(job_id, awaited, options);
    elsif flyball.needs_plan(kind, args) then
        insert into flyball.scheduled (job_id, run_at, lane_id, priority, cost, retry, holds_unique, turn)
        values (job_id, greatest(due_at, now()), target_lane, priority, cost, false, unique_key is not null and unique_for is null,
            priority - 4);
        if due_at is null or due_at <= now() then
            perform pg_notify('flyball_plan', '');
        end if;
    elsif due_at is null or due_at <= now() then
        insert into flyball.ready (lane_id, priority, job_id, cost, holds_unique)
        values (target_lane, priority, job_id, cost, unique_key is not null and unique_for is null);
        -- Producers notify only while a dispatcher sleeps: an active one sees new jobs by their
        -- ids. A job with an old id that just came to this lane would be found late.
        if replaced and (taken.run_at is not null or taken.lane_id <> target_lane) or coalesce((select d.asleep from flyball.wakeup d), true) then
            perform pg_notify('flyball', target_lane::text);
        end if;
    else
        insert into flyball.scheduled (job_id, run_at, lane_id, priority, cost, retry, holds_unique)
        values (job_id, due_at, target_lane, priority, cost, false, unique_key is not null and unique_for is null);
    end if;
end $$;

-- Enqueues one job with validated arguments by all rules; the entry points call it for anything
-- beyond a plain insert. If the throttle's knob `over_limit` is merge, a job with a unique key
-- replaces the waiting one, as with `replace`, and the history of that one records it. The recorded
-- knobs are at most a second or so old; an unreadable knob counts as wait.
create function flyball.admit(
    entry_point text,
    kind text, args jsonb, throttle text, key text, priority int, run_at timestamptz, max_attempts int,
    unique_key text, unique_for interval, cost float8, traceparent text, timeout interval,
    debounce interval, debounce_max interval, replace boolean, owner text, module text default '', admitted boolean default false,
    group_id bigint default null, options jsonb default null,
    out job_id bigint, out duplicate boolean, out replaced boolean, out backlog jsonb)
language plpgsql volatile as $$
#variable_conflict use_variable
declare
    -- A member does not take the place of a job that its group does not count, and one that waits for
    -- others or has webhooks not that of a job without.
    merges constant boolean := unique_key is not null and unique_for is null and debounce is null and not replace and group_id is null
        and not coalesce(options ?| array['after', 'on_complete', 'on_dead'], false)
        and exists (select from flyball.knobs b where b.throttle = throttle and b.fields ->> 'over_limit' = 'merge');
begin
    select a.job_id, a.duplicate, a.replaced, a.backlog into job_id, duplicate, replaced, backlog
    from flyball.admit_unchecked(entry_point, kind, args, throttle, key, priority, run_at, max_attempts, unique_key, unique_for, cost,
        traceparent, timeout, debounce, debounce_max, replace or merges, owner, module, admitted, group_id, options) a;
    if merges and replaced then
        insert into flyball.attempt (job_id, attempt, outcome) values (job_id, 0, 'merged');
    end if;
end $$;

-- Enqueues one job in the caller's own transaction. It runs with the rights of the schema's owner,
-- so a role needs only `grant usage on schema flyball`: it can enqueue, and neither read nor change
-- what others have enqueued. The fast path is for jobs that every role may enqueue; all others are
-- checked in full. A message of the default priority gets the priority in its arguments.
create function flyball.enqueue(
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
    "group" bigint default null,
    tags text[] default null,
    after bigint[] default null,
    after_failure text default null,
    on_complete text default null,
    on_dead text default null,
    webhook_secret text default null,
    retry jsonb default null,
    out job_id bigint,
    out duplicate boolean,
    out replaced boolean,
    out backlog jsonb)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    issue       record;
    must_notify boolean;
    options     jsonb;
begin
    if kind = 'notification' and priority = 1 then
        priority := flyball.notification_priority(args);
    end if;

    if run_at is null and unique_key is null and unique_for is null and debounce is null and debounce_max is null and not replace
        and "group" is null and tags is null and after is null and after_failure is null
        and on_complete is null and on_dead is null and webhook_secret is null and retry is null
    then
        -- The whole of a plain job. It inserts nothing if `check_job` might refuse, if today's
        -- partition is missing, or if the throttle limits its backlog or its costs. The length of
        -- the arguments' text is measured: their size as jsonb says little, because 1e100000 takes
        -- as much as 1.5, and a value from a table may be compressed.
        with inserted as (
            insert into flyball.job
                (id, lane_id, priority, max_attempts, cost, kind, throttle, key, tenant, args, traceparent, timeout_s)
            select flyball.next_id(), flyball.lane_of(throttle, key), priority, max_attempts, cost, kind, throttle, key,
                flyball.caller_tenant(), args, traceparent, extract(epoch from timeout)
            from flyball.kind k
            where k.name = kind and case when k.public then true else flyball.may_enqueue(kind) end
                and octet_length(args::text) <= 262144
                and throttle ~ '^[A-Za-z0-9._/:{}-]+$' and octet_length(throttle) <= 128 and left(throttle, 4) <> 'api:'
                and left(throttle, 7) not in ('notify:', 'tenant:') and (kind <> 'notification' or flyball.caller_tenant() = '' and not flyball.needs_plan(kind, args))
                and not flyball.is_of_admission(throttle)
                and octet_length(key) <= 512
                and priority between 0 and 3
                and max_attempts between 1 and 1000
                and cost > 0 and cost <= 1
                and (traceparent is null or flyball.is_traceparent(traceparent))
                and (timeout is null or timeout >= interval '1 microsecond' and timeout <= interval '366 days')
                and to_regclass('flyball.job_' || flyball.day_of(now())) is not null
                and not exists (select from flyball.knobs b where b.throttle = throttle and b.fields ?| array['max_backlog', 'max_cost'])
            returning id, lane_id
        )
        insert into flyball.ready as r (lane_id, priority, job_id, cost, holds_unique)
        select inserted.lane_id, priority, inserted.id, cost, false from inserted
        returning r.job_id, false, false, (select d.asleep from flyball.wakeup d) is distinct from false
        into job_id, duplicate, replaced, must_notify;
        if must_notify then
            perform pg_notify('flyball', flyball.lane_of(throttle, key)::text);
            return;
        elsif must_notify is not null then
            return;
        end if;
    end if;

    select * into issue from flyball.check_job(kind, args, throttle, key, priority, max_attempts, unique_key, unique_for, cost,
        run_at, traceparent, timeout, debounce, debounce_max, replace);
    if issue.field is null then
        options := flyball.options_of(jsonb_build_object('tags', tags, 'after', after, 'after_failure', after_failure,
            'on_complete', on_complete, 'on_dead', on_dead, 'webhook_secret', webhook_secret,
            'retry', retry));
        select o.field, o.message, '22023' as code into issue from flyball.check_options(options) o;
    end if;
    if issue.field is null and options ? 'after' then
        select 'after' as field, a.message, '22023' as code into issue
        from flyball.after_problem(flyball.absent_of(flyball.after_of(options), flyball.caller_tenant()),
            cardinality(flyball.after_of(options)) > 0 and (replace or debounce is not null)) as a(message)
        where a.message is not null;
    end if;
    if issue.field is null and options ?| array['on_complete', 'on_dead'] then
        select w.field, w.message, w.code into issue
        from flyball.check_webhooks(options, replace or debounce is not null, flyball.is_operator()) w;
    end if;
    if issue.field is null and "group" is not null then
        select 'group' as field, g.message, '22023' as code into issue
        from flyball.check_group("group", flyball.unique_owner(), replace or debounce is not null) as g(message)
        where g.message is not null;
    end if;
    if issue.field is not null then
        raise exception using
            errcode = issue.code,
            message = format('enqueue: %s: %s', issue.field, issue.message),
            column = issue.field,
            hint = 'Nothing was enqueued.';
    end if;
    select a.job_id, a.duplicate, a.replaced, a.backlog into job_id, duplicate, replaced, backlog
    from flyball.admit('enqueue', kind, args, throttle, key, priority, run_at, max_attempts, unique_key, unique_for, cost,
        traceparent, timeout, debounce, debounce_max, replace, flyball.unique_owner(), flyball.caller_module(), group_id => "group",
        options => options) a;
    if flyball.needs_plan(kind, args) then
        perform flyball.refuse_capped(flyball.caller_tenant(), array[job_id], array[kind], array[args], array[coalesce(now() + debounce, run_at)],
            array[duplicate]);
    end if;
end $$;

-- Refuses all jobs of one call for what is wrong with one of them.
create function flyball.refuse_element(n bigint, field text, message text, code text default '22023') returns void
language plpgsql as $$
begin
    raise exception using
        errcode = code,
        message = format('enqueue_many: jobs[%s]%s: %s', n, coalesce('.' || nullif(field, ''), ''), message),
        column = field,
        table = n::text,
        hint = 'Nothing was enqueued.';
end $$;

-- Enqueues validated jobs for an owner of unique keys, which names the tenant of the jobs as well:
-- the functions below determine the caller; the HTTP API knows its tokens. It runs with the rights
-- of its caller, so calling it directly gains nothing.
create function flyball.enqueue_rows_as(
    owner text, trusted boolean,
    kinds text[], args jsonb[], throttles text[], keys text[], priorities int[], run_ats timestamptz[], max_attempts int[],
    unique_keys text[], unique_fors float8[], costs float8[], traceparents text[], timeouts float8[],
    debounces float8[], debounce_maxes float8[], replaces boolean[], module text default '', admitted boolean default false,
    groups bigint[] default null, options jsonb[] default null)
returns table (job_id bigint, duplicate boolean, replaced boolean, backlog jsonb)
language plpgsql volatile set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
    size          constant int := coalesce(cardinality(kinds), 0);
    today         constant bigint := flyball.day_of(now());
    immediate     constant boolean := run_ats is not null and array_remove(run_ats, null) = '{}';
    plain         constant boolean := unique_keys is not null and array_remove(unique_keys, null) = '{}';
    untraced      constant boolean := array_remove(traceparents, null) = '{}';
    untimed       constant boolean := array_remove(timeouts, null) = '{}';
    -- Null if no job is to join a group.
    joins         constant bigint[] := case when array_remove(groups, null) <> '{}' then groups end;
    -- The options that are given: without nulls, which are like none. Null if no job has any.
    extras        jsonb[];
    -- For which others each job waits, as an array; null if none waits.
    waits         jsonb[];
    -- True if any job has webhooks.
    calls         boolean := false;
    owner_tenant  constant text := flyball.tenant_of(owner);
    sender_module constant text := module;
    messages      constant boolean := owner_tenant <> '' and 'notification' = any (kinds);
    -- The messages that must be planned; null if there are none.
    unplanned     boolean[] := case when 'notification' = any (kinds) then array(
        select flyball.needs_plan(g.kind, g.args) from unnest(kinds, args) with ordinality as g(kind, args, n) order by g.n) end;
    -- The lane in which messages of a tenant wait, unless the entry point took their slots.
    waiting_lane  constant bigint := case when messages and not admitted
        then flyball.lane_of(flyball.admission_throttle(owner_tenant), module) end;
    one           record;
    result        record;
    lane_backlog  jsonb;
    place         bigint;
    ids           bigint[];
    lanes         bigint[];
    -- The lanes in which the jobs stand first.
    target_lanes  bigint[];
    -- True if they all wait behind others, for which a worker comes anyway.
    all_behind    boolean := false;
    duplicates    boolean[];
    replacements  boolean[];
    backlogs      jsonb[];
begin
    if unplanned is not null and true <> all (unplanned) then
        unplanned := null;
    end if;
    if size > 10000 then
        raise exception using errcode = '22023', column = '',
            message = format('enqueue_many: jobs: has %s elements; at most 10000 are allowed', size),
            hint = 'Nothing was enqueued.';
    elsif array[cardinality(args), cardinality(throttles), cardinality(keys), cardinality(priorities), cardinality(run_ats),
            cardinality(max_attempts), cardinality(unique_keys), cardinality(unique_fors), cardinality(costs),
            cardinality(traceparents), cardinality(timeouts), cardinality(debounces), cardinality(debounce_maxes),
            cardinality(replaces)] is distinct from array_fill(size, array[14]) or cardinality(groups) <> size
        or cardinality(options) <> size
    then
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

    -- Each column is checked as a whole, which is far cheaper than checking each job. Only if a
    -- column holds a suspicious value are the jobs checked one by one.
    if (plain and immediate
        and array_remove(unique_fors, null) = '{}' and array_remove(debounces, null) = '{}' and array_remove(debounce_maxes, null) = '{}'
        and false = all (replaces)
        and case when kinds[1] = all (kinds) then exists (select from flyball.kind k where k.name = kinds[1] and (trusted or k.public))
                 else kinds <@ array(select k.name from flyball.kind k where k.name in (select distinct unnest(kinds)) and (trusted or k.public)) end
        and array_position(args, null) is null
        and 262144 >= all (select octet_length(a::text) from unnest(args) as a)
        and case when throttles[1] = all (throttles) then throttles[1] ~ '^[A-Za-z0-9._/:{}-]+$' and octet_length(throttles[1]) <= 128
                      and not flyball.is_of_admission(throttles[1])
                      and (trusted or left(throttles[1], 4) <> 'api:' and left(throttles[1], 7) not in ('notify:', 'tenant:'))
                 else true = all (select t ~ '^[A-Za-z0-9._/:{}-]+$' and octet_length(t) <= 128 and not flyball.is_of_admission(t)
                                      and (trusted or left(t, 4) <> 'api:' and left(t, 7) not in ('notify:', 'tenant:'))
                                  from (select distinct unnest(throttles) as t) as t) end
        and 512 >= all (select octet_length(k) from unnest(keys) as k)
        and 0 <= all (priorities) and 3 >= all (priorities)
        and (trusted or owner_tenant = '' or 0 <> all (priorities) or 'notification' <> all (kinds))
        and 1 <= all (max_attempts) and 1000 >= all (max_attempts)
        and 0 < all (costs) and 1 >= all (costs)
        and not exists (select from flyball.knobs b where b.throttle = any(array(select distinct unnest(throttles))) and b.fields ? 'max_cost')
        and (untraced or true = all (select flyball.is_traceparent(t) from unnest(array_remove(traceparents, null)) as t))
        and (untimed or 1e-6 <= all (array_remove(timeouts, null)) and 366 * 86400.0 >= all (array_remove(timeouts, null)))) is not true
    then
        for one in
            select g.n, c.field, c.message, c.code
            from unnest(kinds, args, throttles, keys, priorities, run_ats, max_attempts, unique_keys, unique_fors, costs,
                    traceparents, timeouts, debounces, debounce_maxes, replaces) with ordinality
                as g(kind, args, throttle, key, priority, run_at, max_attempts, unique_key, unique_for, cost, traceparent,
                    timeout, debounce, debounce_max, replace, n)
            cross join lateral flyball.check_job(g.kind, g.args, g.throttle, g.key, g.priority, g.max_attempts, g.unique_key,
                flyball.span(g.unique_for), g.cost, g.run_at, g.traceparent, flyball.span(g.timeout), flyball.span(g.debounce),
                flyball.span(g.debounce_max), g.replace, owner, trusted) c
            where c.field is not null
            order by g.n
            limit 1
        loop
            perform flyball.refuse_element(one.n - 1, one.field, one.message, one.code);
        end loop;
    end if;

    if array_remove(options, null) <> '{}' then
        for one in
            select g.n, c.field, c.message
            from unnest(options) with ordinality as g(options, n)
            cross join lateral flyball.check_options(g.options) c
            where g.options is not null and c.field is not null
            order by g.n
            limit 1
        loop
            perform flyball.refuse_element(one.n - 1, one.field, one.message);
        end loop;
        -- A null within is like none, as well.
        extras := array(
            select nullif(nullif(jsonb_strip_nulls(g.options), '{}'), 'null') from unnest(options) with ordinality as g(options, n) order by g.n);
        extras := case when array_remove(extras, null) <> '{}' then extras end;
    end if;
    if extras is not null then
        for one in
            select g.n, c.field, c.message, c.code
            from unnest(extras, replaces, debounces) with ordinality as g(options, replace, debounce, n)
            cross join lateral flyball.check_webhooks(g.options, g.replace or g.debounce is not null, trusted) c
            where c.field is not null
            order by g.n
            limit 1
        loop
            perform flyball.refuse_element(one.n - 1, one.field, one.message, one.code);
        end loop;
        calls := exists (select from unnest(extras) as g(options) where g.options ?| array['on_complete', 'on_dead']);
    end if;

    if extras is not null and exists (select from unnest(extras) as g(options) where g.options ? 'after') then
        for one in
            select g.n, flyball.after_problem(g.absent, g.replaces) as message
            from (
                select a.n, a.replaces, case when (select 1 from flyball.job j where j.id = a.id and j.tenant = owner_tenant limit 1) is null
                    then a.id end as absent
                from (
                    select g.n, g.replace or g.debounce is not null as replaces, unnest(flyball.after_of(g.options)) as id
                    from unnest(extras, replaces, debounces) with ordinality as g(options, replace, debounce, n)
                    where g.options ? 'after'
                ) a
            ) g
            where g.absent is not null or g.replaces
            order by g.n, g.absent
            limit 1
        loop
            perform flyball.refuse_element(one.n - 1, 'after', one.message);
        end loop;
        with pairs as materialized (
            select g.n, g.options ->> 'after_failure' = 'run' as runs, unnest(flyball.after_of(g.options)) as id
            from unnest(extras, unique_keys) with ordinality as g(options, unique_key, n)
            where g.unique_key is null and g.options ? 'after'
        ),
        held as (
            select p.n, to_jsonb(array_agg(p.id order by p.id)) as ids
            from pairs p
            join flyball.ends_of(array(select distinct q.id from pairs q)) e on e.job_id = p.id
            where e.state = 'live' or e.state <> 'completed' and p.runs is not true
            group by p.n
        )
        select array_agg(h.ids order by k.n) into waits
        from generate_series(1, size) as k(n)
        left join held h on h.n = k.n;
        waits := case when array_remove(waits, null) <> '{}' then waits end;
    end if;

    if joins is not null then
        -- In the order of their numbers, as everywhere.
        for one in
            select g.n, c.message
            from (
                select j.id, bool_or(j.replaces) as replaces, coalesce(min(j.n) filter (where j.replaces), min(j.n)) as n
                from (
                    select u.id, u.n, u.replace or u.debounce is not null as replaces
                    from unnest(joins, replaces, debounces) with ordinality as u(id, replace, debounce, n)
                    where u.id is not null
                ) as j
                group by j.id
                order by j.id
            ) g
            cross join lateral flyball.check_group(g.id, owner, g.replaces) as c(message)
            where c.message is not null
            order by g.n
            limit 1
        loop
            perform flyball.refuse_element(one.n - 1, 'group', one.message);
        end loop;
    end if;

    if to_regclass('flyball.job_' || today) is null then
        perform flyball.ensure_day(today);
    end if;

    -- Each lane with a limit is checked once, before jobs are added to it.
    if exists (
        select from (select distinct unnest(throttles)) as t(name)
        join flyball.knobs b on b.throttle = t.name and b.fields ? 'max_backlog'
    ) then
        backlogs := array_fill(null::jsonb, array[size]);
        for one in
            select g.throttle, g.key, flyball.lane_of(g.throttle, g.key) as lane, array_agg(g.n) as places
            from unnest(throttles, keys, run_ats, unique_keys, waits) with ordinality as g(throttle, key, run_at, unique_key, waits, n)
            where g.unique_key is null and g.waits is null and (g.run_at is null or g.run_at <= now())
            group by 1, 2, 3
            order by 3
        loop
            lane_backlog := flyball.check_backlog('enqueue_many', one.throttle, one.key, one.lane, cardinality(one.places));
            if lane_backlog is not null then
                foreach place in array one.places loop
                    backlogs[place] := lane_backlog;
                end loop;
            end if;
        end loop;
    end if;

    ids := case when joins is null and not calls then array(select (today << 38) | (nextval('flyball.job_seq') << 1) from generate_series(1, size))
        else array(
            select (today << 38) | (nextval('flyball.job_seq') << 1)
                | (g.id is not null or coalesce(g.options ?| array['on_complete', 'on_dead'], false))::int
            from unnest(kinds, joins, extras) with ordinality as g(kind, id, options, n)
            order by g.n) end;
    lanes := case when throttles[1] = all (throttles) and keys[1] = all (keys)
        then array_fill(flyball.lane_of(throttles[1], keys[1]), array[size])
        else array(select flyball.lane_of(g.throttle, g.key) from (select unnest(throttles) as throttle, unnest(keys) as key) as g) end;

    target_lanes := case when waiting_lane is null then lanes
        else array(select case when g.kind = 'notification' then waiting_lane else g.lane end
                   from unnest(kinds, lanes) with ordinality as g(kind, lane, n) order by g.n) end;
    if waiting_lane is not null and 'notification' = all (kinds) then
        all_behind := flyball.has_waiting(owner_tenant, sender_module);
    end if;
    if messages then
        perform flyball.record_pending('enqueue_many', owner_tenant, m.ids, m.urgent)
        from (
            select array_agg(g.id) as ids, bool_and(g.priority = 0) as urgent
            from unnest(ids, kinds, priorities, unique_keys) as g(id, kind, priority, unique_key)
            where g.kind = 'notification' and g.unique_key is null
        ) m
        where m.ids is not null;
    end if;

    if plain and immediate and untraced and untimed and not messages and unplanned is null and joins is null and extras is null then
        insert into flyball.job (id, lane_id, priority, max_attempts, cost, kind, throttle, key, tenant, args)
        select unnest(ids), unnest(lanes), unnest(priorities), unnest(max_attempts), unnest(costs), unnest(kinds), unnest(throttles),
            unnest(keys), owner_tenant, unnest(args);
        insert into flyball.ready (lane_id, priority, job_id, cost, holds_unique)
        select unnest(lanes), unnest(priorities), unnest(ids), unnest(costs), false;
    else
        insert into flyball.job
            (id, lane_id, priority, max_attempts, cost, run_at, kind, throttle, key, tenant, args, traceparent, timeout_s,
             module, admission_lane, group_id, tags,
             after, after_failure, on_complete, on_dead, webhook_secret, retry)
        select g.id, g.lane, g.priority, g.max_attempts, g.cost, g.run_at, g.kind, g.throttle, g.key, owner_tenant, g.args,
            g.traceparent, g.timeout, sender_module, case when g.kind = 'notification' then waiting_lane end, g.group_id,
            -- A first call costs as much as the insert of a row, whatever it is given.
            case when g.options is not null then flyball.tags_of(g.options) end,
            case when g.options is not null then flyball.after_of(g.options) end, g.options ->> 'after_failure',
            g.options ->> 'on_complete', g.options ->> 'on_dead', g.options ->> 'webhook_secret',
            case when g.options is not null then flyball.retry_of(g.options) end
        from (
            select unnest(ids) as id, unnest(lanes) as lane, unnest(priorities) as priority, unnest(max_attempts) as max_attempts,
                unnest(costs) as cost, unnest(run_ats) as run_at, unnest(kinds) as kind, unnest(throttles) as throttle,
                unnest(keys) as key, unnest(args) as args, unnest(traceparents) as traceparent, unnest(timeouts) as timeout,
                unnest(unique_keys) as unique_key, unnest(joins) as group_id,
                unnest(extras) as options
        ) as g
        where g.unique_key is null;
        if joins is not null then
            perform flyball.add_members(g.id, array_agg(g.job_id))
            from unnest(joins, ids, unique_keys) as g(id, job_id, unique_key)
            where g.id is not null and g.unique_key is null
            group by g.id;
        end if;
        if calls then
            insert into flyball.webhook_job (job_id)
            select g.id from unnest(ids, unique_keys, extras) as g(id, unique_key, options)
            where g.unique_key is null and g.options ?| array['on_complete', 'on_dead'];
        end if;
        insert into flyball.ready (lane_id, priority, job_id, cost, holds_unique)
        select g.lane, g.priority, g.id, g.cost, false
        from (
            select unnest(target_lanes) as lane, unnest(priorities) as priority, unnest(ids) as id, unnest(costs) as cost,
                unnest(run_ats) as run_at, unnest(unique_keys) as unique_key, unnest(unplanned) as unplanned, unnest(waits) as waits
        ) as g
        where g.unique_key is null and (g.run_at is null or g.run_at <= now()) and g.unplanned is not true
            and g.waits is null;
    end if;

    if not immediate or unplanned is not null or waits is not null then
        insert into flyball.scheduled (job_id, run_at, lane_id, priority, cost, retry, holds_unique, turn)
        select g.id, greatest(g.run_at, now()), g.lane, g.priority, g.cost, false, false, case when g.waits is not null then g.priority - 8
            when g.unplanned then g.priority - 4 else 0 end
        from unnest(ids, run_ats, target_lanes, priorities, costs, unique_keys, unplanned, waits)
            as g(id, run_at, lane, priority, cost, unique_key, unplanned, waits)
        where g.unique_key is null and (g.run_at > now() or g.unplanned or g.waits is not null);
    end if;
    if waits is not null then
        insert into flyball.job_after (job_id, after_id, runs_anyway)
        select g.id, e.id::bigint, coalesce(g.options ->> 'after_failure' = 'run', false)
        from unnest(ids, waits, extras) as g(id, waits, options)
        cross join lateral jsonb_array_elements_text(g.waits) as e(id)
        where g.waits is not null;
    end if;
    if unplanned is not null then
        perform pg_notify('flyball_plan', '');
    end if;

    if not all_behind and coalesce((select d.asleep from flyball.wakeup d), true) then
        -- No lane is named if several got jobs.
        perform pg_notify('flyball', case when min(g.lane) = max(g.lane) then min(g.lane)::text else '' end)
        from unnest(target_lanes, run_ats, unique_keys, unplanned, waits) as g(lane, run_at, unique_key, unplanned, waits)
        where g.unique_key is null and (g.run_at is null or g.run_at <= now()) and g.unplanned is not true and g.waits is null
        having count(*) > 0;
    end if;

    if plain then
        return query select unnest(ids), false, false, unnest(backlogs);
        return;
    end if;

    duplicates := array_fill(false, array[size]);
    replacements := array_fill(false, array[size]);
    backlogs := coalesce(backlogs, array_fill(null::jsonb, array[size]));
    -- Keys are taken in the order of their digests, as everywhere: transactions that want the same
    -- keys wait and never deadlock.
    for one in
        select g.*
        from unnest(kinds, args, throttles, keys, priorities, run_ats, max_attempts, unique_keys, unique_fors, costs, traceparents,
                timeouts, debounces, debounce_maxes, replaces, joins, extras) with ordinality
            as g(kind, args, throttle, key, priority, run_at, max_attempts, unique_key, unique_for, cost, traceparent,
                timeout, debounce, debounce_max, replace, group_id, options, n)
        where g.unique_key is not null
        order by flyball.unique_digest(owner, g.kind, g.unique_key), g.n
    loop
        result := flyball.admit('enqueue_many', one.kind, one.args, one.throttle, one.key, one.priority, one.run_at,
            one.max_attempts, one.unique_key, flyball.span(one.unique_for), one.cost, one.traceparent, flyball.span(one.timeout),
            flyball.span(one.debounce), flyball.span(one.debounce_max), one.replace, owner, sender_module,
            admitted, one.group_id, one.options);
        ids[one.n] := result.job_id;
        duplicates[one.n] := result.duplicate;
        replacements[one.n] := result.replaced;
        backlogs[one.n] := result.backlog;
    end loop;
    return query select * from unnest(ids, duplicates, replacements, backlogs);
end $$;

-- Enqueues many jobs given column by column, all or none; element n of every array belongs to job
-- n. For programs: it avoids JSON on both sides. Durations are in seconds. Returns one row per job,
-- in order.
create function flyball.enqueue_rows(
    kinds text[], args jsonb[], throttles text[], keys text[], priorities int[], run_ats timestamptz[], max_attempts int[],
    unique_keys text[], unique_fors float8[], costs float8[], traceparents text[], timeouts float8[],
    debounces float8[], debounce_maxes float8[], replaces boolean[], groups bigint[] default null,
    options jsonb[] default null)
returns table (job_id bigint, duplicate boolean, replaced boolean, backlog jsonb)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    ids       bigint[];
    repeats   boolean[];
    replaced  boolean[];
    backlogs  jsonb[];
begin
    if kinds is null or 'notification' <> all (kinds) then
        return query select * from flyball.enqueue_rows_as(flyball.unique_owner(), flyball.is_operator(), kinds, args, throttles, keys, priorities,
            run_ats, max_attempts, unique_keys, unique_fors, costs, traceparents, timeouts, debounces, debounce_maxes, replaces,
            flyball.caller_module(), false, groups, options);
        return;
    end if;
    select array_agg(e.job_id order by e.n), array_agg(e.duplicate order by e.n), array_agg(e.replaced order by e.n), array_agg(e.backlog order by e.n)
    into ids, repeats, replaced, backlogs
    from flyball.enqueue_rows_as(flyball.unique_owner(), flyball.is_operator(), kinds, args, throttles, keys, priorities,
        run_ats, max_attempts, unique_keys, unique_fors, costs, traceparents, timeouts, debounces, debounce_maxes, replaces,
        flyball.caller_module(), false, groups, options) with ordinality as e(job_id, duplicate, replaced, backlog, n);
    perform flyball.refuse_capped(flyball.caller_tenant(), ids, kinds, args, run_ats, repeats);
    return query select * from unnest(ids, repeats, replaced, backlogs);
end $$;

-- Enqueues many jobs, all or none, in the caller's own transaction; returns one row per job, in
-- order.
create or replace function flyball.enqueue_many(jobs jsonb)
returns table (job_id bigint, duplicate boolean, replaced boolean, backlog jsonb)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    allowed           constant text[] := array['kind', 'args', 'throttle', 'key', 'priority', 'run_at', 'max_attempts', 'unique_key',
        'unique_for', 'cost', 'traceparent', 'timeout', 'debounce', 'debounce_max', 'replace', 'group',
        'tags', 'after', 'after_failure', 'on_complete', 'on_dead', 'webhook_secret', 'retry'];
    -- The fields with a column of their own; the others are the options of the job.
    plain_fields      constant text[] := allowed[:16];
    extra_fields      constant text[] := allowed[17:];
    duration_fields   constant text[] := array['unique_for', 'timeout', 'debounce', 'debounce_max'];
    -- Most jobs have only these, which are read in half of the time.
    common_fields     constant text[] := allowed[:5];
    size              int;
    is_valid          boolean := false;
    c                 record;
    j                 jsonb;
    at                int := -1;
    name              text;
    value             jsonb;
    type              text;
    expected_type     text;
    -- Timestamps as JSON writes a timestamptz, as Postgres prints it, and as RFC 3339 says;
    -- "yesterday" and "now" are not accepted.
    timestamp_pattern constant text := '^\d{4,6}-\d\d-\d\d[Tt ]\d\d:\d\d(:\d\d(\.\d+)?)? ?([Zz]|[+-]\d\d(:?\d\d)?)?$';
    out_of_range      text;
    problem           text;
begin
    if jobs is null or jsonb_typeof(jobs) <> 'array' then
        raise exception using errcode = '22023', column = '',
            message = 'enqueue_many: jobs: must be a JSON array of jobs', hint = 'Nothing was enqueued.';
    elsif jsonb_array_length(jobs) > 10000 then
        raise exception using errcode = '22023', column = '',
            message = format('enqueue_many: jobs: has %s elements; at most 10000 are allowed', jsonb_array_length(jobs)),
            hint = 'Nothing was enqueued.';
    elsif jsonb_array_length(jobs) = 0 then
        return;
    end if;

    -- All elements at once. Type errors are not reported yet at this point.
    if jsonb_typeof(jobs -> 0) = 'object' and (jobs -> 0) - common_fields = '{}' then
        begin
            select bool_and(
                    a.j - common_fields = '{}'
                    and coalesce(jsonb_typeof(a.j -> 'kind') = 'string', false)
                    and coalesce(jsonb_typeof(a.j -> 'throttle') = 'string', true)
                    and coalesce(jsonb_typeof(a.j -> 'key') = 'string', true)
                    and coalesce(jsonb_typeof(a.j -> 'priority') = 'number'
                        and (a.j -> 'priority')::numeric = trunc((a.j -> 'priority')::numeric), true)
                ) as is_valid,
                array_agg(a.j ->> 'kind') as kinds, array_agg(coalesce(a.j -> 'args', '{}')) as args,
                array_agg(coalesce(a.j ->> 'throttle', 'default')) as throttles, array_agg(coalesce(a.j ->> 'key', '')) as keys,
                array_agg(coalesce((a.j -> 'priority')::int, 1)) as priorities
            into c
            from jsonb_array_elements(jobs) as a(j);
            is_valid := c.is_valid;
        exception when data_exception then
            is_valid := false;
        end;
        if is_valid then
            size := cardinality(c.kinds);
            return query select * from flyball.enqueue_rows(c.kinds, c.args, c.throttles, c.keys, c.priorities,
                array_fill(null::timestamptz, array[size]), array_fill(10, array[size]), array_fill(null::text, array[size]),
                array_fill(null::float8, array[size]), array_fill(1::float8, array[size]), array_fill(null::text, array[size]),
                array_fill(null::float8, array[size]), array_fill(null::float8, array[size]), array_fill(null::float8, array[size]),
                array_fill(false, array[size]));
            return;
        end if;
    end if;

    begin
        select bool_and(
                a.j - allowed = '{}'
                and coalesce(jsonb_typeof(a.j -> 'kind') = 'string', false)
                and coalesce(jsonb_typeof(a.j -> 'throttle') = 'string', true)
                and coalesce(jsonb_typeof(a.j -> 'key') = 'string', true)
                and coalesce(jsonb_typeof(a.j -> 'priority') = 'number' and f.priority = trunc(f.priority), true)
                and coalesce(jsonb_typeof(a.j -> 'max_attempts') = 'number' and f.max_attempts = trunc(f.max_attempts), true)
                and coalesce(jsonb_typeof(a.j -> 'cost') = 'number', true)
                and coalesce(jsonb_typeof(a.j -> 'replace') = 'boolean', true)
                and coalesce(jsonb_typeof(a.j -> 'run_at') = 'null' or a.j ->> 'run_at' ~ timestamp_pattern, true)
                and coalesce(jsonb_typeof(a.j -> 'unique_key') in ('string', 'null'), true)
                and coalesce(jsonb_typeof(a.j -> 'traceparent') in ('string', 'null'), true)
                and coalesce(jsonb_typeof(a.j -> 'group') = 'null'
                    or jsonb_typeof(a.j -> 'group') = 'number' and f."group" = trunc(f."group") and f."group" between 1 and 1e15, true)
            ) as is_valid,
            array_agg(f.kind) as kinds, array_agg(coalesce(a.j -> 'args', '{}')) as args,
            array_agg(coalesce(f.throttle, 'default')) as throttles, array_agg(coalesce(f.key, '')) as keys,
            array_agg(coalesce(f.priority::int, 1)) as priorities, array_agg(f.run_at) as run_ats,
            array_agg(coalesce(f.max_attempts::int, 10)) as max_attempts, array_agg(f.unique_key) as unique_keys,
            array_agg(flyball.seconds_of(f.unique_for)) as unique_fors, array_agg(coalesce(f.cost, 1)) as costs,
            array_agg(f.traceparent) as traceparents, array_agg(flyball.seconds_of(f.timeout)) as timeouts,
            array_agg(flyball.seconds_of(f.debounce)) as debounces, array_agg(flyball.seconds_of(f.debounce_max)) as debounce_maxes,
            array_agg(coalesce(f.replace, false)) as replaces, array_agg(f."group"::bigint) as groups,
            array_agg(case when a.j ?| extra_fields then a.j - plain_fields end) as options
        into c
        from jsonb_array_elements(jobs) as a(j)
        cross join lateral jsonb_to_record(a.j) as f(kind text, throttle text, key text, priority numeric,
            run_at timestamptz, max_attempts numeric, unique_key text, unique_for jsonb, cost float8, traceparent text,
            timeout jsonb, debounce jsonb, debounce_max jsonb, replace boolean, "group" numeric);
        is_valid := c.is_valid and 1e9 >= all (array_remove(c.unique_fors || c.timeouts || c.debounces || c.debounce_maxes, null))
            and -1e9 <= all (array_remove(c.unique_fors || c.timeouts || c.debounces || c.debounce_maxes, null));
    exception when data_exception then
        is_valid := false;
    end;

    if not is_valid then
        for j in select e from jsonb_array_elements(jobs) as e loop
            at := at + 1;
            problem := null;
            name := '';
            if jsonb_typeof(j) <> 'object' then
                problem := 'must be an object';
            else
                for name, value in select e.key, e.value from jsonb_each(j) as e loop
                    type := jsonb_typeof(value);
                    out_of_range := format('is out of range; allowed is more than 0 and at most %s',
                        case name when 'debounce_max' then '3660 days (316224000 seconds)' else '366 days (31622400 seconds)' end);
                    expected_type := case
                        when name in ('kind', 'throttle', 'key', 'unique_key', 'run_at', 'traceparent') then 'string'
                        when name in ('priority', 'max_attempts', 'cost', 'group') then 'number'
                        when name = 'replace' then 'boolean'
                        else null end;
                    if not name = any(allowed) then
                        problem := format('is not a field of a job; allowed are %s', array_to_string(allowed, ', '));
                    elsif type = 'null' and (name in ('run_at', 'unique_key', 'traceparent', 'group') or name = any(duration_fields)) then
                        continue;
                    elsif expected_type is not null and type <> expected_type then
                        problem := format('must be a %s, not %s', expected_type, type);
                    elsif name in ('priority', 'max_attempts') and (value::numeric <> trunc(value::numeric) or abs(value::numeric) > 1e9) then
                        problem := format('must be a whole number, not %s', left(value::text, 40));
                    elsif name = 'group' and (value::numeric <> trunc(value::numeric) or value::numeric not between 1 and 1e15) then
                        problem := format('must be the number of a group, not %s', left(value::text, 40));
                    elsif name = 'cost' and value::numeric <> 0 and abs(value::numeric) not between 1e-300 and 1e300 then
                        problem := 'is out of range; allowed is more than 0 and at most 1e9 tokens';
                    elsif name = any(duration_fields) and type = 'number' and value::numeric <> 0 and abs(value::numeric) not between 1e-300 and 1e9 then
                        problem := out_of_range;
                    elsif name = any(duration_fields) and type not in ('number', 'string') then
                        problem := format('must be seconds or an interval text, not %s', type);
                    elsif name = 'run_at' or name = any(duration_fields) then
                        begin
                            if name = 'run_at' then
                                problem := case when (j ->> name)::timestamptz is null or j ->> name !~ timestamp_pattern
                                    then format('"%s" is not a time; write it like 2026-11-20T14:00:00Z', left(j ->> name, 64)) end;
                            elsif abs(flyball.seconds_of(value)) > 1e9 then
                                problem := out_of_range;
                            end if;
                        exception when data_exception then
                            problem := case name
                                when 'run_at' then format('"%s" is not a time; write it like 2026-11-20T14:00:00Z', left(j ->> name, 64))
                                else format('"%s" is not a span; write seconds as a number, or a text like "10 minutes"', j ->> name) end;
                        end;
                    end if;
                    exit when problem is not null;
                end loop;
            end if;
            if problem is null and j -> 'kind' is null then
                name := 'kind';
                problem := 'must name what runs the job, for instance ''http''';
            end if;
            if problem is not null then
                perform flyball.refuse_element(at, name, problem);
            end if;
        end loop;
        raise exception using errcode = '22023', column = '', message = 'enqueue_many: jobs: cannot be read',
            hint = 'Nothing was enqueued.';
    end if;

    return query select * from flyball.enqueue_rows(c.kinds, c.args, c.throttles, c.keys, c.priorities, c.run_ats, c.max_attempts,
        c.unique_keys, c.unique_fors, c.costs, c.traceparents, c.timeouts, c.debounces, c.debounce_maxes, c.replaces,
        case when array_remove(c.groups, null) <> '{}' then c.groups end, c.options);
end $$;

-- Enqueues jobs of a JSON array whose fields have been checked, for an owner of unique keys.
create or replace function flyball.enqueue_json_as(owner text, module text, jobs jsonb, group_id bigint default null)
returns table (job_id bigint, duplicate boolean)
language sql volatile as $$
    select e.job_id, e.duplicate
    from (
        select array_agg(f.kind order by a.n) as kinds, array_agg(coalesce(a.j -> 'args', '{}') order by a.n) as args,
            array_agg(coalesce(f.throttle, 'default') order by a.n) as throttles, array_agg(coalesce(f.key, '') order by a.n) as keys,
            array_agg(coalesce(f.priority, 1) order by a.n) as priorities, array_agg(f.run_at order by a.n) as run_ats,
            array_agg(coalesce(f.max_attempts, 10) order by a.n) as max_attempts, array_agg(f.unique_key order by a.n) as unique_keys,
            array_agg(flyball.seconds_of(f.unique_for) order by a.n) as unique_fors, array_agg(coalesce(f.cost, 1) order by a.n) as costs,
            array_agg(f.traceparent order by a.n) as traceparents, array_agg(flyball.seconds_of(f.timeout) order by a.n) as timeouts,
            array_agg(flyball.seconds_of(f.debounce) order by a.n) as debounces,
            array_agg(flyball.seconds_of(f.debounce_max) order by a.n) as debounce_maxes,
            array_agg(coalesce(f.replace, false) order by a.n) as replaces, array_agg(enqueue_json_as.group_id) as groups,
            array_agg(flyball.options_of(a.j) order by a.n) as options
        from jsonb_array_elements(enqueue_json_as.jobs) with ordinality as a(j, n)
        cross join lateral jsonb_to_record(a.j) as f(kind text, throttle text, key text, priority int,
            run_at timestamptz, max_attempts int, unique_key text, unique_for jsonb, cost float8, traceparent text,
            timeout jsonb, debounce jsonb, debounce_max jsonb, replace boolean)
        having count(*) > 0
    ) c
    cross join lateral flyball.enqueue_rows_as(enqueue_json_as.owner, true, c.kinds, c.args, c.throttles, c.keys, c.priorities, c.run_ats,
        c.max_attempts, c.unique_keys, c.unique_fors, c.costs, c.traceparents, c.timeouts, c.debounces, c.debounce_maxes, c.replaces,
        enqueue_json_as.module, false, c.groups, c.options) e
$$;

-- Refuses a name or a callback that is not acceptable. The callback is enqueued on trial and taken
-- back, so the same rules hold as for every job.
create or replace function flyball.check_new_group(name text, callback jsonb) returns void
language plpgsql volatile as $$
#variable_conflict use_variable
declare
    field   text;
    message text;
    code    text;
begin
    if name is null or octet_length(name) > 200 then
        perform flyball.refuse('create_group', 'name', case when name is null then 'must not be null; leave it out for none'
            else format('is %s bytes long; at most 200 are allowed', octet_length(name)) end);
    elsif callback is null then
        return;
    elsif jsonb_typeof(callback) <> 'object' then
        perform flyball.refuse('create_group', 'callback', format('must be a job as an object, not %s', jsonb_typeof(callback)));
    elsif callback ? 'after' then
        perform flyball.refuse('create_group', 'callback.after', 'must be left out: the callback runs after the group');
    elsif callback ? 'group' then
        perform flyball.refuse('create_group', 'callback.group', 'must be left out: the callback runs after the group and is not in one');
    end if;
    begin
        perform flyball.enqueue_many(jsonb_build_array(flyball.callback_with(callback, jsonb_build_object('id', 1000000000000000,
            'name', name, 'jobs', 1000000000000000, 'completed', 1000000000000000, 'dead', 1000000000000000, 'cancelled', 1000000000000000))));
        raise exception using errcode = 'FB001';
    exception
        when sqlstate 'FB001' then
            null;
        -- A lane that is full now need not be so when the group ends.
        when configuration_limit_exceeded then
            null;
        when invalid_parameter_value or insufficient_privilege then
            get stacked diagnostics field = column_name, message = message_text, code = returned_sqlstate;
            raise exception using errcode = code, column = 'callback' || coalesce('.' || nullif(field, ''), ''),
                message = format('create_group: callback%s: %s', coalesce('.' || nullif(field, ''), ''),
                    regexp_replace(message, '^enqueue_many: jobs(\[0\])?[a-z_.]*: ', '')),
                hint = 'Nothing was created.';
    end;
end $$;

-- === Schedules ====================================================================================

-- Tags of the jobs of a schedule and their waits after failed attempts; null for none.
alter table flyball.cron add column tags text[], add column retry jsonb;

alter function flyball.schedule rename to schedule_before_19;

-- Makes a schedule or replaces the one of this name; true if it is new. The same expression and
-- time zone keep the next occurrence, so a program may declare its schedules at each start. It runs
-- with the rights of its caller, which needs rights on flyball.cron.
create function flyball.schedule(
    name text,
    expression text,
    kind text,
    args jsonb default '{}',
    time_zone text default 'UTC',
    throttle text default 'default',
    key text default '',
    priority int default 1,
    max_attempts int default 10,
    cost float8 default 1,
    timeout interval default null,
    catch_up text default 'one',
    overlap text default 'skip',
    paused boolean default null,
    tags text[] default null,
    retry jsonb default null)
returns boolean
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    issue  record;
    is_new boolean;
begin
    select c.field, c.message, '22023' as code into issue from flyball.check_schedule(name, expression, time_zone, catch_up, overlap) c;
    if issue.field is null then
        select * into issue from flyball.check_job(
            kind => kind, args => args, throttle => throttle, key => key, priority => priority, max_attempts => max_attempts,
            unique_key => null::text, unique_for => null::interval, cost => cost, run_at => null::timestamptz,
            timeout => timeout);
    end if;
    if issue.field is null and (tags is not null or retry is not null) then
        select o.field, o.message, '22023' as code into issue from flyball.check_options(jsonb_build_object('tags', tags, 'retry', retry)) o;
    end if;
    if issue.field is not null then
        raise exception using
            errcode = coalesce(issue.code, '22023'),
            message = format('schedule: %s: %s', issue.field, issue.message),
            column = issue.field,
            hint = 'No schedule was changed.';
    end if;

    insert into flyball.cron as c
        (name, expression, time_zone, kind, args, throttle, key, priority, max_attempts, cost, timeout_s, catch_up, overlap, paused,
         tags, retry)
    values
        (name, expression, time_zone, kind, args, throttle, key, priority, max_attempts, cost, extract(epoch from timeout), catch_up,
         overlap, coalesce(paused, false), flyball.tags_of(jsonb_build_object('tags', tags)),
         flyball.retry_of(jsonb_build_object('retry', retry)))
    on conflict on constraint cron_pkey do update
        set expression = excluded.expression, time_zone = excluded.time_zone, kind = excluded.kind, args = excluded.args,
            throttle = excluded.throttle, key = excluded.key, priority = excluded.priority, max_attempts = excluded.max_attempts,
            cost = excluded.cost, timeout_s = excluded.timeout_s, tags = excluded.tags, retry = excluded.retry, catch_up = excluded.catch_up, overlap = excluded.overlap,
            paused = coalesce(paused, c.paused),
            -- A schedule that was paused or had a problem starts afresh; one that only gets other
            -- arguments keeps its next occurrence.
            next_at = case when (c.expression, c.time_zone, c.paused) = (excluded.expression, excluded.time_zone, coalesce(paused, c.paused))
                           then c.next_at end,
            problem = null, updated_at = clock_timestamp()
    returning c.xmax = 0 into is_new;
    return is_new;
end $$;

-- Makes the job of one occurrence; `at` null is "now, by hand". With overlap `skip` the unique key
-- is the schedule's, so an unfinished job blocks the next one. With `allow` it is the occurrence's,
-- kept for an hour, so moving a schedule back does not make its job twice. It makes only the job in
-- the table, and only for roles that may change the table.
create or replace function flyball.enqueue_occurrence(name text, at timestamptz, out job_id bigint, out duplicate boolean)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    c          flyball.cron;
    unique_key constant text := 'cron:' || name;
begin
    if not has_table_privilege(flyball.caller(), 'flyball.cron'::regclass, 'UPDATE') then
        raise exception using errcode = '42501', message = format('role %s may not run schedules: it has no right to update flyball.cron',
            to_json(flyball.caller()));
    end if;
    select * into c from flyball.cron k where k.name = name;
    if not found then
        return;
    end if;
    select e.job_id, e.duplicate into job_id, duplicate
    from flyball.enqueue_rows_as('cron', true, array[c.kind], array[c.args], array[c.throttle], array[c.key], array[c.priority::int],
        array[at], array[c.max_attempts::int],
        array[case when c.overlap = 'skip' then unique_key when at is not null then unique_key || '@' || extract(epoch from at)::bigint end],
        array[case when c.overlap <> 'skip' and at is not null then 3600::float8 end],
        array[c.cost::float8], array[null::text], array[c.timeout_s::float8], array[null::float8], array[null::float8], array[false],
        options => array[flyball.options_of(jsonb_build_object('tags', c.tags, 'retry', c.retry))]) e;
end $$;

-- === Permissions ==================================================================================

revoke execute on function flyball.ends_of, flyball.absent_of, flyball.awaited, flyball.add_waits, flyball.forget_waits, flyball.release_waiting,
    flyball.check_webhooks, flyball.webhook_key, flyball.webhook_job_of, flyball.enqueue_calls
from public;

select flyball.replace_functions(19);

comment on function flyball.enqueue is 'Enqueues one job in the caller''s own transaction. See the README for the meaning of each argument.';
comment on function flyball.enqueue_rows is 'Enqueues up to 10,000 jobs given column by column, all or none; durations are in seconds.';
comment on function flyball.enqueue_rows_as is 'As flyball.enqueue_rows, for an owner of unique keys; needs rights on the tables.';
comment on function flyball.schedule is 'Makes or replaces a schedule: a job at each time of a cron expression. See docs/reference/sql.md.';
