-- Chapter 5: schedules. A schedule is a row; the worker that finds it due makes its job and
-- advances it in one statement, so no leader is needed, and a crash neither loses an occurrence nor
-- makes it twice.

create table flyball.cron (
    name         text        primary key,
    expression   text        not null,
    time_zone    text        not null default 'UTC',
    kind         text        not null,
    args         jsonb       not null default '{}',
    throttle     text        not null default 'default',
    key          text        not null default '',
    priority     int         not null default 1,
    max_attempts int         not null default 10,
    cost         float8      not null default 1,
    timeout_s    float8      check (timeout_s > 0),
    -- Policy for occurrences that were missed while no worker ran, and for one that is due while
    -- the last job is unfinished.
    catch_up     text        not null default 'one' check (catch_up in ('one', 'all', 'none')),
    overlap      text        not null default 'skip' check (overlap in ('skip', 'allow')),
    paused       boolean     not null default false,
    -- The next occurrence. Null: a worker computes it, because only workers evaluate expressions
    -- and time zones in full.
    next_at      timestamptz,
    -- The last occurrence that was handled; none is handled twice.
    last_at      timestamptz,
    last_job_id  bigint,
    skipped_at   timestamptz,
    -- The reason why it makes no jobs, or made none the last time.
    problem      text,
    updated_at   timestamptz not null default clock_timestamp(),
    check (catch_up <> 'all' or overlap = 'allow')
) with (fillfactor = 50);
create index cron_due on flyball.cron (next_at) where not paused;

-- === Expressions =================================================================================

-- The rules of the workers' cron parser in SQL, so that an impossible expression is refused here
-- and not found later by a worker. A test gives both the same expressions.

-- The number of a value of a field, written as a number or a name; null if it is neither.
create function flyball.cron_value(value text, low int, high int, words text[]) returns int
language sql immutable parallel safe
return case
    when value ~ '^[A-Za-z]+$' then
        (select min(w.n)::int + low - 1 from unnest(words) with ordinality as w(word, n) where lower(value) in (w.word, left(w.word, 3)))
    when value ~ '^[0-9]+$' then case when value::numeric between low and high then value::int end end;

-- The error message for such a value.
create function flyball.cron_value_error(value text) returns text
language sql immutable parallel safe
return case when value ~ '^[0-9]+$' then format('%s is out of range', value) else format('%s is not a value', to_json(value)) end;

-- The values of one element of a field as bits: a value, `*`, or a range, each with or without a
-- step. Sunday has two numbers, so `top` is above `high` for the days of the week.
create function flyball.cron_item(item text, low int, high int, top int, words text[], out bits bigint, out problem text)
language plpgsql immutable as $$
declare
    range  text := split_part(item, '/', 1);
    step   text := case when item like '%/%' then substr(item, strpos(item, '/') + 1) end;
    edge   text := split_part(range, '-', 1);
    first  int := low;
    last   int := high;
    stride int := 1;
begin
    if step !~ '^[0-9]+$' or step::numeric not between 1 and high - low then
        problem := format('the step %s of %s is not a whole number from 1 to %s', to_json(step), to_json(item), high - low);
        return;
    end if;
    stride := coalesce(step::int, 1);
    if range <> '*' then
        first := flyball.cron_value(edge, low, top, words);
        last := case when step is null then first else greatest(high, first) end;
        if first is not null and range like '%-%' then
            edge := substr(range, strpos(range, '-') + 1);
            last := flyball.cron_value(edge, low, top, words);
        end if;
        if first is null or last is null then
            problem := flyball.cron_value_error(edge);
            return;
        elsif top > high and range like '%-%' and last = 0 and first > 0 then
            -- A range of weekdays may end with Sunday.
            last := top;
        end if;
        if first > last then
            problem := format('the range %s runs backwards; write it as two ranges', range);
            return;
        end if;
    end if;
    select bit_or(1::bigint << n) into bits from generate_series(first, last, stride) as n;
end $$;

-- The values of a field as bits. Bit 0 of the days of a month is the last day; bits 9 to 13 of the
-- days of a week are the first to the fifth of some weekday, and bit 8 the last of some.
create function flyball.cron_bits(value text, low int, high int, top int, words text[], out bits bigint, out problem text)
language plpgsql immutable as $$
declare
    item  text;
    day   text;
    place text;
    one   record;
begin
    bits := 0;
    foreach item in array string_to_array(value, ',') loop
        day := case when high = 6 and item like '%#%' then split_part(item, '#', 1)
                    when high = 6 and item ~ '.[Ll]$' then left(item, -1) end;
        place := case when item like '%#%' then substr(item, strpos(item, '#') + 1) else '0' end;
        if item = '' then
            problem := format('%s has an empty element', to_json(value));
        elsif high = 31 and item in ('L', 'l') then
            bits := bits | 1;
        elsif day is null then
            one := flyball.cron_item(item, low, high, top, words);
            problem := one.problem;
            bits := bits | one.bits;
        elsif item like '%#%' and place !~ '^[+]?0*[1-5]$' then
            problem := format('%s must end with #1 to #5', to_json(item));
        elsif flyball.cron_value(day, low, top, words) is null then
            problem := flyball.cron_value_error(day);
        else
            bits := bits | (1::bigint << 8 + place::int);
        end if;
        exit when problem is not null;
    end loop;
end $$;

-- Whether any day matches the two fields of days and that of months, given as bits. Every date
-- falls on each weekday in some year, so it suffices to check the positions that a weekday can have
-- in a month.
create function flyball.cron_occurs(days bigint, months bigint, weekdays bigint) returns boolean
language sql immutable parallel safe
return exists (
    select from (values (1, 31), (2, 28), (2, 29), (3, 31), (4, 30), (5, 31), (6, 30), (7, 31), (8, 31), (9, 30), (10, 31), (11, 30), (12, 31))
        as m(month, last)
    cross join lateral generate_series(1, m.last) as d(day)
    where months & (1::bigint << m.month) <> 0
        and (days & (1::bigint << d.day) <> 0 or days & 1 <> 0 and d.day = m.last)
        and (weekdays & 255 <> 0 or weekdays & (1::bigint << 9 + (d.day - 1) / 7) <> 0 or weekdays & 256 <> 0 and d.day > m.last - 7));

-- Returns what is wrong with a cron expression, or nothing.
create function flyball.check_expression(expression text) returns text
language plpgsql immutable as $$
declare
    shape      constant text := '5 fields (minute, hour, day of month, month, day of week), 6 with the second in front, or one of '
        '@hourly, @daily, @midnight, @weekly, @monthly, @yearly, @annually';
    fields     constant text[] := array['second', 'minute', 'hour', 'day of month', 'month', 'day of week'];
    allowed    constant text[] := array['0 to 59', '0 to 59', '0 to 23', '1 to 31, L for the last day', '1 to 12 or JAN to DEC',
        '0 to 7 (0 and 7 are Sunday) or SUN to SAT, MON#2 for the second Monday of a month, 5L for its last Friday'];
    months     constant text[] := array['january', 'february', 'march', 'april', 'may', 'june', 'july', 'august', 'september', 'october',
        'november', 'december'];
    weekdays   constant text[] := array['sunday', 'monday', 'tuesday', 'wednesday', 'thursday', 'friday', 'saturday'];
    trimmed    constant text := regexp_replace(expression, '^\s+|\s+$', '', 'g');
    parts      text[];
    field_bits bigint[];
    one        record;
begin
    if expression is null then
        return 'must be a text of at most 256 bytes';
    elsif octet_length(expression) > 256 then
        return format('has %s bytes; allowed: at most 256', octet_length(expression));
    elsif trimmed in ('@hourly', '@daily', '@midnight', '@weekly', '@monthly', '@yearly', '@annually') then
        return null;
    elsif trimmed like '@%' then
        return format('%s is not known; allowed: %s', to_json(trimmed), shape);
    end if;

    parts := case when trimmed = '' then '{}' else regexp_split_to_array(trimmed, E'[ \t\n\f\r]+') end;
    if cardinality(parts) not in (5, 6) then
        return format('has %s fields; allowed: %s', cardinality(parts), shape);
    elsif cardinality(parts) = 5 then
        parts := array_prepend('0', parts);
    end if;
    for at in 1..6 loop
        if at in (4, 6) and parts[at] = '?' then
            parts[at] := '*';
        end if;
        one := flyball.cron_bits(parts[at], case when at in (4, 5) then 1 else 0 end, (array[59, 59, 23, 31, 12, 6])[at],
            (array[59, 59, 23, 31, 12, 7])[at], case at when 5 then months when 6 then weekdays end);
        if one.problem is not null then
            return format('%s: %s; allowed: %s, * for all, lists (1,3), ranges (1-5), steps (*/2)', fields[at], one.problem, allowed[at]);
        end if;
        field_bits[at] := one.bits;
    end loop;
    -- If both fields of days are restricted, either suffices, and one of them always comes.
    if (parts[4] like '*%' or parts[6] like '*%') and not flyball.cron_occurs(field_bits[4], field_bits[5], field_bits[6]) then
        return 'never comes: no day matches all fields';
    end if;
    return null;
end $$;

-- === Schedules ===================================================================================

-- Returns what is wrong with the times of a schedule, or nothing.
create function flyball.check_schedule(
    name text, expression text, time_zone text, catch_up text, overlap text,
    out field text, out message text)
language plpgsql stable as $$
#variable_conflict use_variable
begin
    field := 'name';
    if name is null or name !~ '^[A-Za-z0-9._/:-]{1,128}$' then
        message := format('%s is not a schedule''s name; use 1 to 128 letters, digits or any of . _ - / :',
            coalesce(to_json(left(name, 64))::text, 'null'));
        return;
    end if;

    field := 'expression';
    message := flyball.check_expression(expression);
    if message is not null then
        return;
    end if;

    field := 'time_zone';
    if time_zone is null or not exists (select from pg_catalog.pg_timezone_names z where lower(z.name) = lower(time_zone)) then
        message := format('%s is not a time zone; allowed: names of the IANA list such as UTC, Europe/Berlin or America/New_York',
            coalesce(to_json(left(time_zone, 64))::text, 'null'));
        return;
    end if;

    field := 'catch_up';
    if catch_up is null or catch_up not in ('one', 'all', 'none') then
        message := format('%s is not known; allowed: one, all, none', coalesce(to_json(left(catch_up, 64))::text, 'null'));
        return;
    end if;

    field := 'overlap';
    if overlap is null or overlap not in ('skip', 'allow') then
        message := format('%s is not known; allowed: skip, allow', coalesce(to_json(left(overlap, 64))::text, 'null'));
        return;
    end if;

    field := 'catch_up';
    if catch_up = 'all' and overlap = 'skip' then
        message := '"all" runs missed occurrences beside each other, which overlap "skip" forbids; allowed: catch_up "one" or "none", or overlap "allow"';
        return;
    end if;

    field := null;
end $$;

-- A schedule makes only jobs that its author may enqueue, because the worker that makes them later
-- has all rights. Checked however the row is written.
create function flyball.check_author() returns trigger
language plpgsql as $$
begin
    if not flyball.may_enqueue(new.kind) then
        raise exception using errcode = '42501', column = 'kind', hint = 'No schedule was changed.',
            message = format('schedule: kind: %s is not public, and role %s may not enqueue it; it may enqueue: %s',
                to_json(new.kind), to_json(flyball.caller()), flyball.enqueueable());
    elsif new.throttle like 'api:%' and not flyball.is_operator() then
        raise exception using errcode = '42501', column = 'throttle', hint = 'No schedule was changed.',
            message = format('schedule: throttle: %s is a throttle of the HTTP API itself, in which only operators may enqueue; name one of your own',
                to_json(new.throttle));
    elsif flyball.throttle_tenant(new.throttle) <> flyball.caller_tenant() and not flyball.is_operator() then
        raise exception using errcode = '42501', column = 'throttle', hint = 'No schedule was changed.',
            message = format('schedule: throttle: %s belongs to another tenant; name one of your own, or one that no tenant owns',
                to_json(new.throttle));
    end if;
    return new;
end $$;

create trigger check_author before insert or update of name, kind, args, throttle, key, cost, expression on flyball.cron
for each row when (new.kind is not null) execute function flyball.check_author();

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
    paused boolean default null)
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
    if issue.field is not null then
        raise exception using
            errcode = coalesce(issue.code, '22023'),
            message = format('schedule: %s: %s', issue.field, issue.message),
            column = issue.field,
            hint = 'No schedule was changed.';
    end if;

    insert into flyball.cron as c
        (name, expression, time_zone, kind, args, throttle, key, priority, max_attempts, cost, timeout_s, catch_up, overlap, paused)
    values
        (name, expression, time_zone, kind, args, throttle, key, priority, max_attempts, cost, extract(epoch from timeout), catch_up,
         overlap, coalesce(paused, false))
    on conflict on constraint cron_pkey do update
        set expression = excluded.expression, time_zone = excluded.time_zone, kind = excluded.kind, args = excluded.args,
            throttle = excluded.throttle, key = excluded.key, priority = excluded.priority, max_attempts = excluded.max_attempts,
            cost = excluded.cost, timeout_s = excluded.timeout_s, catch_up = excluded.catch_up, overlap = excluded.overlap,
            paused = coalesce(paused, c.paused),
            -- A schedule that was paused or had a problem starts afresh; one that only gets other
            -- arguments keeps its next occurrence.
            next_at = case when (c.expression, c.time_zone, c.paused) = (excluded.expression, excluded.time_zone, coalesce(paused, c.paused))
                           then c.next_at end,
            problem = null, updated_at = clock_timestamp()
    returning c.xmax = 0 into is_new;
    return is_new;
end $$;

-- Deletes a schedule; false if there is none. Its jobs stay.
create function flyball.unschedule(name text) returns boolean
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
begin
    delete from flyball.cron c where c.name = name;
    return found;
end $$;

-- Pauses or resumes a schedule; false if there is none. Occurrences during a pause stay missed, and
-- a problem from before it is tried again: the next occurrence is computed anew.
create function flyball.pause_schedule(name text, paused boolean default true) returns boolean
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
begin
    if paused is null then
        raise exception using errcode = '22023', column = 'paused',
            message = 'pause_schedule: paused: must be true or false, not null', hint = 'No schedule was changed.';
    end if;
    update flyball.cron c set paused = paused, next_at = null, problem = null, updated_at = clock_timestamp()
    where c.name = name and c.paused <> paused;
    return found or exists (select from flyball.cron c where c.name = name);
end $$;

-- Makes the job of one occurrence; `at` null is "now, by hand". With overlap `skip` the unique key
-- is the schedule's, so an unfinished job blocks the next one. With `allow` it is the occurrence's,
-- kept for an hour, so moving a schedule back does not make its job twice. It makes only the job in
-- the table, and only for roles that may change the table.
create function flyball.enqueue_occurrence(name text, at timestamptz, out job_id bigint, out duplicate boolean)
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
        array[c.cost::float8], array[null::text], array[c.timeout_s::float8], array[null::float8], array[null::float8], array[false]) e;
end $$;

-- Makes the job of a schedule now, in addition to its occurrences; no row if there is no such
-- schedule.
create function flyball.run_schedule(name text) returns table (job_id bigint, duplicate boolean)
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    c flyball.cron;
begin
    select * into c from flyball.cron k where k.name = name for update;
    if not found then
        return;
    end if;
    select m.job_id, m.duplicate into job_id, duplicate from flyball.enqueue_occurrence(c.name, null) m;
    if not duplicate then
        update flyball.cron k set last_job_id = job_id where k.name = name;
    end if;
    return next;
end $$;

-- Called by a worker that found a schedule due or without a next occurrence: makes the jobs of
-- these occurrences and advances the schedule. It takes effect only if the schedule is still as the
-- worker saw it, so of many workers exactly one succeeds; the others get no row. A job that cannot
-- be enqueued is recorded as the schedule's problem and not tried again before the next occurrence.
create function flyball.advance_schedule(
    name text, expression text, time_zone text, seen_next_at timestamptz,
    occurrences timestamptz[], next_at timestamptz, problem text)
returns table (made int, skipped int, refused text)
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    c       flyball.cron;
    at      timestamptz;
    job     record;
    last_id bigint;
begin
    select * into c from flyball.cron k
    where k.name = name and k.expression = expression and k.time_zone = time_zone
        and k.next_at is not distinct from seen_next_at and not k.paused
    for update skip locked;
    if not found then
        return;
    end if;
    made := 0;
    skipped := 0;
    refused := problem;
    begin
        foreach at in array occurrences loop
            continue when at <= c.last_at;
            select m.job_id, m.duplicate into job from flyball.enqueue_occurrence(c.name, at) m;
            if job.duplicate then
                skipped := skipped + 1;
            else
                made := made + 1;
                last_id := job.job_id;
            end if;
        end loop;
    -- A full lane that refuses jobs (53400) is such a problem too, and not a failure of Postgres.
    exception when data_exception or integrity_constraint_violation or raise_exception or configuration_limit_exceeded or insufficient_privilege then
        made := 0;
        skipped := 0;
        last_id := null;
        refused := sqlerrm;
    end;
    update flyball.cron k
    set next_at = next_at,
        last_at = greatest(k.last_at, occurrences[cardinality(occurrences)]),
        last_job_id = coalesce(last_id, k.last_job_id),
        skipped_at = case when skipped > 0 then clock_timestamp() else k.skipped_at end,
        problem = refused
    where k.name = name;
    return next;
end $$;

comment on function flyball.schedule is 'Makes or replaces a schedule: a job at each time of a cron expression. See docs/reference/sql.md.';
comment on function flyball.pause_schedule is 'Pauses a schedule or resumes it with its next occurrence.';
comment on function flyball.unschedule is 'Deletes a schedule; its jobs stay.';
