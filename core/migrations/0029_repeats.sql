-- Chapter 29: admission: repeats that were never told to come back, and the places of other modules.

-- As in 0009, but a message that is sent later is remembered only by its key: its sender was told 202,
-- so an equal one is a message of its own.
create or replace function flyball.accept_message(
    tenant text, module text, digest bytea, body bytea, has_key boolean, admitted boolean,
    args jsonb, throttle text, key text, priority int, run_at timestamptz, unique_key text, traceparent text,
    out answer text, out job_id bigint, out batch_id bigint, out duplicate boolean, out held boolean, out backlog jsonb)
language plpgsql volatile set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_variable
begin
    select f.answer, f.job_id, f.batch_id into answer, job_id, batch_id
    from flyball.find_request(digest, body, has_key, true) f;
    if answer <> 'new' then
        return;
    end if;
    admitted := admitted and (priority = 0 or not flyball.has_waiting(tenant, module));
    select e.job_id, e.duplicate, e.backlog into job_id, duplicate, backlog
    from flyball.enqueue_rows_as('tenant:' || tenant, true, array['notification'], array[args], array[throttle], array[key],
        array[priority], array[run_at], array[10], array[unique_key], array[null::float8], array[1::float8], array[traceparent],
        array[null::float8], array[null::float8], array[null::float8], array[false], module, admitted) e;
    if flyball.needs_plan('notification', args) then
        perform flyball.refuse_capped(tenant, array[job_id], array['notification'], array[args], array[run_at], array[duplicate]);
    end if;
    held := flyball.awaits_admission(job_id);
    if admitted then
        perform flyball.record_module(tenant, module);
    end if;
    if digest is not null and (has_key or held and coalesce(run_at <= now(), true)) then
        perform flyball.remember_request(digest, body, job_id, null);
    end if;
end $$;

-- The numbers of messages that wait in the other lanes of a tenant's admission, each counted up to
-- `most`, of up to 100 lanes, as flyball.admission_place counts them. The lanes after the 10,000th message
-- are left out: the client waits, and what comes that late is not told more exactly.
create function flyball.waiting_beside(tenant text, lane bigint, most bigint) returns bigint[]
language plpgsql stable set enable_seqscan = off set enable_bitmapscan = off as $$
#variable_conflict use_variable
declare
    counts bigint[] := '{}';
    total  bigint := 0;
    other  bigint;
    jobs   bigint;
begin
    for other in
        select l.lane_id from flyball.lane l
        where l.throttle = flyball.admission_throttle(tenant) and l.lane_id <> lane
        order by l.throttle, l.key limit 100
    loop
        select count(*) into jobs
        from (select from flyball.ready r where r.lane_id = other limit least(most, 10000)) page;
        continue when jobs = 0;
        counts := counts || jobs;
        total := total + jobs;
        exit when total >= 10000;
    end loop;
    return counts;
end $$;

revoke execute on function flyball.waiting_beside from public;
