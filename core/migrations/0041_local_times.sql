-- Chapter 41: messages that go at a time of their recipient's clock.

-- As in 0002, with the field `local_time`.
create or replace function flyball.needs_plan(kind text, args jsonb) returns boolean
language sql immutable parallel safe
return kind = 'notification'
    and (args ?| array['recipient', 'category', 'template_id', 'actor', 'digest', 'at_most', 'dedup_key', 'local_time'] or args ->> 'channel' = 'inapp');

-- Whether a text is a time of the recipient's clock, as `LocalTime::parse` reads it.
create function flyball.is_local_time(value text) returns boolean
language sql immutable strict parallel safe
return case
    when value ~ '^(2[0-9]{3}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])T)?([01][0-9]|2[0-3]):[0-5][0-9]$'
    then length(value) = 5
        or substr(value, 9, 2)::int
            <= extract(day from make_date(substr(value, 1, 4)::int, substr(value, 6, 2)::int, 1) + interval '1 month - 1 day')
    else false end;

revoke execute on function flyball.is_local_time from public;

-- As in 0006, but the deadline that a sender sets beside a local time counts from the end of a hold as
-- well. Where another gate holds the message after its time, that is later than the deadline of the
-- gates, which look again in each attempt.
create or replace function flyball.held_until_of(job_id bigint, args jsonb) returns timestamptz
language plpgsql stable set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
begin
    if flyball.needs_plan('notification', args)
        and (jsonb_typeof(args -> 'valid_for_s') is distinct from 'number' or args ->> 'local_time' is not null)
    then
        return (select p.until from flyball.message_plan p where p.job_id = held_until_of.job_id);
    end if;
    return null;
end $$;

-- Each part is put into its function as it is, because nothing else of it changes.
do $$
declare
    change record;
    body   text;
begin
    for change in
        select *
        from (values
            ('flyball.notify_many', '''at_most'', ''dedup_key''];', '''at_most'', ''dedup_key'', ''local_time''];'),
            ('flyball.notify_many', '            elsif not types ? (one.message ->> ''digest'') then',
                '            elsif not flyball.is_local_time(one.message ->> ''local_time'') then
                field := ''local_time'';
                problem := ''must be a time of the recipient''''s clock as HH:MM, or as YYYY-MM-DDTHH:MM of the years 2000 to 2999, such as 09:00 or 2026-12-01T09:00'';
            elsif one.message ->> ''local_time'' is not null and one.message ->> ''digest'' is not null then
                field := ''local_time'';
                problem := ''must be left out beside digest, which has times of its own'';
            elsif not types ? (one.message ->> ''digest'') then'),
            -- The planner knows the instant, and judges caps for it.
            ('flyball.refuse_capped',
                'where flyball.needs_plan(g.kind, g.args) and not g.duplicate and (g.run_at is null or g.run_at <= now())',
                'where flyball.needs_plan(g.kind, g.args) and not g.duplicate and (g.run_at is null or g.run_at <= now())
            and g.args ->> ''local_time'' is null')
        ) as c(name, was, becomes)
    loop
        body := pg_get_functiondef(change.name::regproc);
        if length(body) - length(replace(body, change.was, '')) <> length(change.was) then
            raise exception '% does not contain once: %', change.name, change.was;
        end if;
        execute replace(body, change.was, change.becomes);
    end loop;
end $$;
