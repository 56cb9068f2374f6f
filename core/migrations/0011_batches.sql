-- Chapter 11: batches: one request with many recipients, a message for each.

-- === Accept ======================================================================================

-- The id under which a message that is not enqueued yet counts as pending.
create function flyball.place_in_queue(batch_id bigint, place int) returns bigint
language sql immutable parallel safe
return -(batch_id * 1000 + place);

-- Gives back the places in the queue of the messages of a batch that were not enqueued.
create function flyball.free_places(batch flyball.batch) returns void
language sql volatile as $$
    delete from flyball.pending p
    where p.ctid = any(array(
        select q.tid from generate_series(1, batch.recipients) n
        cross join lateral (
            select o.ctid as tid from flyball.pending o
            where o.tenant = batch.tenant and o.job_id = flyball.place_in_queue(batch.id, n) limit 1
        ) q))
$$;

-- Enqueues the messages of a batch: the first `admitted` of them at once, the others to wait.
-- Returns their jobs in order.
create function flyball.enqueue_batch_messages(batch flyball.batch, messages jsonb, admitted int)
returns table (job_id bigint, duplicate boolean)
language plpgsql volatile as $$
#variable_conflict use_column
declare
    part record;
begin
    for part in
        select g.n <= admitted as immediate, array_agg(g.message -> 'args' order by g.n) as args,
            array_agg(g.message ->> 'key' order by g.n) as keys,
            array_agg(g.message ->> 'unique_key' order by g.n) as unique_keys, count(*)::int as size
        from jsonb_array_elements(messages) with ordinality as g(message, n)
        group by 1 order by 1 desc
    loop
        return query
        with enqueued as materialized (
            select e.job_id, e.duplicate, e.n
            from flyball.enqueue_rows_as(case when batch.tenant <> '' then 'tenant:' || batch.tenant else '' end, true,
                array_fill('notification'::text, array[part.size]), part.args,
                array_fill(batch.pool, array[part.size]), part.keys, array_fill(batch.priority::int, array[part.size]),
                array_fill(batch.run_at, array[part.size]), array_fill(10, array[part.size]), part.unique_keys,
                array_fill(null::float8, array[part.size]), array_fill(1::float8, array[part.size]),
                array_fill(null::text, array[part.size]), array_fill(null::float8, array[part.size]),
                array_fill(null::float8, array[part.size]), array_fill(null::float8, array[part.size]),
                array_fill(false, array[part.size]), batch.module, part.immediate)
                with ordinality as e(job_id, duplicate, replaced, backlog, n)
        ),
        -- A message that holds the unique key belongs to the batch that sent it.
        recorded as (
            insert into flyball.batch_message (job_id, batch_id)
            select m.job_id, batch.id from enqueued m where not m.duplicate
            on conflict do nothing
        )
        select m.job_id, m.duplicate from enqueued m order by m.n;
    end loop;
end $$;

-- Enqueues the job that enqueues the messages of a batch. The batch knows its job, and since when
-- it waits for it.
create function flyball.enqueue_expansion(batch_id bigint) returns void
language plpgsql volatile as $$
#variable_conflict use_column
declare
    expansion bigint;
begin
    select e.job_id into expansion
    from flyball.enqueue_rows_as('', true, array['batch'], array[jsonb_build_object('batch', enqueue_expansion.batch_id)],
        array['default'], array[''], array[1], array[null::timestamptz], array[20], array['batch:' || enqueue_expansion.batch_id],
        array[null::float8], array[1::float8], array[null::text], array[null::float8], array[null::float8], array[null::float8],
        array[false]) e;
    update flyball.batch b set expansion_job_id = expansion, updated_at = now() where b.id = enqueue_expansion.batch_id;
end $$;

-- Accepts a batch for an entry point that knows the sender. Up to 100 recipients are enqueued at
-- once, and `jobs` are their messages; for more, a job enqueues them. `admitted` is the number of
-- slots that the entry point took; they are not used if others of the module wait, or if a message
-- beyond the slots has a unique key: the messages with slots are enqueued before the others, and
-- all keys are taken in one order and before the places in the queue. The whole batch is refused if
-- it does not fit into the queue of the tenant.
create function flyball.accept_batch(
    tenant text, module text, digest bytea, body bytea, has_key boolean, admitted int,
    pool text, priority int, run_at timestamptz, messages jsonb, is_urgent boolean,
    out answer text, out job_id bigint, out batch_id bigint, out used int, out jobs bigint[])
language plpgsql volatile as $$
#variable_conflict use_variable
declare
    size  constant int := jsonb_array_length(messages);
    batch flyball.batch;
begin
    select f.answer, f.job_id, f.batch_id into answer, job_id, batch_id
    from flyball.find_request(digest, body, has_key, true) f;
    if answer <> 'new' then
        return;
    end if;
    used := case when admitted > 0 and (is_urgent or not flyball.has_waiting(tenant, module)) then least(admitted, size) else 0 end;
    if used between 1 and size - 1 then
        select case when max(g.n) > used then 0 else used end into used
        from jsonb_array_elements(messages) with ordinality as g(message, n)
        where g.message ->> 'unique_key' is not null;
    end if;
    insert into flyball.batch as b (tenant, module, state, pool, priority, run_at, recipients, messages)
    values (tenant, module, case when size > 100 then 'expanding' else 'running' end, pool, priority, run_at, size,
        case when size > 100 then messages else '[]' end)
    returning b.* into batch;
    batch_id := batch.id;
    if size > 100 then
        used := 0;
        if tenant <> '' then
            perform flyball.record_pending('batch', tenant,
                array(select flyball.place_in_queue(batch.id, n) from generate_series(1, size) n), is_urgent);
        end if;
        perform flyball.enqueue_expansion(batch.id);
    else
        jobs := array(select e.job_id from flyball.enqueue_batch_messages(batch, messages, used) e);
        if used > 0 and tenant <> '' then
            perform flyball.record_module(tenant, module);
        end if;
    end if;
    if digest is not null and has_key then
        perform flyball.remember_request(digest, body, null, batch.id);
    end if;
end $$;

-- Enqueues the messages of a batch that are not enqueued yet; returns their number, or null if
-- there is nothing to do, because the batch is complete, paused or cancelled. A pause and a
-- cancellation wait for it, so it waits no longer than its lock timeout for a key or a place that
-- an open transaction has.
create function flyball.expand_batch(batch_id bigint) returns int
language plpgsql volatile set lock_timeout = '700ms' set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    batch flyball.batch;
begin
    -- A batch that is paused or cancelled meanwhile waits for the messages, or this sees it.
    select b.* into batch from flyball.batch b where b.id = batch_id for update;
    if not found or batch.state <> 'expanding' then
        return null;
    end if;
    perform flyball.free_places(batch);
    perform flyball.enqueue_batch_messages(batch, batch.messages, 0);
    update flyball.batch b set messages = '[]', state = 'running', updated_at = now() where b.id = batch_id;
    return jsonb_array_length(batch.messages);
end $$;

-- === Pause and resume ============================================================================

-- The jobs of a batch with their lanes.
create function flyball.batch_jobs(batch_id bigint)
returns table (job_id bigint, lane_id bigint, admission_lane bigint, priority smallint)
language sql stable set enable_seqscan = off set search_path = pg_catalog, pg_temp set jit = off as $$
    select m.job_id, j.lane_id, j.admission_lane, j.priority
    from flyball.batch_message m
    cross join lateral (select * from flyball.job where id = m.job_id limit 1) j
    where m.batch_id = batch_jobs.batch_id
$$;

-- Pauses a batch: its waiting messages are put aside, also those that wait for a time, and further
-- ones are not enqueued. Messages that were not tried come back before the limits of its tenant,
-- where they use no slot while they are put aside. A pause by operators takes the place of one by
-- the tenant. Returns its state, or null if the tenant has no such batch; the tenant null stands
-- for all.
create function flyball.pause_batch(tenant text, batch_id bigint, by text default null, why text default '') returns text
language plpgsql volatile set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off as $$
#variable_conflict use_variable
declare
    found_state text;
begin
    select b.state into found_state from flyball.batch b
    where b.id = batch_id and (pause_batch.tenant is null or b.tenant = pause_batch.tenant) for update;
    if found_state = 'paused' and pause_batch.tenant is null then
        update flyball.batch b set paused_by_operators = true where b.id = batch_id and not b.paused_by_operators;
        if found then
            perform flyball.write_audit(null, flyball.audit_actor(pause_batch.by), 'batch.pause', batch_id::text,
                jsonb_build_object('state', found_state), jsonb_build_object('state', found_state), pause_batch.why);
        end if;
    end if;
    if found_state is null or found_state not in ('expanding', 'running') then
        return found_state;
    end if;
    update flyball.batch b
    set state = 'paused', paused_by_operators = pause_batch.tenant is null, updated_at = now()
    where b.id = batch_id;
    -- A planner has all messages of a batch for a while that was enqueued just now, and others may be
    -- on their way from one lane to another. So look again until each is put aside or runs.
    for look in 1..100 loop
        with members as materialized (
            select j.* from flyball.batch_jobs(batch_id) j
        ),
        was_ready as (
            delete from flyball.ready
            where ctid = any(array(
                select r.tid
                from members j
                cross join lateral (
                    select q.ctid as tid from flyball.ready q
                    where q.lane_id in (j.lane_id, j.admission_lane) and q.priority = j.priority and q.job_id = j.job_id
                    limit 1 for update skip locked
                ) r
            ))
            returning *
        ),
        was_scheduled as (
            delete from flyball.scheduled
            where ctid = any(array(
                select s.ctid from flyball.scheduled s
                where s.job_id = any(array(select j.job_id from members j)) and coalesce(s.run_at < now() + interval '3000 days', false)
                order by s.job_id for update skip locked
            ))
            returning *
        ),
        removed as materialized (
            select r.job_id, r.lane_id, r.priority, r.attempt, r.cost, false as retry, r.holds_unique, now() as run_at, null::smallint as turn
            from was_ready r
            union all
            select s.job_id, s.lane_id, s.priority, s.attempt, s.cost, s.retry, s.holds_unique, s.run_at, s.turn from was_scheduled s
        ),
        waiting as materialized (
            select w.job_id, w.lane_id from flyball.await_admission(array(select t.job_id from removed t where t.attempt = 0 and not t.retry)) w
        ),
        noted as (
            -- Each has its row.
            insert into flyball.batch_message (job_id, batch_id, resumes_at, resumes_turn)
            select t.job_id, batch_id, t.run_at, t.turn from removed t
            on conflict on constraint batch_message_pkey do update set resumes_at = excluded.resumes_at, resumes_turn = excluded.resumes_turn
        )
        insert into flyball.scheduled (job_id, run_at, lane_id, priority, attempt, cost, retry, holds_unique)
        select t.job_id, now() + interval '3650 days', coalesce(w.lane_id, t.lane_id), t.priority, t.attempt, t.cost, t.retry, t.holds_unique
        from removed t
        left join waiting w on w.job_id = t.job_id;
        exit when not exists (
            select from flyball.batch_jobs(batch_id) j
            where exists (
                    select from flyball.ready r
                    where r.lane_id in (j.lane_id, j.admission_lane) and r.priority = j.priority and r.job_id = j.job_id)
                or exists (
                    select from flyball.scheduled s where s.job_id = j.job_id and coalesce(s.run_at < now() + interval '3000 days', false)));
        perform pg_sleep(0.01);
    end loop;
    perform flyball.write_audit(null, flyball.audit_actor(pause_batch.by), 'batch.pause', batch_id::text,
        jsonb_build_object('state', found_state), jsonb_build_object('state', 'paused'), pause_batch.why);
    return 'paused';
end $$;

-- Resumes a paused batch. Messages that waited for a time when it was paused wait for it again. For
-- a tenant a batch that operators have paused stays paused.
create function flyball.resume_batch(tenant text, batch_id bigint, by text default null, why text default '') returns text
language plpgsql volatile set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off as $$
#variable_conflict use_variable
declare
    found_state  text;
    remaining    int;
    by_operators boolean;
begin
    select b.state, jsonb_array_length(b.messages), b.paused_by_operators into found_state, remaining, by_operators
    from flyball.batch b
    where b.id = batch_id and (resume_batch.tenant is null or b.tenant = resume_batch.tenant) for update;
    if found_state is distinct from 'paused' or by_operators and resume_batch.tenant is not null then
        return found_state;
    end if;
    found_state := case when remaining > 0 then 'expanding' else 'running' end;
    update flyball.batch b set state = found_state, paused_by_operators = false, updated_at = now() where b.id = batch_id;
    -- A producer that has replaced one of them may wait for another one, so this has all of them or
    -- none, and looks again.
    for look in 1..100 loop
        begin
            perform from flyball.scheduled s
            where s.job_id = any(array(
                select m.job_id from flyball.batch_message m where m.batch_id = resume_batch.batch_id and m.resumes_at is not null))
            for update nowait;
            exit;
        exception when lock_not_available then
            if look = 100 then
                raise exception using errcode = '40001',
                    message = format('resume_batch: an open transaction has a message of batch %s; try again', batch_id);
            end if;
        end;
        perform pg_sleep(0.01);
    end loop;
    -- One of them may have got another time since.
    update flyball.scheduled s
    set (run_at, turn) = (
        select greatest(m.resumes_at, now()), coalesce(m.resumes_turn, s.turn)
        from flyball.batch_message m where m.job_id = s.job_id limit 1)
    where s.job_id = any(array(
            select m.job_id from flyball.batch_message m where m.batch_id = resume_batch.batch_id and m.resumes_at is not null))
        and coalesce(s.run_at > now() + interval '3000 days', false);
    update flyball.batch_message m set resumes_at = null, resumes_turn = null
    where m.batch_id = resume_batch.batch_id and m.resumes_at is not null;
    if remaining > 0 then
        perform flyball.enqueue_expansion(batch_id);
    end if;
    perform pg_notify('flyball_plan', '');
    perform flyball.write_audit(null, flyball.audit_actor(resume_batch.by), 'batch.resume', batch_id::text,
        jsonb_build_object('state', 'paused'), jsonb_build_object('state', found_state), resume_batch.why);
    return found_state;
end $$;

-- The pause of the batch of a message, as a sentence without its end; null for any other.
create function flyball.batch_pause(job_id bigint) returns text
language sql stable set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off as $$
    select format('its batch %s is paused by %s since %s', b.id, case when b.paused_by_operators then 'operators' else 'the tenant' end,
        flyball.time_text(date_trunc('second', b.updated_at)))
    from flyball.batch b
    where b.id = (select m.batch_id from flyball.batch_message m where m.job_id = batch_pause.job_id limit 1)
        and coalesce(b.state = 'paused', false)
$$;

-- === Cancel ======================================================================================

-- Withdraws those of these messages that are items of open digests, and returns them. A digest that
-- is empty then sends nothing at its time: it stays, because one whose type lets the first item go
-- at once says when that may happen again.
create function flyball.withdraw_items(jobs bigint[]) returns bigint[]
language plpgsql volatile set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
declare
    items     constant bigint[] := array(
        select i.job_id from unnest(jobs) as a(id)
        cross join lateral (select o.job_id from flyball.digest_item o where o.job_id between a.id and a.id order by o.job_id) i);
    claimed   bigint[];
    withdrawn bigint[];
begin
    if items = '{}' then
        return items;
    end if;
    -- As planners lock them: claims before digests, each in the order of their keys.
    claimed := array(
        select k.claim
        from (
            select c.claim, p.job_id
            from unnest(items) as a(id)
            cross join lateral (select h.recipient, h.job_id from flyball.message_plan h where h.job_id = a.id limit 1) p
            cross join lateral flyball.claims_of(p.recipient, array[p.job_id]) as c(claim)
            order by c.claim
        ) k
        cross join lateral (
            select from flyball.dedup d where d.claim = k.claim and d.job_id = k.job_id for update
        ) l);
    -- Such a digest cannot close, and gets no item, until this is through.
    perform from (
        select d.type, d.recipient, d.key
        from unnest(items) as a(id)
        cross join lateral (select o.digest_id from flyball.digest_item o where o.job_id between a.id and a.id order by o.job_id) i
        cross join lateral (
            select g.type, g.recipient, g.key from flyball.digest g where g.id between i.digest_id and i.digest_id order by g.id
        ) d
        group by d.type, d.recipient, d.key
        order by d.type, d.recipient, d.key
    ) k
    cross join lateral (
        select from flyball.digest d where d.type = k.type and d.recipient = k.recipient and d.key = k.key for no key update
    ) l;
    with removed as (
        delete from flyball.digest_item i
        where i.ctid = any(array(
            select o.tid from unnest(items) as a(id)
            cross join lateral (
                select d.ctid as tid from flyball.digest_item d where d.job_id between a.id and a.id order by d.job_id
            ) o))
        returning i.digest_id, i.job_id
    ),
    fewer as (
        update flyball.digest d
        set items = d.items - (select count(*) from removed r where r.digest_id = d.id)
        where d.ctid = any(array(
            select g.tid from (select distinct r.digest_id from removed r) r
            cross join lateral (
                select h.ctid as tid from flyball.digest h where h.id between r.digest_id and r.digest_id order by h.id
            ) g))
    ),
    planned as (
        update flyball.message_plan p
        set state = 'ended', reason = 'cancelled', until = null, digest_id = null, since = clock_timestamp()
        where p.job_id = any (array(select r.job_id from removed r))
        returning p.job_id
    ),
    -- An equal message that comes later is no duplicate of one that is never seen.
    claims as (
        delete from flyball.dedup d where d.claim = any(claimed) and d.job_id = any(array(select p.job_id from planned p))
    ),
    delivered as (
        update flyball.delivery d
        set state = 'failed', last_outcome = 'cancelled', reason = 'cancelled', updated_at = clock_timestamp()
        where d.job_id = any (array(select r.job_id from removed r)) and d.state = 'collected'
    )
    select array(select r.job_id from removed r) into withdrawn;
    return withdrawn;
end $$;

-- Cancels a batch: messages that wait end now, those that run are asked to stop, no further one is
-- enqueued, and the items of its messages are withdrawn from open digests. `sent` are those that a
-- provider had accepted, `too_late` those that run, `ended` those that had ended otherwise, by
-- their states; together they add up to the recipients. Cancelling again counts again. A message
-- whose records were deleted after their retention is `forgotten`: its end is not known.
create function flyball.cancel_batch(tenant text, batch_id bigint, by text default null, why text default '',
    out state text, out sent int, out cancelled int, out too_late int, out ended jsonb)
language plpgsql volatile set enable_seqscan = off set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
declare
    batch   flyball.batch;
    was     text;
    members int;
    gone    bigint[];
begin
    select b.* into batch from flyball.batch b
    where b.id = batch_id and (cancel_batch.tenant is null or b.tenant = cancel_batch.tenant) for update;
    if not found then
        return;
    end if;
    was := batch.state;
    update flyball.batch b
    set state = 'cancelled', not_enqueued = b.not_enqueued + jsonb_array_length(b.messages), messages = '[]', updated_at = now()
    where b.id = batch_id
    returning b.* into batch;
    perform flyball.free_places(batch);
    -- A message may be on its way at each look: from the lane of its admission to that of its pool,
    -- to a worker, or back. So look again until each has ended, is asked to stop, or is cancelled.
    for look in 1..20 loop
        select c.cancelled_jobs into gone
        from flyball.cancel_live(array(select j.job_id from flyball.batch_jobs(batch_id) j)) c;
        update flyball.batch_message m set cancelled = true where m.job_id = any(gone);
        exit when not exists (
            select from flyball.batch_jobs(batch_id) j
            where exists (
                    select from flyball.ready r
                    where r.lane_id in (j.lane_id, j.admission_lane) and r.priority = j.priority and r.job_id = j.job_id)
                or exists (select from flyball.scheduled s where s.job_id = j.job_id)
                or exists (select from flyball.lease l where l.job_id = j.job_id)
                    and not exists (select from flyball.cancel c where c.job_id = j.job_id)
        );
        perform pg_sleep(0.005);
    end loop;
    -- Nothing of it becomes an item from here on.
    gone := flyball.withdraw_items(array(
        select m.job_id from flyball.batch_message m where m.batch_id = cancel_batch.batch_id and not m.cancelled));
    update flyball.batch_message m set cancelled = true where m.job_id = any(gone);
    state := 'cancelled';
    with found as materialized (
        select case
                when m.cancelled or n.state = 'failed' and n.reason = 'cancelled' then 'cancelled'
                when n.state = 'queued' and (
                    exists (select from flyball.lease l where l.job_id = j.job_id offset 0)
                    or exists (select from flyball.scheduled s where s.job_id = j.job_id offset 0)
                    or exists (
                        select from flyball.ready r
                        where r.lane_id in (j.lane_id, j.admission_lane) and r.priority = j.priority
                            and r.job_id = j.job_id offset 0)) then 'too_late'
                -- A job that has completed was sent, also without a record of its delivery.
                when n.state in ('queued', 'sent', 'delivered') then 'sent'
                else coalesce(n.state, 'forgotten') end as state
        from flyball.batch_message m
        left join flyball.batch_jobs(batch_id) j on j.job_id = m.job_id
        left join lateral (select v.state, v.reason from flyball.notification v where v.job_id = m.job_id limit 1) n on true
        where m.batch_id = cancel_batch.batch_id
    ),
    counted as (
        select f.state, count(*)::int as messages from found f group by 1
    )
    select coalesce(sum(c.messages) filter (where c.state = 'sent'), 0),
        coalesce(sum(c.messages) filter (where c.state = 'cancelled'), 0) + batch.not_enqueued,
        coalesce(sum(c.messages) filter (where c.state = 'too_late'), 0),
        coalesce(jsonb_object_agg(c.state, c.messages) filter (where c.state not in ('sent', 'cancelled', 'too_late')), '{}'),
        coalesce(sum(c.messages), 0)
    into sent, cancelled, too_late, ended, members
    from counted c;
    -- Another message holds the unique keys of the rest.
    if batch.recipients > members + batch.not_enqueued then
        ended := jsonb_set(ended, '{duplicate}',
            to_jsonb(coalesce((ended ->> 'duplicate')::int, 0) + batch.recipients - members - batch.not_enqueued));
    end if;
    if was <> 'cancelled' then
        perform flyball.write_audit(null, flyball.audit_actor(cancel_batch.by), 'batch.cancel', batch_id::text,
            jsonb_build_object('state', was),
            jsonb_build_object('state', state, 'sent', sent, 'cancelled', cancelled, 'too_late', too_late, 'ended', ended),
            cancel_batch.why);
    end if;
end $$;

-- === Maintenance =================================================================================

-- Looks at batches whose messages have not been enqueued for a while, the oldest first. If the job
-- that was to enqueue them is a dead letter or was cancelled, the batch ends, as if it was
-- cancelled then. If that job is over otherwise, another one is enqueued: it met a pause of the
-- batch that has ended, or its row is gone. Returns the numbers of batches that ended and of jobs
-- that were enqueued.
create function flyball.settle_expansions(older_than interval default '1 minute', most int default 100, out ended int, out enqueued int)
language plpgsql volatile set enable_seqscan = off set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
declare
    batch flyball.batch;
    fate  text;
    why   text;
begin
    ended := 0;
    enqueued := 0;
    for batch in
        select b.* from flyball.batch b
        where b.state = 'expanding' and b.updated_at < now() - older_than
        order by b.id
        limit most
        for update skip locked
    loop
        fate := coalesce(flyball.job_state(batch.expansion_job_id), 'deleted');
        if fate in ('dead', 'cancelled') then
            why := format('its messages could not be enqueued: job %s of the kind batch %s', batch.expansion_job_id,
                case fate when 'dead' then 'is a dead letter' else 'was cancelled' end);
            perform flyball.free_places(batch);
            update flyball.batch b
            set state = 'cancelled', not_enqueued = b.not_enqueued + jsonb_array_length(b.messages), messages = '[]', problem = why,
                updated_at = now()
            where b.id = batch.id;
            perform flyball.write_audit(null, flyball.audit_actor('flyball'), 'batch.cancel', batch.id::text,
                jsonb_build_object('state', batch.state),
                jsonb_build_object('state', 'cancelled', 'cancelled', batch.not_enqueued + jsonb_array_length(batch.messages)), why);
            ended := ended + 1;
        elsif fate in ('completed', 'deleted') then
            perform flyball.enqueue_expansion(batch.id);
            enqueued := enqueued + 1;
        end if;
    end loop;
end $$;

-- One step over batches older than this many days: deletes those of which no message has a record
-- any more. A message has one while its job or its delivery is kept, so a batch stays as long as
-- the last of its messages, whatever the retention of their kind. One process at a time; `more` is
-- false at the end.
create function flyball.forget_batches(days int, most int default 50, out deleted bigint, out more boolean)
language plpgsql volatile set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
declare
    behind  bigint;
    reached bigint;
    gone    bigint[];
begin
    deleted := 0;
    more := false;
    select w.walked_to into behind from flyball.batch_walk w for update skip locked;
    if not found then
        return;
    end if;
    with page as materialized (
        select b.id, b.created_at, b.updated_at, b.messages = '[]' as is_enqueued
        from flyball.batch b
        where b.id > behind
        order by b.id
        limit most
    ),
    old as materialized (
        select p.id, p.is_enqueued and p.updated_at < now() - make_interval(days => days) as is_still
        from page p
        where p.created_at < now() - make_interval(days => days)
    )
    select count(*) = most, max(o.id),
        array(
            select f.id from old f
            where f.is_still and (
                select 1 from flyball.batch_message m
                where m.batch_id = f.id
                    and ((select 1 from flyball.job j where j.id = m.job_id limit 1) is not null
                        or (select 1 from flyball.delivery d where d.job_id = m.job_id limit 1) is not null)
                limit 1
            ) is null
        )
    into more, reached, gone
    from old o;
    delete from flyball.batch_message m where m.batch_id = any (gone);
    delete from flyball.batch b where b.id = any (gone);
    deleted := cardinality(gone);
    update flyball.batch_walk w set walked_to = case when more then reached else 0 end
    where w.walked_to <> case when more then reached else 0 end;
end $$;

-- === Permissions =================================================================================

revoke execute on function flyball.place_in_queue, flyball.free_places, flyball.enqueue_batch_messages, flyball.enqueue_expansion,
    flyball.accept_batch, flyball.expand_batch, flyball.batch_jobs, flyball.pause_batch, flyball.resume_batch, flyball.batch_pause,
    flyball.withdraw_items, flyball.cancel_batch, flyball.settle_expansions,
    flyball.forget_batches
from public;
