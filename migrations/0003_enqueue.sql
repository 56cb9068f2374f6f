-- Chapter 3: enqueueing at the speed of a bare INSERT, jobs that replace the one that waits, caps on a lane's backlog.
--
-- The front doors run one plain statement while everything is in order. Only what looks wrong, or asks for more than an insert
-- (a unique key, a later time, a capped lane), is looked at with care, by the one function that knows every rule and message.

-- The same days and lanes as before, in words that the planner can inline: a call of a function costs more than its work.
create or replace function flyball.day_of(at timestamptz) returns bigint
language sql immutable parallel safe
return ((at at time zone 'UTC')::date - date '2020-01-01')::bigint;

create or replace function flyball.lane_of(throttle text, key text) returns bigint
language sql stable parallel safe
return ('x' || encode(substr(sha256(convert_to(throttle || chr(31) || key, 'UTF8')), 1, 8), 'hex'))::bit(64)::bigint;

-- The doors check every job already, by name. Checked again here, each of these would be parsed and compiled anew for every
-- single insert, which costs three times as much as the rest of it.
alter table flyball.job
    drop constraint job_priority_check, drop constraint job_max_attempts_check, drop constraint job_cost_check,
    drop constraint job_kind_check, drop constraint job_throttle_check, drop constraint job_key_check,
    drop constraint job_timeout_s_check;

-- When the burst of enqueues began that a debounced job stands for; null where its job is not debounced.
alter table flyball.uniq add column since timestamptz;

-- When the job's unique key is free whether or not the job has ended; null where the job holds its key until it ends. It is kept
-- beyond the key itself, so that a dead job that is to run again is known to have no claim on it.
alter table flyball.job add column unique_until timestamptz;

drop function flyball.enqueue(text, jsonb, text, text, int, timestamptz, int, text, interval, float8);
drop function flyball.enqueue_many(jsonb);
drop function flyball.check_job(text, jsonb, text, text, int, int, text, interval, float8, timestamptz);

-- === What is wrong ===================================================================================================

-- Says what is wrong with a job, or nothing. One place for SQL, HTTP and CLI alike.
create function flyball.check_job(
    kind text, args jsonb, throttle text, key text, priority int, max_attempts int,
    unique_key text, unique_for interval, cost float8, run_at timestamptz,
    traceparent text default null, timeout interval default null, debounce interval default null,
    debounce_max interval default null, replace boolean default false,
    out field text, out message text)
language plpgsql stable parallel safe as $$
#variable_conflict use_variable
declare
    known text;
begin
    field := 'kind';
    if kind is null or kind = '' then
        message := 'must name what runs the job, for instance ''http''';
        return;
    elsif octet_length(kind) > 128 then
        message := format('is %s bytes long; at most 128 are allowed', octet_length(kind));
        return;
    elsif not exists (select 1 from flyball.kind k where k.name = kind) then
        select string_agg(k.name, ', ' order by k.name) into known from flyball.kind k;
        message := format('%s is not a kind that any worker has registered; known kinds: %s', to_json(kind), known);
        return;
    end if;

    field := 'args';
    if args is null then
        message := 'must not be null; leave it out for {}';
        return;
    elsif octet_length(args::text) > 262144 then
        message := format('is %s bytes long; at most 262144 (256 KiB) are allowed: store the data elsewhere and pass its address',
            octet_length(args::text));
        return;
    end if;

    field := 'throttle';
    if throttle is null or throttle !~ '^[A-Za-z0-9._/:{}-]+$' or octet_length(throttle) > 128 then
        message := format('%s is not a throttle''s name; use 1 to 128 letters, digits or any of . _ - / : { }',
            coalesce(to_json(left(throttle, 64))::text, 'null'));
        return;
    end if;

    field := 'key';
    if key is null or octet_length(key) > 512 then
        message := case when key is null then 'must not be null; leave it out for none'
                        else format('is %s bytes long; at most 512 are allowed', octet_length(key)) end;
        return;
    end if;

    field := 'priority';
    if priority is null or priority not between 0 and 3 then
        message := format('is %s; allowed are 0 (runs first), 1, 2 and 3 (runs last)', coalesce(priority::text, 'null'));
        return;
    end if;

    field := 'max_attempts';
    if max_attempts is null or max_attempts not between 1 and 1000 then
        message := format('is %s; allowed are 1 to 1000', coalesce(max_attempts::text, 'null'));
        return;
    end if;

    field := 'unique_key';
    if unique_key = '' or octet_length(unique_key) > 512 then
        message := format('is %s bytes long; allowed are 1 to 512, or null for none', octet_length(unique_key));
        return;
    end if;

    field := 'unique_for';
    if unique_for is not null and unique_key is null then
        message := 'needs a unique_key';
        return;
    elsif unique_for <= interval '0' or unique_for > interval '366 days' then
        message := format('is %s; allowed is more than 0 and at most 366 days', unique_for);
        return;
    end if;

    field := 'cost';
    if cost is null or cost = 'NaN'::float8 or cost <= 0 or cost > 1e9 then
        message := format('is %s; allowed is more than 0 and at most 1e9 tokens', coalesce(cost::text, 'null'));
        return;
    end if;

    field := 'run_at';
    if run_at < timestamptz '1970-01-01 00:00:00Z' or run_at > now() + interval '3660 days' then
        message := format('is %s; allowed are times from 1970 (at once) to ten years from now', run_at);
        return;
    end if;

    field := 'traceparent';
    if not flyball.is_traceparent(traceparent) then
        message := format('%s is not a W3C trace parent; write it like 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01, or null for none',
            to_json(left(traceparent, 64)));
        return;
    end if;

    field := 'timeout';
    if timeout < interval '1 microsecond' or timeout > interval '366 days' then
        message := format('is %s; allowed is at least a microsecond (0.000001 s) and at most 366 days, or null for the kind''s own', timeout);
        return;
    end if;

    field := 'debounce';
    if debounce is not null then
        if unique_key is null then
            message := 'needs a unique_key';
        elsif unique_for is not null then
            message := 'cannot be used together with unique_for: the key is free when the job has ended';
        elsif run_at is not null then
            message := 'cannot be used together with run_at: it names the time itself';
        elsif debounce <= interval '0' or debounce > interval '366 days' then
            message := format('is %s; allowed is more than 0 and at most 366 days', debounce);
        end if;
        if message is not null then
            return;
        end if;
    end if;

    field := 'debounce_max';
    if debounce_max is not null and debounce is null then
        message := 'needs a debounce';
        return;
    elsif debounce_max < debounce or debounce_max > interval '3660 days' then
        message := format('is %s; allowed is at least the debounce of %s and at most 3660 days', debounce_max, debounce);
        return;
    end if;

    field := 'replace';
    if replace is null then
        message := 'must be true or false, not null';
        return;
    elsif replace and unique_key is null then
        message := 'needs a unique_key';
        return;
    elsif replace and unique_for is not null then
        message := 'cannot be used together with unique_for: the key is free when the job has ended';
        return;
    end if;

    field := null;
end $$;

-- Version, trace, parent and flags as W3C Trace Context writes them; a trace or a parent of zeros only is none.
create function flyball.is_traceparent(text text) returns boolean
language sql immutable parallel safe
return text ~ '^(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}$';

-- Seconds as an interval; what no argument allows stays out of every argument's range.
create function flyball.span(seconds float8) returns interval
language sql immutable parallel safe
return case when seconds is null then null when abs(seconds) <= 1e9 then make_interval(secs => seconds)
            else interval '1000000000 seconds' end;

-- The seconds of a span that JSON gives as a number or as the text of an interval. Of any other value the type's own name is
-- read as an interval, which fails: `[1]` would pass for one.
create function flyball.seconds_of(span jsonb) returns float8
language sql stable parallel safe
return case jsonb_typeof(span) when 'null' then null when 'number' then span::float8
            when 'string' then extract(epoch from (span #>> '{}')::interval)::float8
            else extract(epoch from jsonb_typeof(span)::interval)::float8 end;

-- === What an enqueue looks at ========================================================================================

-- What a lane's cap says about `adding` more jobs: null where there is none or room is left, else the depth and the cap.
-- Counting stops one above the cap, and at 5,000: a higher cap is judged by the depth that was written down when the lane was
-- last walked, which is cheap and some seconds old. A figure of which nobody knows since ten minutes whether it still holds
-- refuses nothing. A bitmap would hold the whole lane before anything is counted. What a person may have written into the knob and is no number is no cap.
create function flyball.check_backlog(door text, throttle text, key text, lane bigint, adding bigint, out backlog jsonb)
language plpgsql volatile set enable_seqscan = off set enable_bitmapscan = off as $$
#variable_conflict use_variable
declare
    most    constant bigint := 5000;
    cap     bigint;
    depth   bigint;
    counted bigint;
    word    text;
begin
    select (b.fields ->> 'max_backlog')::numeric::bigint, b.fields ->> 'on_backlog' into cap, word
    from flyball.knobs b
    where b.throttle = throttle and b.fields ->> 'max_backlog' ~ '^\d{1,10}(\.0*)?$';
    if cap is null then
        return;
    end if;
    if cap > most then
        select l.depth into depth
        from flyball.lane l
        cross join flyball.sweep s
        where l.lane_id = lane and s.one and greatest(l.depth_at, s.lanes_at) > now() - interval '10 minutes';
        if coalesce(depth, 0) + adding <= cap then
            return;
        end if;
    end if;
    select count(*) into counted from (select from flyball.ready r where r.lane_id = lane limit least(cap, most) + 1) as page;
    depth := case when counted > most then greatest(counted, depth) else counted end;
    if depth + adding <= cap then
        return;
    end if;
    if word = 'reject' then
        raise exception using
            errcode = '53400',
            message = format('%s: throttle %s, key %s: %s jobs of this lane are ready%s; its knob max_backlog allows %s',
                door, to_json(throttle), to_json(key), depth,
                case when adding > 1 then format(' and %s more were sent', adding) else '' end, cap),
            hint = 'Nothing was enqueued. Try again when some have run, or raise the knob max_backlog.',
            constraint = 'max_backlog', schema = throttle, column = key, datatype = format('%s/%s', depth, cap);
    end if;
    backlog := jsonb_build_object('depth', depth + adding, 'max', cap);
end $$;

-- === One job, with care ==============================================================================================

-- Enqueues one job, whose arguments have been checked, by all the rules. The front doors come here with whatever is more than
-- a plain insert.
create function flyball.admit(
    door text,
    kind text, args jsonb, throttle text, key text, priority int, run_at timestamptz, max_attempts int,
    unique_key text, unique_for interval, cost float8, traceparent text, timeout interval,
    debounce interval, debounce_max interval, replace boolean,
    out job_id bigint, out duplicate boolean, out replaced boolean, out backlog jsonb)
language plpgsql volatile as $$
#variable_conflict use_variable
declare
    held     record;
    now_it   record;
    tried    boolean;
    stood_in bigint;
    lane     bigint := flyball.lane_of(throttle, key);
    due      timestamptz := coalesce(now() + debounce, run_at);
    digest   bytea;
    until    constant timestamptz := now() + unique_for;
    begun    timestamptz := case when debounce is not null then now() end;
    replaces constant boolean := replace or debounce is not null;
begin
    job_id := flyball.next_id();
    duplicate := false;
    replaced := false;

    if unique_key is not null then
        digest := sha256(convert_to(kind || chr(31) || unique_key, 'UTF8'));
        -- Each round takes the key, or takes the waiting job out of its queue, or has seen somebody else do so.
        for round in 1..1000 loop
            if round = 1000 then
                raise exception using errcode = '40001', message = format('%s: the job that holds the unique_key kept moving', door),
                    hint = 'Nothing was enqueued. Try again.';
            end if;
            -- A second producer of the same new key waits here until the first has committed or rolled back.
            insert into flyball.uniq as u (digest, job_id, expires_at, since) values (digest, job_id, until, begun)
            on conflict do nothing;
            exit when found;

            if replaces then
                -- Producers who replace take turns, so that the key cannot pass to another job while we look for this one.
                select u.job_id, u.expires_at, u.since into held from flyball.uniq u where u.digest = digest for update;
                continue when not found;
                -- Promotion moves a job from here to `ready`, so this is the order in which to look. Whoever deletes the row
                -- has the job: a claim skips it, or has been faster.
                delete from flyball.scheduled s where s.job_id = held.job_id returning null::bigint, s.attempt > 0 into stood_in, tried;
                if not found then
                    delete from flyball.ready r
                    where (r.lane_id, r.priority) = (select j.lane_id, j.priority from flyball.job j where j.id = held.job_id)
                        and r.job_id = held.job_id
                    returning r.lane_id, r.attempt > 0 into stood_in, tried;
                end if;
                replaced := found;
                exit when replaced;
            else
                select u.job_id, u.expires_at, u.since into held from flyball.uniq u where u.digest = digest;
                continue when not found;
            end if;

            -- One statement, hence one snapshot, in which a job stands in one table only.
            select exists (select from flyball.scheduled s where s.job_id = held.job_id)
                    or exists (
                        select from flyball.ready r
                        where (r.lane_id, r.priority) = (select j.lane_id, j.priority from flyball.job j where j.id = held.job_id)
                            and r.job_id = held.job_id
                    ) as waits,
                exists (select from flyball.lease l where l.job_id = held.job_id) as runs
            into now_it;
            continue when replaces and now_it.waits;
            if not replaces and (held.expires_at > now() or held.expires_at is null and (now_it.waits or now_it.runs)) then
                job_id := held.job_id;
                duplicate := true;
                return;
            end if;

            -- The key passes to the new job: its time is over, or the job that had it runs or has ended.
            update flyball.uniq as u set job_id = job_id, expires_at = until, since = begun
            where u.digest = digest and u.job_id = held.job_id and u.expires_at is not distinct from held.expires_at;
            exit when found;
        end loop;
    end if;

    if replaced then
        -- The job becomes what was said last, in its place and under its number. Workers read it only after a claim of the
        -- row that is inserted below, so none can run it with the old arguments.
        job_id := held.job_id;
        duplicate := true;
        -- The burst goes on that the waiting job stands for. What was not put off is no burst, and what has been tried and failed
        -- is over: then a new one begins, with all its attempts.
        if debounce is not null and not tried then
            begun := coalesce(held.since, begun);
        end if;
        update flyball.uniq as u set since = begun where u.digest = digest and u.since is distinct from begun;
        due := least(due, begun + coalesce(debounce_max, debounce * 10));
        update flyball.job as j
        set lane_id = lane, priority = priority, max_attempts = max_attempts, cost = cost, run_at = due, throttle = throttle,
            key = key, args = args, traceparent = traceparent, timeout_s = extract(epoch from timeout)
        where j.id = job_id;
        delete from flyball.checkpoint c where c.job_id = job_id;
    else
        if to_regclass('flyball.job_' || (job_id >> 38)) is null then
            perform flyball.ensure_day(job_id >> 38);
        end if;
        if due is null or due <= now() then
            backlog := flyball.check_backlog(door, throttle, key, lane, 1);
        end if;
        insert into flyball.job
            (id, lane_id, priority, max_attempts, cost, run_at, kind, throttle, key, unique_key, unique_until, args, traceparent,
             timeout_s)
        values (job_id, lane, priority, max_attempts, cost, due, kind, throttle, key, digest, until, args, traceparent,
            extract(epoch from timeout));
    end if;

    if due is null or due <= now() then
        insert into flyball.ready (lane_id, priority, job_id, cost, holds_unique)
        values (lane, priority, job_id, cost, unique_key is not null and unique_for is null);
        -- Producers ring only while a dispatcher sleeps: one that is awake sees new jobs by their numbers. A job that has an old
        -- number and just came to this lane it would find late.
        if replaced and stood_in is distinct from lane or coalesce((select d.asleep from flyball.doorbell d), true) then
            perform pg_notify('flyball', lane::text);
        end if;
    else
        insert into flyball.scheduled (job_id, run_at, lane_id, priority, cost, retry, holds_unique)
        values (job_id, due, lane, priority, cost, false, unique_key is not null and unique_for is null);
    end if;
end $$;

-- === The front doors =================================================================================================

-- Enqueues one job in the caller's own transaction. It runs with the rights of the schema's owner, so that a role needs
-- nothing but `grant usage on schema flyball`: it can enqueue, and neither read nor change what others have enqueued.
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

-- Enqueues many jobs given column by column, all or none; element n of every array belongs to job n. For programs: it spares
-- both sides the JSON. Spans are in seconds. Answers one row per job, in order.
create function flyball.enqueue_rows(
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

-- Enqueues many jobs, all or none, in the caller's own transaction; answers one row per job, in order.
create function flyball.enqueue_many(jobs jsonb)
returns table (job_id bigint, duplicate boolean, replaced boolean, backlog jsonb)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    allowed constant text[] := array['kind', 'args', 'throttle', 'key', 'priority', 'run_at', 'max_attempts', 'unique_key',
        'unique_for', 'cost', 'traceparent', 'timeout', 'debounce', 'debounce_max', 'replace'];
    spans   constant text[] := array['unique_for', 'timeout', 'debounce', 'debounce_max'];
    whole   boolean := false;
    c       record;
    j       jsonb;
    at      int := -1;
    name    text;
    value   jsonb;
    type    text;
    wanted  text;
    beyond  text;
    problem text;
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

    -- All elements at once. Where a value is of another type than its column, or a text is no time, nothing is said yet.
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
                and coalesce(jsonb_typeof(a.j -> 'run_at') in ('string', 'null'), true)
                and coalesce(jsonb_typeof(a.j -> 'unique_key') in ('string', 'null'), true)
                and coalesce(jsonb_typeof(a.j -> 'traceparent') in ('string', 'null'), true)
            ) as whole,
            array_agg(f.kind) as kinds, array_agg(coalesce(a.j -> 'args', '{}')) as args,
            array_agg(coalesce(f.throttle, 'default')) as throttles, array_agg(coalesce(f.key, '')) as keys,
            array_agg(coalesce(f.priority::int, 1)) as priorities, array_agg(f.run_at) as run_ats,
            array_agg(coalesce(f.max_attempts::int, 10)) as max_attempts, array_agg(f.unique_key) as unique_keys,
            array_agg(flyball.seconds_of(f.unique_for)) as unique_fors, array_agg(coalesce(f.cost, 1)) as costs,
            array_agg(f.traceparent) as traceparents, array_agg(flyball.seconds_of(f.timeout)) as timeouts,
            array_agg(flyball.seconds_of(f.debounce)) as debounces, array_agg(flyball.seconds_of(f.debounce_max)) as debounce_maxes,
            array_agg(coalesce(f.replace, false)) as replaces
        into c
        from jsonb_array_elements(jobs) as a(j)
        cross join lateral jsonb_to_record(a.j) as f(kind text, throttle text, key text, priority numeric,
            run_at timestamptz, max_attempts numeric, unique_key text, unique_for jsonb, cost float8, traceparent text,
            timeout jsonb, debounce jsonb, debounce_max jsonb, replace boolean);
        whole := c.whole and 1e9 >= all (array_remove(c.unique_fors || c.timeouts || c.debounces || c.debounce_maxes, null))
            and -1e9 <= all (array_remove(c.unique_fors || c.timeouts || c.debounces || c.debounce_maxes, null));
    exception when data_exception then
        whole := false;
    end;

    if not whole then
        for j in select e from jsonb_array_elements(jobs) as e loop
            at := at + 1;
            problem := null;
            name := '';
            if jsonb_typeof(j) <> 'object' then
                problem := 'must be an object';
            else
                for name, value in select e.key, e.value from jsonb_each(j) as e loop
                    type := jsonb_typeof(value);
                    beyond := format('is out of range; allowed is more than 0 and at most %s',
                        case name when 'debounce_max' then '3660 days (316224000 seconds)' else '366 days (31622400 seconds)' end);
                    wanted := case
                        when name in ('kind', 'throttle', 'key', 'unique_key', 'run_at', 'traceparent') then 'string'
                        when name in ('priority', 'max_attempts', 'cost') then 'number'
                        when name = 'replace' then 'boolean'
                        else null end;
                    if not name = any(allowed) then
                        problem := format('is not a field of a job; allowed are %s', array_to_string(allowed, ', '));
                    elsif type = 'null' and (name in ('run_at', 'unique_key', 'traceparent') or name = any(spans)) then
                        continue;
                    elsif wanted is not null and type <> wanted then
                        problem := format('must be a %s, not %s', wanted, type);
                    elsif name in ('priority', 'max_attempts') and (value::numeric <> trunc(value::numeric) or abs(value::numeric) > 1e9) then
                        problem := format('must be a whole number, not %s', left(value::text, 40));
                    elsif name = 'cost' and value::numeric <> 0 and abs(value::numeric) not between 1e-300 and 1e300 then
                        problem := 'is out of range; allowed is more than 0 and at most 1e9 tokens';
                    elsif name = any(spans) and type = 'number' and value::numeric <> 0 and abs(value::numeric) not between 1e-300 and 1e9 then
                        problem := beyond;
                    elsif name = any(spans) and type not in ('number', 'string') then
                        problem := format('must be seconds or an interval text, not %s', type);
                    elsif name = 'run_at' or name = any(spans) then
                        begin
                            if name = 'run_at' then
                                perform (j ->> name)::timestamptz;
                            elsif abs(flyball.seconds_of(value)) > 1e9 then
                                problem := beyond;
                            end if;
                        exception when data_exception then
                            problem := case name
                                when 'run_at' then format('"%s" is not a time; write it like 2026-11-20T14:00:00Z', j ->> name)
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
                raise exception using
                    errcode = '22023',
                    message = format('enqueue_many: jobs[%s]%s: %s', at, coalesce('.' || nullif(name, ''), ''), problem),
                    column = name,
                    table = at::text,
                    hint = 'Nothing was enqueued.';
            end if;
        end loop;
        raise exception using errcode = '22023', column = '', message = 'enqueue_many: jobs: cannot be read',
            hint = 'Nothing was enqueued.';
    end if;

    return query select * from flyball.enqueue_rows(c.kinds, c.args, c.throttles, c.keys, c.priorities, c.run_ats, c.max_attempts,
        c.unique_keys, c.unique_fors, c.costs, c.traceparents, c.timeouts, c.debounces, c.debounce_maxes, c.replaces);
end $$;

comment on function flyball.enqueue is 'Enqueues one job in the caller''s own transaction. See the README for the meaning of each argument.';
comment on function flyball.enqueue_many is 'Enqueues up to 10,000 jobs, all or none; elements have the same field names as flyball.enqueue.';
comment on function flyball.enqueue_rows is 'Enqueues up to 10,000 jobs given column by column, all or none; spans are in seconds.';
