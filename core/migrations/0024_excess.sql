-- Chapter 24: messages that a tenant sends beyond its limit, accepted and placed together.

-- Accepts messages of one module for which the entry point took no slot, as flyball.accept_message
-- accepts each. Element n of every array belongs to message n, and the rows come in that order. If
-- one is refused, none is accepted.
create function flyball.accept_excess(
    tenant text, module text, digests bytea[], bodies bytea[], have_keys boolean[],
    args jsonb[], throttles text[], keys text[], priorities int[], traceparents text[])
returns table (answer text, job_id bigint, batch_id bigint, held boolean)
language plpgsql volatile set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_variable
declare
    size    constant int := coalesce(cardinality(args), 0);
    owner   constant text := 'tenant:' || tenant;
    -- The messages that repeat no earlier request.
    fresh   int[] := '{}';
    ids     bigint[] := array_fill(null::bigint, array[size]);
    waiting boolean[] := array_fill(false, array[size]);
    answers text[] := array_fill(null::text, array[size]);
    batches bigint[] := array_fill(null::bigint, array[size]);
    new_ids bigint[];
    found   record;
begin
    for n in 1 .. size loop
        -- A request that comes twice is a repeat of its first one, which is remembered below.
        continue when digests[n] is not null and array_position(digests, digests[n]) < n;
        found := flyball.find_request(digests[n], bodies[n], have_keys[n], true);
        answers[n] := found.answer;
        ids[n] := found.job_id;
        batches[n] := found.batch_id;
        if found.answer = 'new' then
            fresh := fresh || n;
        end if;
    end loop;

    if fresh <> '{}' then
        select array_agg(e.job_id order by e.n) into new_ids
        from (
            select count(*)::int as size, array_agg(g.args order by g.n) as args, array_agg(g.throttle order by g.n) as throttles,
                array_agg(g.key order by g.n) as keys, array_agg(g.priority order by g.n) as priorities,
                array_agg(g.traceparent order by g.n) as traceparents
            from unnest(args, throttles, keys, priorities, traceparents) with ordinality as g(args, throttle, key, priority, traceparent, n)
            where g.n = any (fresh)
        ) g
        cross join lateral flyball.enqueue_rows_as(owner, true, array_fill('notification'::text, array[g.size]), g.args, g.throttles,
            g.keys, g.priorities, array_fill(null::timestamptz, array[g.size]), array_fill(10, array[g.size]),
            array_fill(null::text, array[g.size]), array_fill(null::float8, array[g.size]), array_fill(1::float8, array[g.size]),
            g.traceparents, array_fill(null::float8, array[g.size]), array_fill(null::float8, array[g.size]),
            array_fill(null::float8, array[g.size]), array_fill(false, array[g.size]), module, false)
            with ordinality as e(job_id, duplicate, replaced, backlog, n);
        for n in 1 .. cardinality(fresh) loop
            ids[fresh[n]] := new_ids[n];
            waiting[fresh[n]] := flyball.awaits_admission(new_ids[n]);
        end loop;
        if exists (select from unnest(args) with ordinality as g(args, n) where g.n = any (fresh) and flyball.needs_plan('notification', g.args)) then
            perform flyball.refuse_capped(tenant, new_ids, array_fill('notification'::text, array[cardinality(fresh)]),
                array(select g.args from unnest(args) with ordinality as g(args, n) where g.n = any (fresh) order by g.n),
                array_fill(null::timestamptz, array[cardinality(fresh)]), array_fill(false, array[cardinality(fresh)]));
        end if;
        for n in 1 .. cardinality(fresh) loop
            if digests[fresh[n]] is not null and (have_keys[fresh[n]] or waiting[fresh[n]]) then
                perform flyball.remember_request(digests[fresh[n]], bodies[fresh[n]], ids[fresh[n]], null);
            end if;
        end loop;
    end if;

    for n in 1 .. size loop
        continue when answers[n] is not null;
        found := flyball.find_request(digests[n], bodies[n], have_keys[n], true);
        answers[n] := found.answer;
        ids[n] := found.job_id;
        batches[n] := found.batch_id;
    end loop;
    return query select * from unnest(answers, ids, batches, waiting);
end $$;

-- The places of those of the messages that wait for their admission, as flyball.admission_place
-- tells them. That counts up to 10,000 messages, so it is asked for the last one of each lane and
-- priority; the others stand before that one.
create function flyball.admission_places(job_ids bigint[])
returns table (job_id bigint, place bigint, tenant_place bigint, tenant text, module text, priority smallint)
language plpgsql stable set enable_seqscan = off set enable_bitmapscan = off as $$
#variable_conflict use_column
begin
    return query
    with waiting as materialized (
        select j.id, j.admission_lane as lane, j.priority,
            row_number() over (partition by j.admission_lane, j.priority order by j.id desc) - 1 as behind
        from flyball.job j
        where j.id = any (admission_places.job_ids) and exists (
            select from flyball.ready r where r.lane_id = j.admission_lane and r.priority = j.priority and r.job_id = j.id)
    ),
    last as materialized (
        select w.lane, w.priority as waiting_priority, p.*
        from waiting w
        cross join lateral flyball.admission_place(w.id) p
        where w.behind = 0
    )
    select w.id, greatest(l.place - w.behind, 1), greatest(l.tenant_place - w.behind, 1), l.tenant, l.module, l.priority
    from waiting w
    join last l on l.lane = w.lane and l.waiting_priority = w.priority
    where l.place is not null;
end $$;

revoke execute on function flyball.accept_excess, flyball.admission_places from public;
