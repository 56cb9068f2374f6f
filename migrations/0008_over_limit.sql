-- Chapter 8: throttles that drop what is over their limit, and throttles that merge what waits.

-- Where a job stands; null if there is no such job (any more). A job is in one table at a time, and nowhere once it has ended.
create or replace function flyball.job_state(job_id bigint) returns text
language sql stable security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
    select case
        when exists (select from flyball.lease l where l.job_id = j.id) then 'running'
        when exists (select from flyball.ready r where r.lane_id = j.lane_id and r.priority = j.priority and r.job_id = j.id) then 'ready'
        when exists (select from flyball.scheduled s where s.job_id = j.id and s.retry) then 'retryable'
        when exists (select from flyball.scheduled s where s.job_id = j.id) then 'scheduled'
        when exists (select from flyball.dead d where d.job_id = j.id) then 'dead'
        when (select a.outcome from flyball.attempt a where a.job_id = j.id order by a.finished_at desc limit 1)
            in ('cancelled', 'dropped') then 'cancelled'
        else 'completed' end
    from flyball.job j
    where j.id = job_state.job_id
$$;


-- === Merging =========================================================================================================

-- What was `admit` admits one job as it is told. The function of that name asks the throttle first.
alter function flyball.admit(text, text, jsonb, text, text, int, timestamptz, int, text, interval, float8, text, interval, interval,
    interval, boolean) rename to admit_as_told;

-- Enqueues one job, whose arguments have been checked, by all the rules. Where the throttle's knob `over_limit` says merge, a job
-- with a unique key takes the place of the one that waits, as if it had said `replace`, and the history of that one tells.
-- The record of the knobs is no older than a second or so; a word that is none counts as wait, as everywhere.
create function flyball.admit(
    door text,
    kind text, args jsonb, throttle text, key text, priority int, run_at timestamptz, max_attempts int,
    unique_key text, unique_for interval, cost float8, traceparent text, timeout interval,
    debounce interval, debounce_max interval, replace boolean,
    out job_id bigint, out duplicate boolean, out replaced boolean, out backlog jsonb)
language plpgsql volatile as $$
#variable_conflict use_variable
declare
    merges constant boolean := unique_key is not null and unique_for is null and debounce is null and not replace
        and exists (select from flyball.knobs b where b.throttle = throttle and b.fields ->> 'over_limit' = 'merge');
begin
    select a.job_id, a.duplicate, a.replaced, a.backlog into job_id, duplicate, replaced, backlog
    from flyball.admit_as_told(door, kind, args, throttle, key, priority, run_at, max_attempts, unique_key, unique_for, cost,
        traceparent, timeout, debounce, debounce_max, replace or merges) a;
    if merges and replaced then
        insert into flyball.attempt (job_id, attempt, outcome) values (job_id, 0, 'merged');
    end if;
end $$;
