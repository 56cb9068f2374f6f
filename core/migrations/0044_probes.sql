-- Chapter 44: plans that hold whatever the tables held when they were made.

-- A session plans a statement once. As it was, a plan that was made while nothing was ready read all ready jobs to
-- find those of a few messages, for as long as the session lasted: half a second for each message that came by
-- HTTP beside half a million ready jobs. The limit makes each of them a probe.
do $$
declare
    body constant text := pg_get_functiondef('flyball.admission_places(bigint[])'::regprocedure);
    was  constant text := 'and r.priority = j.priority and r.job_id = j.id)';
begin
    if length(body) - length(replace(body, was, '')) <> length(was) then
        raise exception 'flyball.admission_places does not contain once: %', was;
    end if;
    execute replace(body, was, 'and r.priority = j.priority and r.job_id = j.id offset 0)');
end $$;

-- Postgres planned their statements at each call, which took longer than the call itself.
alter function flyball.notify(text, jsonb, text, timestamptz, text)
    set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off;
alter function flyball.notify_many(jsonb)
    set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off;
