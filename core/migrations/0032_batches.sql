-- Chapter 32: batches end with what became of all their messages; keys of senders without a tenant.

-- === Messages of senders without a tenant =========================================================

-- As in 0029, and also for a sender without a tenant: then `owner` is the owner of its unique keys, and
-- no slot is taken.
drop function flyball.accept_message(text, text, bytea, bytea, boolean, boolean, jsonb, text, text, int, timestamptz, text, text);
create function flyball.accept_message(
    tenant text, module text, digest bytea, body bytea, has_key boolean, admitted boolean,
    args jsonb, throttle text, key text, priority int, run_at timestamptz, unique_key text, traceparent text,
    owner text default null,
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
    from flyball.enqueue_rows_as(coalesce(owner, 'tenant:' || tenant), true, array['notification'], array[args], array[throttle],
        array[key], array[priority], array[run_at], array[10], array[unique_key], array[null::float8], array[1::float8],
        array[traceparent], array[null::float8], array[null::float8], array[null::float8], array[false], module, admitted) e;
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

revoke execute on function flyball.accept_message from public;
