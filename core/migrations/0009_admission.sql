-- Chapter 9: admission: the messages of tenants, their limits, and batches.
--
-- A message of a tenant that has no free slot waits in its admission lane, the lane of the throttle
-- `notify:<tenant>` whose key is the module, in place of the lane that its job names. Workers
-- release it from there. So a waiting message is a ready job like any other: every operation sees
-- it.

-- The throttle that admits the messages of a tenant.
create function flyball.admission_throttle(tenant text) returns text
language sql immutable parallel safe
return 'notify:' || tenant;

-- === The queue of a tenant =======================================================================

-- The most messages of a tenant that may be pending; the row '*' is for all tenants without one.
create table flyball.tenant_limit (
    tenant      text primary key check (octet_length(tenant) between 1 and 64),
    max_pending int  not null check (max_pending between 1 and 10000000)
);
comment on table flyball.tenant_limit is 'The most pending messages of a tenant; the row * is for all tenants without a row.';

-- Messages that were accepted and may not have ended yet. A row is deleted some time after its
-- message has ended, and at once if it would make the queue look full: the end of a message writes
-- nothing here.
create table flyball.pending (
    tenant text   not null,
    job_id bigint not null,
    primary key (tenant, job_id)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off);

-- The ends of a tenant's messages, as far as they were noticed, for the rate at which its queue
-- drains: the count now, and at two earlier times at least a minute apart.
create table flyball.tenant_drain (
    tenant    text        primary key,
    swept_at  timestamptz not null default clock_timestamp(),
    ended     bigint      not null default 0,
    marked_at timestamptz not null default clock_timestamp(),
    marked    bigint      not null default 0,
    older_at  timestamptz not null default clock_timestamp(),
    older     bigint      not null default 0
) with (fillfactor = 50);

-- Forgets pending messages of a tenant that have ended, at most max_jobs; returns their number. One
-- statement and so one snapshot, in which a job is in one table only.
create function flyball.sweep_pending(tenant text, max_jobs int default 20000) returns bigint
language plpgsql volatile set enable_seqscan = off set enable_bitmapscan = off set jit = off as $$
#variable_conflict use_column
declare
    removed bigint;
begin
    with ended as materialized (
        select p.ctid as tid
        from (
            select q.ctid, q.job_id from flyball.pending q where q.tenant = sweep_pending.tenant and q.job_id > 0
            order by q.tenant, q.job_id limit max_jobs for update skip locked
        ) p
        left join lateral (
            select j.lane_id, j.admission_lane, j.priority from flyball.job j where j.id = p.job_id limit 1
        ) j on true
        where (select 1 from flyball.ready r
                where r.lane_id in (j.lane_id, j.admission_lane) and r.priority = j.priority and r.job_id = p.job_id limit 1) is null
            and (select 1 from flyball.lease l where l.job_id = p.job_id limit 1) is null
            and (select 1 from flyball.scheduled s where s.job_id = p.job_id limit 1) is null
            and (select 1 from flyball.digest_item i where i.job_id = p.job_id limit 1) is null
    ),
    deleted as (
        delete from flyball.pending where ctid = any(array(select e.tid from ended e)) returning 1
    )
    select count(*) into removed from deleted;
    insert into flyball.tenant_drain as d (tenant, ended) values (sweep_pending.tenant, removed)
    on conflict on constraint tenant_drain_pkey do update
    set ended = d.ended + removed, swept_at = clock_timestamp(),
        marked_at = case when d.marked_at < clock_timestamp() - interval '1 minute' then clock_timestamp() else d.marked_at end,
        marked = case when d.marked_at < clock_timestamp() - interval '1 minute' then d.ended + removed else d.marked end,
        older_at = case when d.marked_at < clock_timestamp() - interval '1 minute' then d.marked_at else d.older_at end,
        older = case when d.marked_at < clock_timestamp() - interval '1 minute' then d.marked else d.older end;
    return removed;
end $$;

-- Sweeps every tenant that has pending messages; returns the number forgotten.
create function flyball.sweep_all_pending() returns bigint
language plpgsql volatile as $$
declare
    current_tenant text;
    removed        bigint := 0;
begin
    loop
        -- One probe of the index for each tenant.
        select p.tenant into current_tenant from flyball.pending p where current_tenant is null or p.tenant > current_tenant order by p.tenant limit 1;
        exit when not found;
        removed := removed + flyball.sweep_pending(current_tenant);
    end loop;
    return removed;
end $$;

-- Records messages as pending, or refuses them all with 53400 if the queue of their tenant has no
-- room. Urgent ones may use a tenth more. Senders take turns once the queue is nine tenths full, or
-- if they send many at once, so that exactly the limit is accepted.
create function flyball.record_pending(entry_point text, tenant text, ids bigint[], urgent boolean) returns void
language plpgsql volatile set enable_seqscan = off set enable_bitmapscan = off as $$
#variable_conflict use_column
declare
    cap           int;
    pending_count bigint;
    adding        constant int := cardinality(ids);
    drained       float8;
    after         int;
begin
    select l.max_pending into cap from flyball.tenant_limit l
    where l.tenant in (record_pending.tenant, '*') order by l.tenant = '*' limit 1;
    if cap is not null then
        cap := case when urgent then cap + cap / 10 else cap end;
        if adding = 1 then
            select count(*) into pending_count
            from (select from flyball.pending p where p.tenant = record_pending.tenant limit cap + 1) as page;
        end if;
        if adding > 1 or pending_count + adding > cap * 0.9 then
            perform pg_advisory_xact_lock(hashtextextended('flyball.pending ' || record_pending.tenant, 0));
            select count(*) into pending_count
            from (select from flyball.pending p where p.tenant = record_pending.tenant limit cap + 1) as page;
        end if;
        if pending_count + adding > cap and not exists (
            select from flyball.tenant_drain d
            where d.tenant = record_pending.tenant and d.swept_at > clock_timestamp() - interval '1 second'
        ) then
            perform flyball.sweep_pending(record_pending.tenant);
            select count(*) into pending_count
            from (select from flyball.pending p where p.tenant = record_pending.tenant limit cap + 1) as page;
        end if;
        if pending_count + adding > cap then
            select (d.ended - d.older) / greatest(extract(epoch from clock_timestamp() - d.older_at), 1) into drained
            from flyball.tenant_drain d where d.tenant = record_pending.tenant;
            after := case when coalesce(drained, 0) > 0 then least(greatest(ceil((pending_count + adding - cap) / drained), 1), 300) else 300 end;
            raise exception using
                errcode = '53400',
                message = format('%s: the queue of tenant %s is full: %s of its messages are pending%s; the limit is %s', entry_point,
                    to_json(record_pending.tenant), pending_count, case when adding > 1 then format(' and %s more were sent', adding) else '' end, cap),
                hint = format('Nothing was enqueued. Try again in %s s.', after),
                constraint = 'tenant_queue', schema = record_pending.tenant, datatype = format('%s/%s/%s', pending_count, cap, after);
        end if;
    end if;
    insert into flyball.pending (tenant, job_id) select record_pending.tenant, unnest(ids);
end $$;

-- === Repeated requests ===========================================================================

-- Accepted requests, by the digest of the sender and the idempotency key, or of the sender and the
-- body for a message that had to wait and has no key.
create table flyball.idempotency (
    digest     bytea       primary key,
    body       bytea       not null,
    job_id     bigint,
    batch_id   bigint,
    expires_at timestamptz not null
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);
create index idempotency_expires on flyball.idempotency (expires_at);

-- Whether a message waits for its admission, now or later. Like the other functions that answer each
-- request it is one whose plans are kept.
create function flyball.awaits_admission(job_id bigint) returns boolean
language plpgsql stable set enable_seqscan = off as $$
begin
    return exists (
        select from flyball.job j
        where j.id = awaits_admission.job_id and j.admission_lane is not null
            and (exists (select from flyball.ready r where r.lane_id = j.admission_lane and r.priority = j.priority and r.job_id = j.id)
                or exists (select from flyball.scheduled s where s.job_id = j.id and s.lane_id = j.admission_lane))
    );
end $$;

-- Whether a message that was admitted is on its way, or was sent within the last minute.
create function flyball.is_just_sent(job_id bigint) returns boolean
language sql stable set enable_seqscan = off as $$
    select exists (
        select from flyball.job j
        where j.id = is_just_sent.job_id
            and (exists (select from flyball.ready r where r.lane_id = j.lane_id and r.priority = j.priority and r.job_id = j.id)
                or exists (select from flyball.lease l where l.job_id = j.id)
                or exists (select from flyball.scheduled s where s.job_id = j.id))
    ) or exists (
        select from flyball.attempt a
        where a.job_id = is_just_sent.job_id and a.outcome = 'completed' and a.finished_at > now() - interval '1 minute'
    )
$$;

-- Looks for the earlier request that this one repeats. Returns 'new'; 'running' while another
-- transaction handles the same request; 'conflict' if the key came with another body; 'replayed'
-- with the message or batch. With a lock, the request is this transaction's until it ends. A sender
-- without a key that comes back when it was told to finds its message admitted: it is told so once,
-- and an equal request after that is a message of its own.
create function flyball.find_request(digest bytea, body bytea, has_key boolean, locks boolean,
    out answer text, out job_id bigint, out batch_id bigint)
language plpgsql volatile as $$
#variable_conflict use_column
declare
    previous record;
    name     constant bigint := hashtextextended('flyball.request ' || encode(find_request.digest, 'hex'), 0);
begin
    answer := 'new';
    if find_request.digest is null then
        return;
    end if;
    if locks and has_key then
        if not pg_try_advisory_xact_lock(name) then
            answer := 'running';
            return;
        end if;
    elsif locks then
        perform pg_advisory_xact_lock(name);
    end if;
    select i.body, i.job_id, i.batch_id into previous from flyball.idempotency i
    where i.digest = find_request.digest and i.expires_at > now();
    if not found then
        return;
    elsif has_key and previous.body <> find_request.body then
        answer := 'conflict';
    elsif has_key or flyball.awaits_admission(previous.job_id) then
        answer := 'replayed';
        find_request.job_id := previous.job_id;
        find_request.batch_id := previous.batch_id;
    elsif flyball.is_just_sent(previous.job_id) then
        delete from flyball.idempotency i where i.digest = find_request.digest and i.job_id = previous.job_id;
        if found then
            answer := 'replayed';
            find_request.job_id := previous.job_id;
        end if;
    end if;
end $$;

-- Remembers a request for a day.
create function flyball.remember_request(digest bytea, body bytea, job_id bigint, batch_id bigint) returns void
language plpgsql volatile as $$
#variable_conflict use_column
begin
    insert into flyball.idempotency as i (digest, body, job_id, batch_id, expires_at)
    values (remember_request.digest, remember_request.body, remember_request.job_id, remember_request.batch_id, now() + interval '1 day')
    on conflict on constraint idempotency_pkey do update
    set body = excluded.body, job_id = excluded.job_id, batch_id = excluded.batch_id, expires_at = excluded.expires_at;
end $$;

-- === One message =================================================================================

-- Whether a message of this module would overtake others that wait for their admission.
create function flyball.has_waiting(tenant text, module text) returns boolean
language plpgsql stable set enable_seqscan = off as $$
declare
    lane constant bigint := flyball.lane_of(flyball.admission_throttle(tenant), module);
begin
    return exists (select from flyball.ready r where r.lane_id = lane);
end $$;

-- Adds a module to the directory of lanes. Workers add the lanes in which messages wait; a module whose
-- messages never wait is added here, so that operators see it.
create function flyball.record_module(tenant text, module text) returns void
language sql volatile as $$
    insert into flyball.lane (lane_id, throttle, key)
    select flyball.lane_of(t.throttle, record_module.module), t.throttle, record_module.module
    from flyball.admission_throttle(record_module.tenant) as t(throttle)
    on conflict do nothing
$$;

-- Accepts one message of a tenant for an entry point that knows the sender: enqueues it, with the
-- request's digests, and tells what became of it. `admitted` says that the entry point took a slot;
-- it is not used if others of the module wait.
create function flyball.accept_message(
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
    if digest is not null and (has_key or held) then
        perform flyball.remember_request(digest, body, job_id, null);
    end if;
end $$;

-- The place of a waiting message in its admission lane, from 1: among the messages of its module,
-- and among those of the tenant if all modules have the same share. Null if it does not wait.
-- Counting stops at 10,000.
create function flyball.admission_place(job_id bigint, out place bigint, out tenant_place bigint, out tenant text, out module text,
    out priority smallint)
language plpgsql stable set enable_seqscan = off set enable_bitmapscan = off as $$
#variable_conflict use_variable
declare
    most   constant int := 10000;
    target record;
begin
    select j.admission_lane as lane, j.priority, j.tenant, j.module into target
    from flyball.job j
    where j.id = job_id and exists (
        select from flyball.ready r where r.lane_id = j.admission_lane and r.priority = j.priority and r.job_id = j.id);
    if not found then
        return;
    end if;
    tenant := target.tenant;
    module := target.module;
    priority := target.priority;
    select count(*) into place from (
        select from flyball.ready r
        where r.lane_id = target.lane and (r.priority, r.job_id) <= (target.priority, job_id)
        limit most
    ) before;
    select place + coalesce(sum(o.jobs), 0) into tenant_place
    from (
        select l.lane_id from flyball.lane l
        where l.throttle = flyball.admission_throttle(target.tenant) and l.lane_id <> target.lane
        order by l.throttle, l.key limit 100
    ) l
    cross join lateral (
        select count(*) as jobs from (select from flyball.ready r where r.lane_id = l.lane_id limit least(place, most)) page
    ) o;
end $$;

revoke execute on function flyball.sweep_pending, flyball.sweep_all_pending, flyball.record_pending, flyball.awaits_admission,
    flyball.is_just_sent, flyball.find_request, flyball.remember_request, flyball.has_waiting, flyball.record_module,
    flyball.accept_message, flyball.admission_place
from public;

-- === Many messages ===============================================================================

insert into flyball.kind (name, public) values ('batch', false);

-- Batches: one request with many recipients. `messages` are those that are not enqueued yet, each with
-- its arguments, key and unique key; a job of the kind `batch` enqueues them.
create table flyball.batch (
    id         bigint      generated always as identity primary key,
    tenant     text        not null,
    module     text        not null,
    state      text        not null check (state in ('expanding', 'running', 'paused', 'cancelled')),
    pool       text        not null,
    priority   smallint    not null,
    run_at     timestamptz,
    recipients int         not null check (recipients > 0),
    messages   jsonb       not null,
    -- The recipients whose messages were cancelled before they were enqueued.
    not_enqueued int       not null default 0,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now()
) with (fillfactor = 70);
create index batch_tenant on flyball.batch (tenant, id);

create table flyball.batch_message (
    job_id    bigint  primary key,
    batch_id  bigint  not null,
    cancelled boolean not null default false
) with (fillfactor = 80);
create index batch_message_batch on flyball.batch_message (batch_id, job_id);

-- The id under which a message that is not enqueued yet counts as pending.
create function flyball.place_in_queue(batch_id bigint, place int) returns bigint
language sql immutable parallel safe
return -(batch_id * 1000 + place);

-- Enqueues the messages of a batch: the first `admitted` of them at once, the others to wait. Returns
-- their jobs in order.
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
            insert into flyball.batch_message (job_id, batch_id) select m.job_id, batch.id from enqueued m on conflict do nothing
        )
        select m.job_id, m.duplicate from enqueued m order by m.n;
    end loop;
end $$;

-- Accepts a batch for an entry point that knows the sender. Up to 100 recipients are enqueued now,
-- and `jobs` are their messages; for more, a job enqueues them. `admitted` is the number of slots
-- that the entry point took; they are not used if others of the module wait. The whole batch is
-- refused if it does not fit into the queue of the tenant.
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

-- Enqueues the job that enqueues the messages of a batch.
create function flyball.enqueue_expansion(batch_id bigint) returns void
language sql volatile as $$
    select flyball.enqueue_rows_as('', true, array['batch'], array[jsonb_build_object('batch', enqueue_expansion.batch_id)],
        array['default'], array[''], array[1], array[null::timestamptz], array[20], array['batch:' || enqueue_expansion.batch_id],
        array[null::float8], array[1::float8], array[null::text], array[null::float8], array[null::float8], array[null::float8],
        array[false])
$$;

-- Enqueues the messages of a batch that are not enqueued yet; returns their number, or null if there is
-- nothing to do, because the batch is complete, paused or cancelled.
create function flyball.expand_batch(batch_id bigint) returns int
language plpgsql volatile as $$
#variable_conflict use_variable
declare
    batch flyball.batch;
begin
    -- A batch that is paused or cancelled meanwhile waits for the messages, or this sees it.
    select b.* into batch from flyball.batch b where b.id = batch_id for update;
    if not found or batch.state <> 'expanding' then
        return null;
    end if;
    delete from flyball.pending p
    where p.tenant = batch.tenant
        and p.job_id = any(array(select flyball.place_in_queue(batch_id, n) from generate_series(1, batch.recipients) n));
    perform flyball.enqueue_batch_messages(batch, batch.messages, 0);
    update flyball.batch b set messages = '[]', state = 'running', updated_at = now() where b.id = batch_id;
    return jsonb_array_length(batch.messages);
end $$;

-- The jobs of a batch with their lanes.
create function flyball.batch_jobs(batch_id bigint)
returns table (job_id bigint, lane_id bigint, admission_lane bigint, priority smallint)
language sql stable set enable_seqscan = off as $$
    select m.job_id, j.lane_id, j.admission_lane, j.priority
    from flyball.batch_message m
    cross join lateral (select * from flyball.job where id = m.job_id limit 1) j
    where m.batch_id = batch_jobs.batch_id
$$;

-- Pauses a batch: its waiting messages are put aside, and further ones are not enqueued. Returns its
-- state, or null if the tenant has no such batch; the tenant null stands for all.
create function flyball.pause_batch(tenant text, batch_id bigint, by text default null, why text default '') returns text
language plpgsql volatile set enable_seqscan = off as $$
#variable_conflict use_variable
declare
    found_state text;
begin
    select b.state into found_state from flyball.batch b
    where b.id = batch_id and (pause_batch.tenant is null or b.tenant = pause_batch.tenant) for update;
    if found_state is null or found_state not in ('expanding', 'running') then
        return found_state;
    end if;
    update flyball.batch b set state = 'paused', updated_at = now() where b.id = batch_id;
    with removed as (
        delete from flyball.ready
        where ctid = any(array(
            select r.tid
            from flyball.batch_jobs(batch_id) j
            cross join lateral (
                select q.ctid as tid from flyball.ready q
                where q.lane_id in (j.lane_id, j.admission_lane) and q.priority = j.priority and q.job_id = j.job_id
                limit 1 for update skip locked
            ) r
        ))
        returning *
    )
    insert into flyball.scheduled (job_id, run_at, lane_id, priority, attempt, cost, retry, holds_unique)
    select t.job_id, now() + interval '3650 days', t.lane_id, t.priority, t.attempt, t.cost, false, t.holds_unique from removed t;
    perform flyball.write_audit(null, flyball.audit_actor(pause_batch.by), 'batch.pause', batch_id::text,
        jsonb_build_object('state', found_state), jsonb_build_object('state', 'paused'), pause_batch.why);
    return 'paused';
end $$;

-- Resumes a paused batch.
create function flyball.resume_batch(tenant text, batch_id bigint, by text default null, why text default '') returns text
language plpgsql volatile set enable_seqscan = off as $$
#variable_conflict use_variable
declare
    found_state text;
    remaining   int;
begin
    select b.state, jsonb_array_length(b.messages) into found_state, remaining from flyball.batch b
    where b.id = batch_id and (resume_batch.tenant is null or b.tenant = resume_batch.tenant) for update;
    if found_state is distinct from 'paused' then
        return found_state;
    end if;
    found_state := case when remaining > 0 then 'expanding' else 'running' end;
    update flyball.batch b set state = found_state, updated_at = now() where b.id = batch_id;
    update flyball.scheduled s set run_at = now()
    where s.job_id = any(array(select m.job_id from flyball.batch_message m where m.batch_id = resume_batch.batch_id))
        and s.run_at > now() + interval '3000 days';
    if remaining > 0 then
        perform flyball.enqueue_expansion(batch_id);
    end if;
    perform flyball.write_audit(null, flyball.audit_actor(resume_batch.by), 'batch.resume', batch_id::text,
        jsonb_build_object('state', 'paused'), jsonb_build_object('state', found_state), resume_batch.why);
    return found_state;
end $$;

-- Cancels jobs wherever they are: those that wait end, and those that run are asked to stop. Returns
-- the ids of the ones that ended, and how many were asked. A job may be on its way from one place to
-- another, so the caller looks again.
create function flyball.cancel_live(jobs bigint[], out cancelled_jobs bigint[], out requested bigint)
language plpgsql volatile set enable_seqscan = off as $$
#variable_conflict use_variable
begin
    with members as materialized (
        select a.job_id, j.lane_id, j.admission_lane, j.priority
        from unnest(jobs) as a(job_id)
        cross join lateral (select o.lane_id, o.admission_lane, o.priority from flyball.job o where o.id = a.job_id limit 1) j
    ),
    was_ready as (
        delete from flyball.ready
        where ctid = any(array(
            select r.tid from members j
            cross join lateral (
                select q.ctid as tid from flyball.ready q
                where q.lane_id in (j.lane_id, j.admission_lane) and q.priority = j.priority and q.job_id = j.job_id
                limit 1 for update skip locked
            ) r
        ))
        returning job_id, attempt
    ),
    was_scheduled as (
        delete from flyball.scheduled s where s.job_id = any(array(select j.job_id from members j)) returning s.job_id, s.attempt
    ),
    removed as (
        select * from was_ready union all select * from was_scheduled
    ),
    history as (
        insert into flyball.attempt (job_id, attempt, outcome) select w.job_id, w.attempt, 'cancelled' from removed w
    ),
    released_keys as (
        delete from flyball.unique_holder
        where digest = any(array(
            select u.digest from flyball.unique_holder u
            where u.expires_at is null and u.job_id = any(array(select w.job_id from removed w)) for update skip locked
        ))
    ),
    cancel_requests as (
        insert into flyball.cancel (job_id)
        select l.job_id from members j cross join lateral (select h.job_id from flyball.lease h where h.job_id = j.job_id limit 1) l
        on conflict do nothing
        returning flyball.cancel.job_id
    )
    select array(select w.job_id from removed w), (select count(*) from cancel_requests) into cancelled_jobs, requested;
end $$;

-- Cancels a batch: messages that wait end now, those that run are asked to stop, and no further one
-- is enqueued. `sent` are those that a provider had accepted, `too_late` those that run, `ended` those
-- that had ended otherwise, by their states; together they add up to the recipients. Cancelling again
-- counts again.
create function flyball.cancel_batch(tenant text, batch_id bigint, by text default null, why text default '',
    out state text, out sent int, out cancelled int, out too_late int, out ended jsonb)
language plpgsql volatile set enable_seqscan = off as $$
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
    delete from flyball.pending p
    where p.tenant = batch.tenant
        and p.job_id = any(array(select flyball.place_in_queue(batch_id, n) from generate_series(1, batch.recipients) n));
    -- A message may be on its way at each look: from the lane of its admission to that of its pool, to a
    -- worker, or back. So look again until each has ended, is asked to stop, or is cancelled.
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
    state := 'cancelled';
    with found as materialized (
        select case
                when m.cancelled or n.state = 'failed' and n.reason = 'cancelled' then 'cancelled'
                when n.state = 'queued' and (
                    exists (select from flyball.lease l where l.job_id = j.job_id)
                    or exists (select from flyball.scheduled s where s.job_id = j.job_id)
                    or exists (
                        select from flyball.ready r
                        where r.lane_id in (j.lane_id, j.admission_lane) and r.priority = j.priority and r.job_id = j.job_id)) then 'too_late'
                -- A job that has completed was sent, also where its record is gone.
                when coalesce(n.state, 'queued') in ('queued', 'sent', 'delivered') then 'sent'
                else n.state end as state
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
            jsonb_build_object('state', state, 'sent', sent, 'cancelled', cancelled, 'too_late', too_late, 'ended', ended), cancel_batch.why);
    end if;
end $$;

-- The state of a message's batch; null if it is in none.
create function flyball.batch_state(job_id bigint) returns text
language sql stable set enable_seqscan = off as $$
    select b.state from flyball.batch_message m join flyball.batch b on b.id = m.batch_id where m.job_id = batch_state.job_id
$$;

revoke execute on function flyball.place_in_queue, flyball.enqueue_batch_messages, flyball.accept_batch, flyball.enqueue_expansion,
    flyball.expand_batch, flyball.batch_jobs, flyball.pause_batch, flyball.resume_batch, flyball.cancel_live, flyball.cancel_batch, flyball.batch_state
from public;
