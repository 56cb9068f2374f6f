-- Chapter 8: schedules. A schedule is a row; the worker that finds it due makes its job and
-- advances it in one statement, so no leader is needed, and a crash neither loses an occurrence nor
-- makes it twice.

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
    select from (values (1, 31), (2, 28), (2, 29), (3, 31), (4, 30), (5, 31), (6, 30), (7, 31), (8, 31), (9, 30), (10, 31),
        (11, 30), (12, 31))
        as m(month, last)
    cross join lateral generate_series(1, m.last) as d(day)
    where months & (1::bigint << m.month) <> 0
        and (days & (1::bigint << d.day) <> 0 or days & 1 <> 0 and d.day = m.last)
        and (weekdays & 255 <> 0 or weekdays & (1::bigint << 9 + (d.day - 1) / 7) <> 0 or weekdays & 256 <> 0 and d.day > m.last - 7));

-- Returns what is wrong with a cron expression, or nothing.
create function flyball.check_expression(expression text) returns text
language plpgsql immutable set standard_conforming_strings = on as $$
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

-- === Writers and authors =========================================================================

-- Refuses roles with a tenant. The jobs of schedules are the operators' own: they pass no limit of
-- a tenant, may be critical, and may name the secrets of operators.
create function flyball.refuse_tenant_role(entry_point text) returns void
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
    its_tenant constant text := case when not flyball.is_operator() then (flyball.role_tenant()).tenant end;
begin
    if its_tenant is not null then
        raise exception using errcode = '42501', column = 'tenant', hint = 'No schedule was changed.',
            message = format('%s: tenant: role %s belongs to tenant %s, and the jobs of schedules are the operators'' own; allowed are roles without a tenant',
                entry_point, to_json(flyball.caller()), to_json(its_tenant));
    end if;
end $$;

-- Refuses a change of the schedules by a role with a tenant.
create function flyball.check_writer() returns trigger
language plpgsql set search_path = pg_catalog, pg_temp set standard_conforming_strings = on as $$
begin
    perform flyball.refuse_tenant_role('schedule');
    return null;
end $$;

-- Any write of the table, with any grants of the role.
create trigger check_writer before insert or update or delete on flyball.cron
for each statement execute function flyball.check_writer();

-- A schedule makes only jobs that its author may enqueue, because the worker that makes them later
-- has all rights. Checked however the row is written.
create function flyball.check_author() returns trigger
language plpgsql set search_path = pg_catalog, pg_temp set standard_conforming_strings = on as $$
begin
    if not flyball.may_enqueue(new.kind) then
        raise exception using errcode = '42501', column = 'kind', hint = 'No schedule was changed.',
            message = format('schedule: kind: %s is not public, and role %s may not enqueue it; it may enqueue: %s',
                to_json(new.kind), to_json(flyball.caller()), flyball.enqueueable());
    elsif not flyball.is_operator() and flyball.throttle_problem(new.kind, new.throttle) is not null then
        raise exception using errcode = '42501', column = 'throttle', hint = 'No schedule was changed.',
            message = format('schedule: throttle: %s', flyball.throttle_problem(new.kind, new.throttle));
    elsif new.throttle = 'webhooks' and new.key not in ('', flyball.caller_tenant()) and not flyball.is_operator() then
        raise exception using errcode = '42501', column = 'key', hint = 'No schedule was changed.',
            message = 'schedule: key: names the calls of others in throttle "webhooks"; leave it out, or name a throttle of your own';
    elsif new.kind = 'notification' and new.cost > 10 and not flyball.is_operator() then
        raise exception using errcode = '42501', column = 'cost', hint = 'No schedule was changed.',
            message = format('schedule: cost: is %s; a message costs at most 10 tokens, unless an operator enqueues it', new.cost);
    end if;
    return new;
end $$;

create trigger check_author before insert or update of name, kind, args, throttle, key, cost, expression on flyball.cron
for each row when (new.kind is not null) execute function flyball.check_author();

-- === Schedules ===================================================================================

-- Whether a text is the name of a time zone in the database of IANA. Postgres also takes rules in
-- the form of POSIX, with anything for a name: those have a digit. It takes abbreviations too:
-- those have no slash. And it takes other files in its folder of zones, which mean another time on
-- the next machine. Only for a name without a slash the folder is read, which takes as long as many
-- profiles.
create function flyball.is_zone(zone text) returns boolean
language plpgsql stable set standard_conforming_strings = on as $$
begin
    perform now() at time zone zone;
    return case
        when zone ~* '^(posix|right)/' or lower(zone) in ('localtime', 'posixrules', 'factory') then false
        when zone = 'UTC' then true
        when zone ~ '[0-9]' then zone ~* '^(Etc/)?GMT[+-]?0$' or zone ~* '^Etc/GMT(-([1-9]|1[0-4])|\+([1-9]|1[0-2]))$'
            or lower(zone) in ('est5edt', 'cst6cdt', 'mst7mdt', 'pst8pdt')
        when zone ~ '/' then zone ~ '^[A-Za-z]+(/[A-Za-z_+-]+){1,2}$'
        else exists (select from pg_catalog.pg_timezone_names n where lower(n.name) = lower(zone)) end;
exception when invalid_parameter_value then
    return false;
end $$;

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
    if not flyball.is_zone(time_zone) then
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

-- Makes a schedule or replaces the one of this name; true if it is new. The same expression and
-- time zone keep the next occurrence, so a program may declare its schedules at each start; an
-- occurrence that a process left because it did not know the time zone is not lost by that. It runs
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
        select o.field, o.message, '22023' as code into issue
        from flyball.check_options(jsonb_build_object('tags', tags, 'retry', retry)) o;
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
            cost = excluded.cost, timeout_s = excluded.timeout_s, tags = excluded.tags, retry = excluded.retry,
            catch_up = excluded.catch_up, overlap = excluded.overlap,
            paused = coalesce(paused, c.paused),
            -- A schedule that was paused or had a problem begins again; one that only gets other
            -- arguments keeps its next occurrence.
            next_at = case
                when (c.expression, c.time_zone, c.paused) = (excluded.expression, excluded.time_zone, coalesce(paused, c.paused))
                then coalesce(c.next_at, case when c.problem like 'time_zone: %' then c.missed_at end) end,
            -- One that is the same keeps what was wrong with its last occurrence.
            (problem, updated_at) = (
                select case when s.is_same and c.next_at is not null then c.problem end,
                    case when s.is_same then c.updated_at else clock_timestamp() end
                from (
                    select (c.expression, c.time_zone, c.kind, c.args, c.throttle, c.key, c.priority, c.max_attempts, c.cost, c.timeout_s,
                            c.tags, c.retry, c.catch_up, c.overlap, c.paused)
                        is not distinct from (excluded.expression, excluded.time_zone, excluded.kind, excluded.args, excluded.throttle,
                            excluded.key, excluded.priority, excluded.max_attempts, excluded.cost, excluded.timeout_s, excluded.tags,
                            excluded.retry, excluded.catch_up, excluded.overlap, coalesce(paused, c.paused)) as is_same
                ) s
            )
    returning c.xmax = 0 into is_new;
    return is_new;
end $$;
comment on function flyball.schedule is 'Makes or replaces a schedule: a job at each time of a cron expression. See docs/reference/sql.md.';

-- Deletes a schedule; false if there is none. Its jobs stay.
create function flyball.unschedule(name text) returns boolean
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
begin
    delete from flyball.cron c where c.name = name;
    return found;
end $$;
comment on function flyball.unschedule is 'Deletes a schedule; its jobs stay.';

-- Pauses or resumes a schedule; false if there is none. Occurrences during a pause stay missed, and
-- a problem from before it is tried again: the next occurrence is computed again.
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
comment on function flyball.pause_schedule is 'Pauses a schedule or resumes it with its next occurrence.';

-- === Occurrences =================================================================================

-- Makes the job of one occurrence; `at` null is "now, by hand". With overlap `skip` the unique key
-- is the schedule's, so an unfinished job blocks the next one, also one of another kind that the
-- schedule had before: the kind is a part of the unique key, so that of such a job is another one.
-- With `allow` it is the occurrence's, kept for an hour, so moving a schedule back does not make
-- its job twice. It makes only the job in the table, and only for roles that may change the table
-- and have no tenant.
create function flyball.enqueue_occurrence(name text, at timestamptz, out job_id bigint, out duplicate boolean)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set standard_conforming_strings = on as $$
#variable_conflict use_variable
declare
    c          flyball.cron;
    unique_key constant text := 'cron:' || name;
begin
    if not has_table_privilege(flyball.caller(), 'flyball.cron'::regclass, 'UPDATE') then
        raise exception using errcode = '42501', message = format('role %s may not run schedules: it has no right to update flyball.cron',
            to_json(flyball.caller()));
    end if;
    perform flyball.refuse_tenant_role('run_schedule');
    select * into c from flyball.cron k where k.name = name;
    if not found then
        return;
    end if;
    if c.overlap = 'skip' and c.last_job_id is not null
        and exists (select from flyball.job j where j.id = c.last_job_id and j.kind <> c.kind)
        and flyball.job_state(c.last_job_id) in ('ready', 'scheduled', 'retryable', 'running')
    then
        job_id := c.last_job_id;
        duplicate := true;
        return;
    end if;
    -- A message that a schedule repeats is no duplicate of the one before.
    if flyball.needs_plan(c.kind, c.args) and c.args ->> 'dedup_key' is null then
        c.args := c.args || jsonb_build_object('dedup_key',
            format('cron %s %s', md5(name), extract(epoch from coalesce(at, clock_timestamp()))));
    end if;
    select e.job_id, e.duplicate into job_id, duplicate
    from flyball.enqueue_rows_as('cron', true, array[c.kind], array[c.args], array[c.throttle], array[c.key], array[c.priority::int],
        array[at], array[c.max_attempts::int],
        array[case when c.overlap = 'skip' then unique_key when at is not null
            then unique_key || '@' || extract(epoch from at)::bigint end],
        array[case when c.overlap <> 'skip' and at is not null then 3600::float8 end],
        array[c.cost::float8], array[null::text], array[c.timeout_s::float8], array[null::float8], array[null::float8], array[false],
        options => array[flyball.options_of(jsonb_build_object('tags', c.tags, 'retry', c.retry))]) e;
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
--
-- Each occurrence stands for itself: after one that is refused, the jobs made before it stay. With
-- catch_up `all` the refused one and those after it are tried again with the next one, at most the
-- newest 100. A schedule that was paused, or got other times, has no next occurrence here and
-- forgets them.
--
-- An occurrence that was handled when the clock of the server was ahead, by more than a minute,
-- holds up no other: occurrences are made by the clock as it is. A schedule whose time zone a
-- process does not know is left to others, which may know it.
create function flyball.advance_schedule(
    name text, expression text, time_zone text, seen_next_at timestamptz,
    occurrences timestamptz[], next_at timestamptz, problem text)
returns table (made int, skipped int, refused text)
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    c         flyball.cron;
    retries   boolean;
    at        timestamptz;
    job       record;
    last_id   bigint;
    last_at   timestamptz;
    -- The time up to which occurrences were handled; null if the clock was ahead then.
    handled   timestamptz;
    present   constant timestamptz := clock_timestamp() + interval '1 minute';
    -- The occurrence that was due.
    due_at    timestamptz;
    remaining timestamptz[];
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
    due_at := coalesce(c.next_at, case when c.problem like 'time_zone: %' then c.missed_at end);
    if next_at is null and problem like 'time_zone: %' then
        update flyball.cron k
        set next_at = null, problem = problem, missed_at = due_at, retry_at = clock_timestamp() + interval '1 minute'
        where k.name = name;
        return next;
        return;
    end if;
    retries := c.catch_up = 'all' and due_at is not null;
    if retries and c.to_retry is not null then
        occurrences := array(
            select n.at
            from (
                select distinct o.at from unnest(c.to_retry || occurrences) as o(at) where o.at <= present order by o.at desc limit 100
            ) n
            order by n.at);
    end if;
    last_at := occurrences[cardinality(occurrences)];
    handled := case when c.last_at <= present then c.last_at end;
    foreach at in array occurrences loop
        continue when at <= handled;
        begin
            select m.job_id, m.duplicate into job from flyball.enqueue_occurrence(c.name, at) m;
        -- A full lane that refuses jobs (53400) is such a problem too, and not a failure of
        -- Postgres.
        exception when data_exception or integrity_constraint_violation or raise_exception or configuration_limit_exceeded
            or insufficient_privilege then
            refused := sqlerrm;
            if retries then
                remaining := array(select o.at from unnest(occurrences) as o(at) where o.at >= at order by o.at);
                last_at := (select max(o.at) from unnest(occurrences) as o(at) where o.at < at);
            end if;
            exit;
        end;
        if job.duplicate then
            skipped := skipped + 1;
        else
            made := made + 1;
            last_id := job.job_id;
        end if;
    end loop;
    update flyball.cron k
    set next_at = next_at,
        last_at = greatest(handled, last_at),
        last_job_id = coalesce(last_id, k.last_job_id),
        skipped_at = case when skipped > 0 then clock_timestamp() else k.skipped_at end,
        problem = refused,
        to_retry = remaining,
        missed_at = null,
        retry_at = null
    where k.name = name;
    return next;
end $$;
