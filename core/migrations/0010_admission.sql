-- Chapter 10: admission: the messages of tenants and their limits, and messages by SQL.
--
-- A message of a tenant that has no free slot waits in its admission lane, the lane of the throttle
-- `notify:<tenant>` whose key is the module, in place of the lane that its job names. Workers
-- release it from there. So a waiting message is a ready job like any other: every operation sees
-- it.

-- === The queue of a tenant =======================================================================

-- Forgets pending messages of a tenant that have ended, of the first max_jobs behind a message.
-- `reached` is the last message that was looked at, or 0 if there is none behind it. One statement
-- and so one snapshot, in which a job is in one table only. Nothing is locked but what is deleted,
-- because most messages still wait; what another sweep has locked, which may be one within a
-- transaction of a producer, is left to it.
create function flyball.sweep_pending_behind(tenant text, behind bigint, max_jobs integer, out removed bigint, out reached bigint)
language plpgsql set enable_seqscan = off set enable_bitmapscan = off set jit = off set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    gone           bigint[];
    caller_timeout constant text := current_setting('lock_timeout');
begin
    with page as materialized (
        select q.ctid as tid, q.job_id from flyball.pending q where q.tenant = sweep_pending_behind.tenant and q.job_id > behind
        order by q.tenant, q.job_id limit max_jobs
    ),
    ended as materialized (
        select p.tid
        from page p
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
        delete from flyball.pending
        where ctid = any(array(
            select q.ctid from flyball.pending q where q.ctid = any(array(select e.tid from ended e)) for update skip locked
        ))
        returning job_id
    )
    select array(select d.job_id from deleted d), case when count(*) = max_jobs then max(p.job_id) else 0 end
    into gone, reached
    from page p;
    removed := cardinality(gone);
    if removed > 0 then
        -- A bound that another transaction moves just now stays too high until the next count.
        update flyball.pending_count c
        set pending = greatest(c.pending - (select count(*) from unnest(gone) as g(job_id) where g.job_id <= c.counted_to), 0)
        where c.ctid = any(array(
            select q.ctid from flyball.pending_count q where q.tenant = sweep_pending_behind.tenant for update skip locked));
    end if;
    begin
        perform set_config('lock_timeout', '50ms', true);
        insert into flyball.tenant_drain as d (tenant, ended, swept_to) values (sweep_pending_behind.tenant, removed, reached)
        on conflict on constraint tenant_drain_pkey do update
        set ended = d.ended + removed, swept_to = reached, swept_at = clock_timestamp(),
            marked_at = case when d.marked_at < clock_timestamp() - interval '1 minute' then clock_timestamp() else d.marked_at end,
            marked = case when d.marked_at < clock_timestamp() - interval '1 minute' then d.ended + removed else d.marked end,
            older_at = case when d.marked_at < clock_timestamp() - interval '1 minute' then d.marked_at else d.older_at end,
            older = case when d.marked_at < clock_timestamp() - interval '1 minute' then d.marked else d.older end;
        perform set_config('lock_timeout', caller_timeout, true);
    exception when lock_not_available then
        -- The figures of the other sweep do as well.
        null;
    end;
end $$;

-- Forgets pending messages of a tenant that have ended, at most max_jobs from the oldest on;
-- returns their number. Of a longer queue it also looks at the part behind the one that was looked
-- at last: what ended there would count until the oldest have ended.
create function flyball.sweep_pending(tenant text, max_jobs int default 20000) returns bigint
language plpgsql volatile as $$
declare
    behind constant bigint := coalesce((select d.swept_to from flyball.tenant_drain d where d.tenant = sweep_pending.tenant), 0);
    swept  record;
    total  bigint;
begin
    swept := flyball.sweep_pending_behind(sweep_pending.tenant, 0, max_jobs);
    total := swept.removed;
    if swept.reached > 0 then
        swept := flyball.sweep_pending_behind(sweep_pending.tenant, greatest(swept.reached, behind), max_jobs);
        total := total + swept.removed;
    end if;
    return total;
end $$;

-- Sweeps every tenant that has pending messages; returns the number forgotten. A long queue in
-- which most messages wait is swept a part at a time, because each look at it takes time from the
-- others.
create function flyball.sweep_all_pending() returns bigint
language plpgsql volatile as $$
declare
    part           constant int := 1000;
    current_tenant text;
    swept          record;
    removed        bigint := 0;
begin
    loop
        -- One probe of the index for each tenant.
        select p.tenant into current_tenant from flyball.pending p
        where current_tenant is null or p.tenant > current_tenant
        order by p.tenant limit 1;
        exit when not found;
        for n in 1 .. 10 loop
            swept := flyball.sweep_pending_behind(current_tenant,
                coalesce((select d.swept_to from flyball.tenant_drain d where d.tenant = current_tenant), 0), part);
            removed := removed + swept.removed;
            exit when swept.reached = 0 or swept.removed < part / 2;
        end loop;
    end loop;
    return removed;
end $$;

-- Records messages as pending, or refuses them all with 53400 if the queue of their tenant has no
-- room. Urgent ones may use a tenth more. Senders take turns once the queue is nine tenths full, or
-- if they send many at once, so that exactly the limit is accepted. Their turn is the lock of a row
-- in flyball.mutex, and that to write the count is the lock of its row, because every role that may
-- connect can keep an advisory lock.
--
-- A small addition to a long queue counts only the messages since the last count. One of several
-- messages does so only where sixteen such additions at once have room, because none of them sees
-- the others. The places of batches whose messages are not enqueued yet have numbers below 0, so
-- they are counted beside the bound. And the bound does not move on to the newest messages: one
-- that was enqueued before them may be committed after them, and would be missing. In a transaction
-- SERIALIZABLE Postgres remembers every look, so the size of the table tells first whether it can
-- be too much at all.
create function flyball.record_pending(entry_point text, tenant text, ids bigint[], urgent boolean) returns void
language plpgsql volatile set enable_seqscan = off set enable_bitmapscan = off set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_column
declare
    cap           int;
    pending_count bigint;
    adding        constant int := cardinality(ids);
    -- The messages behind the bound and the places of batches; at most newer_most of each are read.
    newer_most    constant int := 2000;
    -- The newest messages, which the bound leaves out.
    unsettled     constant int := 50;
    bound         bigint;
    newer         bigint;
    places        bigint;
    most          bigint;
    drained       float8;
    after         int;
    context       text;
begin
    select l.max_pending into cap from flyball.tenant_limit l
    where l.tenant in (record_pending.tenant, '*') order by l.tenant = '*' limit 1;
    if cap is null then
        insert into flyball.pending (tenant, job_id) select record_pending.tenant, unnest(ids);
        return;
    end if;
    cap := case when urgent then cap + cap / 10 else cap end;
    if current_setting('transaction_isolation') = 'serializable'
        and pg_relation_size('flyball.pending') < (cap - 16 * adding) * 44::bigint
    then
        insert into flyball.pending (tenant, job_id) select record_pending.tenant, unnest(ids);
        return;
    end if;
    if cap >= 1000 and adding <= 100 then
        select greatest(c.counted_to, 0), n.newer, w.places, c.pending + n.newer + w.places into bound, newer, places, most
        from flyball.pending_count c
        cross join lateral (
            select count(*) as newer
            from (
                select from flyball.pending p where p.tenant = c.tenant and p.job_id > greatest(c.counted_to, 0)
                order by p.tenant, p.job_id limit newer_most
            ) as page
        ) n
        cross join lateral (
            select count(*) as places
            from (
                select from flyball.pending p where p.tenant = c.tenant and p.job_id < 0
                order by p.tenant, p.job_id limit newer_most
            ) as page
        ) w
        where c.tenant = record_pending.tenant and c.counted_at > now() - interval '10 minutes';
        if newer + places < newer_most and most + adding <= cap * 0.9 and (adding = 1 or most + 16 * adding <= cap) then
            -- One transaction at a time moves the bound on; the others do not wait for it.
            if newer >= 2 * unsettled then
                perform from flyball.pending_count c
                where c.tenant = record_pending.tenant and greatest(c.counted_to, 0) = bound for update skip locked;
                if found then
                    update flyball.pending_count c set counted_to = s.job_id, pending = c.pending + s.jobs
                    from (
                        select max(page.job_id) as job_id, count(*) as jobs
                        from (
                            select p.job_id from flyball.pending p where p.tenant = record_pending.tenant and p.job_id > bound
                            order by p.tenant, p.job_id limit newer - unsettled
                        ) as page
                    ) s
                    where c.tenant = record_pending.tenant and s.jobs > 0;
                end if;
            end if;
            insert into flyball.pending (tenant, job_id) select record_pending.tenant, unnest(ids);
            return;
        end if;
    end if;

    if adding = 1 then
        select count(*) into pending_count
        from (select from flyball.pending p where p.tenant = record_pending.tenant limit cap + 1) as page;
    end if;
    if adding > 1 or pending_count + adding > cap * 0.9 then
        insert into flyball.mutex (name) values ('pending ' || record_pending.tenant) on conflict do nothing;
        perform from flyball.mutex m where m.name = 'pending ' || record_pending.tenant for update;
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
        after := case when coalesce(drained, 0) > 0 then least(greatest(ceil((pending_count + adding - cap) / drained), 1), 300)
            else 300 end;
        get diagnostics context = pg_context;
        raise exception using
            errcode = '53400',
            message = format('%s: the queue of tenant %s is full: %s of its messages are pending%s; the limit is %s',
                flyball.called_function(context, entry_point), to_json(record_pending.tenant), pending_count,
                case when adding > 1 then format(' and %s more were sent', adding) else '' end, cap),
            hint = format('Nothing was enqueued. Try again in %s s.', after),
            constraint = 'tenant_queue', schema = record_pending.tenant, datatype = format('%s/%s/%s', pending_count, cap, after);
    end if;
    if cap >= 1000 and adding <= 100 and (newer is null or newer >= newer_most / 2 or most - pending_count >= cap / 20) then
        perform from flyball.pending_count c where c.tenant = record_pending.tenant for update skip locked;
        -- The first row of a tenant is not there to be locked. Nobody else can compute this lock.
        if found or not exists (select from flyball.pending_count c where c.tenant = record_pending.tenant)
            and pg_try_advisory_xact_lock(flyball.request_lock(convert_to('first count of ' || record_pending.tenant, 'UTF8')))
        then
            insert into flyball.pending_count as c (tenant, counted_to, pending)
            select record_pending.tenant, s.job_id, (
                select count(*) from flyball.pending p
                where p.tenant = record_pending.tenant and p.job_id > 0 and p.job_id <= s.job_id
            )
            from (
                select coalesce((
                    select p.job_id from flyball.pending p where p.tenant = record_pending.tenant and p.job_id > 0
                    order by p.tenant desc, p.job_id desc offset unsettled limit 1
                ), 0) as job_id
            ) s
            on conflict on constraint pending_count_pkey do update
            set counted_to = excluded.counted_to, pending = excluded.pending, counted_at = now();
        end if;
    end if;
    insert into flyball.pending (tenant, job_id) select record_pending.tenant, unnest(ids);
end $$;

-- === Repeated requests ===========================================================================

-- Whether a message waits for its admission, now or later. Like the other functions that answer
-- each request it is one whose plans are kept.
create function flyball.awaits_admission(job_id bigint) returns boolean
language plpgsql stable set enable_seqscan = off set search_path = pg_catalog, pg_temp set jit = off as $$
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
language sql stable set enable_seqscan = off set search_path = pg_catalog, pg_temp set jit = off as $$
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

-- The numbers of messages that wait in the other lanes of a tenant's admission, each counted up to
-- `most`, of up to 100 lanes, as flyball.admission_place counts them. The lanes after the 10,000th
-- message are left out: the client waits, and what comes that late is not told more exactly.
create function flyball.waiting_beside(tenant text, lane bigint, most bigint) returns bigint[]
language plpgsql stable set enable_seqscan = off set enable_bitmapscan = off set search_path = pg_catalog, pg_temp set jit = off as $$
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

-- The lock of a request, as flyball.find_request takes it. Every role that may connect can keep an
-- advisory lock, so the name is made with the key of the installation, as digests of recipients
-- are: nobody else can compute it from the sender and the idempotency key.
create function flyball.request_lock(digest bytea) returns bigint
language sql stable
return hashtextextended('flyball.request ' || encode(flyball.keyed_digest(digest), 'hex'), 0);

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
begin
    answer := 'new';
    if find_request.digest is null then
        return;
    end if;
    if locks and has_key then
        if not pg_try_advisory_xact_lock(flyball.request_lock(find_request.digest)) then
            answer := 'running';
            return;
        end if;
    elsif locks then
        perform pg_advisory_xact_lock(flyball.request_lock(find_request.digest));
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

-- Remembers requests that made messages for a day. They come in the order in which they were
-- locked.
create function flyball.remember_requests(digests bytea[], bodies bytea[], job_ids bigint[]) returns void
language plpgsql volatile as $$
#variable_conflict use_column
begin
    insert into flyball.idempotency as i (digest, body, job_id, batch_id, expires_at)
    select g.digest, g.body, g.job_id, null, now() + interval '1 day'
    from unnest(digests, bodies, job_ids) as g(digest, body, job_id)
    on conflict on constraint idempotency_pkey do update
    set body = excluded.body, job_id = excluded.job_id, batch_id = excluded.batch_id, expires_at = excluded.expires_at;
end $$;

-- Enqueues one job as flyball.enqueue_rows_as does, unless the request is a repeat: `digest` is
-- that of the sender and its idempotency key, `body` that of the body. `answer` is that of
-- flyball.find_request; for `replayed` the job is the one of the first request.
create function flyball.enqueue_once(
    digest bytea, body bytea, owner text, module text,
    kinds text[], args jsonb[], throttles text[], keys text[], priorities int[], run_ats timestamptz[], max_attempts int[],
    unique_keys text[], unique_fors float8[], costs float8[], traceparents text[], timeouts float8[],
    debounces float8[], debounce_maxes float8[], replaces boolean[], groups bigint[], options jsonb[],
    out answer text, out job_id bigint, out duplicate boolean, out replaced boolean, out backlog jsonb)
language plpgsql volatile as $$
#variable_conflict use_variable
begin
    select f.answer, f.job_id into answer, job_id from flyball.find_request(digest, body, true, true) f;
    if answer <> 'new' then
        return;
    end if;
    select e.job_id, e.duplicate, e.replaced, e.backlog into job_id, duplicate, replaced, backlog
    from flyball.enqueue_rows_as(owner, true, kinds, args, throttles, keys, priorities, run_ats, max_attempts, unique_keys, unique_fors,
        costs, traceparents, timeouts, debounces, debounce_maxes, replaces, module, false, groups, options) e;
    perform flyball.remember_request(digest, body, job_id, null);
end $$;

-- === One message =================================================================================

-- Whether a message of this module would overtake others that wait for their admission.
create function flyball.has_waiting(tenant text, module text) returns boolean
language plpgsql stable set enable_seqscan = off set search_path = pg_catalog, pg_temp set jit = off as $$
declare
    lane constant bigint := flyball.lane_of(flyball.admission_throttle(tenant), module);
begin
    return exists (select from flyball.ready r where r.lane_id = lane);
end $$;

-- Adds a module to the directory of lanes. Workers add the lanes in which messages wait; a module
-- whose messages never wait is added here, so that operators see it. Its language keeps the plan of
-- its statement.
create function flyball.record_module(tenant text, module text) returns void
language plpgsql volatile as $$
#variable_conflict use_column
declare
    admission constant text := flyball.admission_throttle(record_module.tenant);
begin
    insert into flyball.lane (lane_id, throttle, key)
    values (flyball.lane_of(admission, record_module.module), admission, record_module.module)
    on conflict do nothing;
end $$;

-- Accepts one message of a tenant for an entry point that knows the sender: enqueues it, with the
-- request's digests, and tells what became of it. `admitted` says that the entry point took a slot;
-- it is not used if others of the module wait. A message that is sent later is remembered only by
-- its key: its sender was told 202, so an equal one is a message of its own. For a sender without a
-- tenant `owner` is the owner of its unique keys, and no slot is taken.
create function flyball.accept_message(
    tenant text, module text, digest bytea, body bytea, has_key boolean, admitted boolean,
    args jsonb, throttle text, key text, priority int, run_at timestamptz, unique_key text, traceparent text,
    owner text default null,
    out answer text, out job_id bigint, out batch_id bigint, out duplicate boolean, out held boolean, out backlog jsonb)
language plpgsql volatile set plan_cache_mode = force_generic_plan set search_path = pg_catalog, pg_temp as $$
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

-- The place of a waiting message in its admission lane, from 1: among the messages of its module,
-- and among those of the tenant if all modules have the same share. Null if it does not wait.
-- Counting stops at 10,000.
create function flyball.admission_place(job_id bigint, out place bigint, out tenant_place bigint, out tenant text, out module text,
    out priority smallint)
language plpgsql stable set enable_seqscan = off set enable_bitmapscan = off set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
declare
    most   constant int := 10000;
    target record;
begin
    select j.admission_lane as lane, j.priority, j.tenant, j.module into target
    from flyball.job j
    where j.id = job_id and exists (
        select from flyball.ready r where r.lane_id = j.admission_lane and r.priority = j.priority and r.job_id = j.id offset 0);
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

-- === Messages beyond the limit ===================================================================

-- Accepts messages of one module for which the entry point took no slot, as flyball.accept_message
-- accepts each. Element n of every array belongs to message n, and the rows come in that order. If
-- one is refused, none is accepted.
create function flyball.accept_excess(
    tenant text, module text, digests bytea[], bodies bytea[], have_keys boolean[],
    args jsonb[], throttles text[], keys text[], priorities int[], traceparents text[])
returns table (answer text, job_id bigint, batch_id bigint, held boolean)
language plpgsql volatile set plan_cache_mode = force_generic_plan set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    size     constant int := coalesce(cardinality(args), 0);
    -- True for each request that is this transaction's; the others are running elsewhere.
    taken    boolean[];
    -- The digests of earlier requests.
    known    bytea[];
    -- The messages that repeat no earlier request.
    fresh    int[] := '{}';
    ids      bigint[] := array_fill(null::bigint, array[size]);
    answers  text[] := array_fill(null::text, array[size]);
    batches  bigint[] := array_fill(null::bigint, array[size]);
    new_args jsonb[] := args;
    new_size int;
    new_ids  bigint[];
    found    record;
begin
    taken := array(
        select case when g.digest is null then true when g.has_key then pg_try_advisory_xact_lock(flyball.request_lock(g.digest))
            else pg_advisory_xact_lock(flyball.request_lock(g.digest)) is not null end
        from unnest(digests, have_keys) with ordinality as g(digest, has_key, n) order by g.n);
    known := array(select i.digest from flyball.idempotency i where i.digest = any (digests));
    for n in 1 .. size loop
        -- A request that comes twice is a repeat of its first one, which is remembered below.
        continue when digests[n] is not null and array_position(digests, digests[n]) < n;
        if not taken[n] then
            answers[n] := 'running';
        elsif digests[n] = any (known) then
            found := flyball.find_request(digests[n], bodies[n], have_keys[n], true);
            answers[n] := found.answer;
            ids[n] := found.job_id;
            batches[n] := found.batch_id;
        else
            answers[n] := 'new';
        end if;
        if answers[n] = 'new' then
            fresh := fresh || n;
        end if;
    end loop;

    new_size := cardinality(fresh);
    if new_size > 0 then
        if new_size < size then
            select array_agg(g.args order by g.n), array_agg(g.throttle order by g.n), array_agg(g.key order by g.n),
                array_agg(g.priority order by g.n), array_agg(g.traceparent order by g.n)
            into new_args, throttles, keys, priorities, traceparents
            from unnest(args, throttles, keys, priorities, traceparents) with ordinality as g(args, throttle, key, priority, traceparent, n)
            where g.n = any (fresh);
        end if;
        new_ids := array(
            select e.job_id
            from flyball.enqueue_rows_as('tenant:' || tenant, true, array_fill('notification'::text, array[new_size]), new_args, throttles,
                keys, priorities, array_fill(null::timestamptz, array[new_size]), array_fill(10, array[new_size]),
                array_fill(null::text, array[new_size]), array_fill(null::float8, array[new_size]), array_fill(1::float8, array[new_size]),
                traceparents, array_fill(null::float8, array[new_size]), array_fill(null::float8, array[new_size]),
                array_fill(null::float8, array[new_size]), array_fill(false, array[new_size]), module, false)
                with ordinality as e(job_id, duplicate, replaced, backlog, n)
            order by e.n);
        for n in 1 .. new_size loop
            ids[fresh[n]] := new_ids[n];
        end loop;
        if true = any (select flyball.needs_plan('notification', g.args) from unnest(new_args) as g(args)) then
            perform flyball.refuse_capped(tenant, new_ids, array_fill('notification'::text, array[new_size]), new_args,
                array_fill(null::timestamptz, array[new_size]), array_fill(false, array[new_size]));
        end if;
        perform flyball.remember_requests(
            array_agg(g.digest order by g.n), array_agg(g.body order by g.n), array_agg(g.id order by g.n))
        from unnest(digests, bodies, ids) with ordinality as g(digest, body, id, n)
        where g.n = any (fresh) and g.digest is not null
        having count(*) > 0;
    end if;

    for n in 1 .. size loop
        continue when answers[n] is not null;
        found := flyball.find_request(digests[n], bodies[n], have_keys[n], true);
        answers[n] := found.answer;
        ids[n] := found.job_id;
        batches[n] := found.batch_id;
    end loop;
    -- Without a slot every new message waits.
    return query select g.answer, g.id, g.batch_id, g.answer = 'new' from unnest(answers, ids, batches) as g(answer, id, batch_id);
end $$;

-- The places of those of the messages that wait for their admission, as flyball.admission_place
-- tells them. That counts up to 10,000 messages, so it is asked for the last one of each lane and
-- priority; the others stand before that one. `front` is the first message of the lane, or null if
-- that one has another priority.
create function flyball.admission_places(job_ids bigint[])
returns table (
    job_id bigint, place bigint, tenant_place bigint, tenant text, module text, priority smallint, lane bigint, front bigint)
language plpgsql stable set enable_seqscan = off set enable_bitmapscan = off set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_column
begin
    return query
    with waiting as materialized (
        select j.id, j.admission_lane as lane, j.priority,
            row_number() over (partition by j.admission_lane, j.priority order by j.id desc) - 1 as behind
        from flyball.job j
        where j.id = any (admission_places.job_ids) and exists (
            select from flyball.ready r where r.lane_id = j.admission_lane and r.priority = j.priority and r.job_id = j.id offset 0)
    ),
    last as materialized (
        select w.lane, w.priority as waiting_priority, p.*, case when f.priority = w.priority then f.job_id end as front
        from waiting w
        cross join lateral (
            select r.priority, r.job_id from flyball.ready r where r.lane_id = w.lane
            order by r.lane_id, r.priority, r.job_id limit 1
        ) f
        cross join lateral flyball.admission_place(w.id) p
        where w.behind = 0
    )
    select w.id, greatest(l.place - w.behind, 1), greatest(l.tenant_place - w.behind, 1), l.tenant, l.module, l.priority,
        l.lane, l.front
    from waiting w
    join last l on l.lane = w.lane and l.waiting_priority = w.priority
    where l.place is not null;
end $$;

-- The messages behind one whose place was counted, in order; none if the lane has another front by
-- now, because then messages have left it, or more urgent ones have come.
create function flyball.places_behind(lane bigint, priority smallint, front bigint, counted bigint) returns setof bigint
language plpgsql stable set enable_seqscan = off set enable_bitmapscan = off set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
declare
    first record;
begin
    select r.priority, r.job_id into first from flyball.ready r where r.lane_id = lane
    order by r.lane_id, r.priority, r.job_id limit 1;
    if first.priority = priority and first.job_id = front then
        return query
        select r.job_id from flyball.ready r where r.lane_id = lane and r.priority = places_behind.priority and r.job_id > counted
        order by r.lane_id, r.priority, r.job_id limit 1000;
    end if;
end $$;

-- === Messages that wait again ====================================================================

-- Lets messages of tenants wait for the limits of their tenants, whatever they took before; returns
-- them with the lanes in which they wait. Others are left out. The caller puts them there.
create function flyball.await_admission(jobs bigint[]) returns table (job_id bigint, lane_id bigint)
language plpgsql volatile set search_path = pg_catalog, pg_temp set enable_seqscan = off set enable_hashjoin = off
set enable_mergejoin = off set jit = off as $$
#variable_conflict use_column
begin
    update flyball.job j
    set admission_lane = flyball.lane_of(flyball.admission_throttle(j.tenant), j.module)
    where j.id = any (jobs) and j.kind = 'notification' and coalesce(j.tenant, '') <> '' and j.admission_lane is null;
    -- One that had ended is pending once more. A row that is still there is written again, so that
    -- a sweep that saw its message as ended does not delete it.
    with written as (
        insert into flyball.pending as p (tenant, job_id)
        select j.tenant, j.id
        from unnest(jobs) as a(id)
        cross join lateral (select o.id, o.tenant, o.admission_lane from flyball.job o where o.id = a.id limit 1) j
        where j.admission_lane is not null
        order by j.tenant, j.id
        on conflict on constraint pending_pkey do update set job_id = excluded.job_id
        returning p.tenant, p.xmax = 0 as is_new
    )
    -- The count of the older messages lacks them, so the next message has all counted again. A row
    -- that another transaction has is not waited for: all are counted again after ten minutes.
    update flyball.pending_count
    set counted_at = '-infinity'
    where ctid = any(array(
        select c.tid from (select distinct n.tenant from written n where n.is_new) m
        cross join lateral (select p.ctid as tid from flyball.pending_count p where p.tenant = m.tenant limit 1 for update skip locked) c
    ));
    return query
    select j.id, j.admission_lane
    from unnest(jobs) as a(id)
    cross join lateral (select o.id, o.admission_lane from flyball.job o where o.id = a.id limit 1) j
    where j.admission_lane is not null;
end $$;

-- === Deadlines of messages that wait =============================================================

-- Makes messages of a pool dead that wait for the limits of their tenants and whose deadline has
-- passed, at most about max_jobs. Looks at the first messages of a bounded number of lanes: those
-- that are next. While `next` is not null there are more lanes: call again with `start` set to it.
create function flyball.expire_waiting(pool text, valid_for float8, max_jobs int default 1000, start text default null,
    out jobs bigint, out next text)
language plpgsql volatile set search_path = pg_catalog, pg_temp set enable_seqscan = off set enable_bitmapscan = off
set enable_hashjoin = off set enable_mergejoin = off set jit = off as $$
#variable_conflict use_column
declare
    lane_rows  constant int := 500;
    lanes_left int := 200;
    rows_left  int := 5000;
    at_tenant  text := coalesce(start::jsonb ->> 0, '');
    at_key     text := start::jsonb ->> 1;
    lane       record;
    result     record;
begin
    jobs := 0;
    perform from flyball.mutex m where m.name = 'expire_waiting' for update skip locked;
    if not found then
        next := start;
        return;
    end if;
    loop
        if lanes_left = 0 or rows_left <= 0 or jobs >= max_jobs then
            next := jsonb_build_array(at_tenant, at_key)::text;
            return;
        end if;
        lanes_left := lanes_left - 1;
        select l.lane_id, l.key into lane
        from flyball.lane l
        where l.throttle = flyball.admission_throttle(at_tenant) and l.key >= coalesce(at_key, '') and l.key is distinct from at_key
        order by l.throttle, l.key
        limit 1;
        if not found then
            select p.tenant into at_tenant from flyball.pending p where p.tenant > at_tenant and p.tenant <> '' order by p.tenant limit 1;
            at_key := null;
            if not found then
                return;
            end if;
            continue;
        end if;
        at_key := lane.key;
        with walk as materialized (
            (select q.ctid as tid, true as is_ready, q.job_id from flyball.ready q
             where q.lane_id = lane.lane_id
             order by q.lane_id, q.priority, q.job_id
             limit lane_rows)
            union all
            -- The others are planned next, and end at the gate of their deadline.
            (select s.ctid, false, s.job_id from flyball.scheduled s
             where s.lane_id between lane.lane_id and lane.lane_id and coalesce(s.turn >= 0, false)
             order by s.lane_id, s.job_id
             limit lane_rows)
        ),
        overdue as materialized (
            select w.tid, w.is_ready, w.job_id, v.span
            from walk w
            cross join lateral (select * from flyball.job where job.id = w.job_id limit 1) j
            left join lateral (select d.requeued_at from flyball.delivery d where d.job_id = w.job_id limit 1) d on true
            cross join lateral (select flyball.valid_for(j.args, expire_waiting.valid_for) as span) v
            where j.kind = 'notification' and j.throttle = expire_waiting.pool
                and greatest(j.created_at, j.run_at, d.requeued_at, flyball.held_until_of(j.id, j.args)) + v.span <= now()
        ),
        was_ready as (
            delete from flyball.ready
            where ctid = any(array(
                select q.ctid from flyball.ready q where q.ctid = any(array(select o.tid from overdue o where o.is_ready))
                for update skip locked))
            returning job_id, attempt, holds_unique
        ),
        was_scheduled as (
            delete from flyball.scheduled
            where ctid = any(array(
                select s.ctid from flyball.scheduled s where s.ctid = any(array(select o.tid from overdue o where not o.is_ready))
                for update skip locked))
            returning job_id, attempt, holds_unique
        ),
        removed as materialized (
            select r.* from was_ready r union all select s.* from was_scheduled s
        )
        select (select count(*) from walk) as walked, array_agg(t.job_id order by t.job_id) as ids,
            array_agg(t.attempt order by t.job_id) as attempts,
            array_agg(format('its deadline passed %s s after it was queued, before it was sent', floor(extract(epoch from o.span))::bigint)
                order by t.job_id) as errors,
            array_agg(t.job_id) filter (where t.holds_unique) as holders
        into result
        from removed t
        join overdue o on o.job_id = t.job_id;
        rows_left := rows_left - result.walked;
        if result.ids is not null then
            perform flyball.dead_letter_messages(result.ids, result.attempts, result.errors, result.holders, 'expired', false);
            jobs := jobs + cardinality(result.ids);
        end if;
    end loop;
end $$;

-- === Messages by SQL =============================================================================

-- The time at which a message with these places in the queues of its module and its tenant can go,
-- by all windows and rates of both: the latest counts. Null while the tenant or everything is
-- paused, because that has no known end.
create function flyball.held_at(tenant text, place bigint, tenant_place bigint) returns timestamptz
language plpgsql stable set search_path = pg_catalog, pg_temp set standard_conforming_strings = on set enable_seqscan = off
set jit = off as $$
#variable_conflict use_variable
declare
    knobs jsonb;
begin
    if place is null then
        return null;
    end if;
    select k.fields into knobs
    from flyball.knobs k
    where k.throttle in (flyball.admission_throttle(held_at.tenant), 'notify:*')
    order by k.throttle = 'notify:*'
    limit 1;
    if exists (select from flyball.pause) or knobs ->> 'paused' = '1' or knobs ->> 'rps' ~ '^0+(\.0*)?$' then
        return null;
    end if;
    return now() + make_interval(secs => (
        -- At most a hundred years, which a time can express.
        select least(coalesce(max(floor((l.place - 1) / l.tokens) * l.span_s), 0), 3155760000)::float8
        from (
            select w.place, p.numbers[1]::numeric as tokens, p.numbers[2]::numeric as span_s
            from (values
                (held_at.place, knobs ->> 'key_windows'), (held_at.tenant_place, knobs ->> 'windows'),
                (held_at.place, (knobs ->> 'key_rps') || '/1'), (held_at.tenant_place, (knobs ->> 'rps') || '/1')) as w(place, windows)
            cross join lateral regexp_split_to_table(w.windows, '\s+') as t(word)
            cross join lateral (select regexp_match(t.word, '^(\d{1,9}(?:\.\d{1,9})?)/(\d{1,7}(?:\.\d{1,9})?)$') as numbers) p
            where p.numbers is not null
        ) l
        where l.tokens > 0
    ));
end $$;

-- Sends many messages, at most 10,000, all or none, in the caller's own transaction; returns one
-- row for each, in order. An element has the fields of a message over HTTP and `pool`, the name of
-- the pool that sends it. The status is `queued` for its pool, `planning` while the gates of its
-- recipient have not seen it, `held` while it waits for the limits of its tenant, `scheduled`, or
-- `duplicate` for a unique key that another message holds.
--
-- A message without an address for a recipient whose profile has none is refused, and so is one
-- that names an unknown type of digest, once a process has written the types, and one over a cap
-- whose category refuses more, with 53400, the rule and the time at which there is room. The places
-- of all new messages are read together, where one after another is work that grows with the square
-- of their number.
create function flyball.notify_many(messages jsonb) returns table(id bigint, status text, held_until timestamptz)
language plpgsql security definer set search_path = pg_catalog, pg_temp set standard_conforming_strings = on
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off set jit = off as $$
#variable_conflict use_column
declare
    job_fields constant text[] := array['pool', 'key', 'run_at', 'unique_key'];
    allowed    constant text[] := job_fields || array['channel', 'to', 'from', 'subject', 'body', 'html', 'template', 'data', 'priority',
        'category', 'provider', 'extra', 'valid_for_s', 'on_ambiguous', 'recipient', 'template_id', 'actor', 'digest',
        'at_most', 'dedup_key', 'local_time'];
    one        record;
    name       text;
    field      text;
    problem    text;
    jobs       jsonb := '[]';
    ids        bigint[];
    duplicates boolean[];
    types      constant jsonb := (select r.digest_texts from flyball.recipient_rules r);
begin
    if messages is null or jsonb_typeof(messages) <> 'array' then
        raise exception using errcode = '22023', column = '',
            message = 'notify_many: messages: must be a JSON array of messages', hint = 'Nothing was enqueued.';
    elsif jsonb_array_length(messages) > 10000 then
        raise exception using errcode = '22023', column = '',
            message = format('notify_many: messages: has %s elements; at most 10000 are allowed', jsonb_array_length(messages)),
            hint = 'Nothing was enqueued.';
    end if;
    for one in select m.message, m.n from jsonb_array_elements(messages) with ordinality as m(message, n) loop
        problem := null;
        field := '';
        if jsonb_typeof(one.message) <> 'object' then
            problem := 'must be an object';
        else
            select k.key into name from jsonb_object_keys(one.message) as k(key) where k.key <> all (allowed) order by k.key limit 1;
            if name is not null then
                field := name;
                problem := format('is not a field of a message; allowed are %s', array_to_string(allowed, ', '));
            else
                -- Mistakes that can be seen here are refused here; a message with any other ends as
                -- a dead letter with its reason.
                select f.key, format('must be %s, not %s', w.word, jsonb_typeof(f.value)) into field, problem
                from jsonb_each(one.message) as f
                cross join lateral (
                    select case when f.key in ('data', 'extra') then 'object' when f.key = 'valid_for_s' then 'number'
                        when f.key = 'template' then jsonb_typeof(f.value) else 'string' end as kind
                ) k
                cross join lateral (select case k.kind when 'string' then 'a text' when 'object' then 'an object'
                    else 'a number' end as word) w
                where jsonb_typeof(f.value) not in ('null', k.kind)
                order by f.key limit 1;
            end if;
            if problem is not null then
                null;
            elsif coalesce(one.message ->> 'pool', '') = '' then
                field := 'pool';
                problem := 'must name the pool that sends the message';
            elsif one.message ->> 'pool' !~ '^[A-Za-z0-9._/:{}-]{1,128}$' then
                field := 'pool';
                problem := format('%s is not the name of a pool; use 1 to 128 letters, digits or any of . _ - / : { }',
                    to_json(left(one.message ->> 'pool', 64)));
            elsif coalesce(one.message ->> 'channel', '') not in ('sms', 'email', 'push', 'chat', 'webhook', 'inapp') then
                field := 'channel';
                problem := 'must be sms, email, push, chat, webhook or inapp';
            elsif coalesce(one.message ->> 'to', '') = '' and coalesce(one.message ->> 'recipient', '') = '' then
                field := 'to';
                problem := 'must be the address, or recipient the id of a recipient whose profile has it';
            -- In the inbox the id is the address.
            elsif coalesce(one.message ->> 'to', '') = '' and one.message ->> 'channel' <> 'inapp' and not exists (
                select from flyball.recipient r
                where r.tenant = flyball.caller_tenant() and r.id = one.message ->> 'recipient'
                    and r.profile -> 'addresses' ->> (one.message ->> 'channel') is not null
            ) then
                field := 'to';
                problem := case
                    when exists (select from flyball.recipient r where r.tenant = flyball.caller_tenant()
                        and r.id = one.message ->> 'recipient')
                    then format('must be given, because the profile of the recipient has no address for %s', one.message ->> 'channel')
                    else 'must be given, because the recipient has no profile' end;
            elsif coalesce(one.message ->> 'priority', 'normal') not in ('critical', 'high', 'normal', 'low') then
                field := 'priority';
                problem := 'must be critical, high, normal or low';
            elsif coalesce((one.message ->> 'valid_for_s')::numeric, 1) not between 1 and 2592000 then
                field := 'valid_for_s';
                problem := 'must be a number of seconds from 1 to 2592000 (30 days)';
            elsif coalesce(one.message ->> 'on_ambiguous', 'retry') not in ('retry', 'dead') then
                field := 'on_ambiguous';
                problem := 'must be retry or dead';
            elsif not flyball.is_local_time(one.message ->> 'local_time') then
                field := 'local_time';
                problem := 'must be a time of the recipient''s clock as HH:MM, or as YYYY-MM-DDTHH:MM of the years 2000 to 2999, such as 09:00 or 2026-12-01T09:00';
            elsif one.message ->> 'local_time' is not null and one.message ->> 'digest' is not null then
                field := 'local_time';
                problem := 'must be left out beside digest, which has times of its own';
            elsif not types ? (one.message ->> 'digest') then
                field := 'digest';
                problem := format('%s is not a known type of digest; allowed: %s', to_json(left(one.message ->> 'digest', 128)),
                    (select coalesce(string_agg(k.key, ', ' order by k.key), 'none') from jsonb_object_keys(types) as k(key)));
            end if;
        end if;
        if problem is not null then
            perform flyball.refuse_element(one.n - 1, field, problem);
        end if;
    end loop;
    select coalesce(jsonb_agg(jsonb_strip_nulls(jsonb_build_object('kind', 'notification', 'throttle', m.message -> 'pool',
        'key', m.message -> 'key', 'run_at', m.message -> 'run_at', 'unique_key', m.message -> 'unique_key'))
        || jsonb_build_object('args', m.message - job_fields) order by m.n), '[]')
    into jobs
    from jsonb_array_elements(messages) with ordinality as m(message, n);
    select array_agg(e.job_id order by e.n), array_agg(e.duplicate order by e.n) into ids, duplicates
    from flyball.enqueue_many(jobs) with ordinality as e(job_id, duplicate, replaced, backlog, n);
    -- A statement of its own, so it sees the jobs that the first one enqueued. Those that were
    -- there before stand apart from the others.
    return query
    with created as materialized (
        select u.job_id, u.duplicate, u.n from unnest(ids, duplicates) with ordinality as u(job_id, duplicate, n)
    ),
    places as materialized (
        select p.job_id, p.place, p.tenant_place, p.tenant
        from flyball.admission_places(array(select c.job_id from created c where not c.duplicate)) p
        union all
        select p.job_id, p.place, p.tenant_place, p.tenant
        from flyball.admission_places(array(select distinct c.job_id from created c where c.duplicate
            and not exists (select from created o where o.job_id = c.job_id and not o.duplicate))) p
    )
    select c.job_id,
        case when c.duplicate then 'duplicate'
            when h.turn < 0 and h.run_at <= now() then 'planning'
            when h.job_id is not null then 'scheduled'
            when p.job_id is not null then 'held'
            else 'queued' end,
        flyball.held_at(p.tenant, p.place, p.tenant_place)
    from created c
    left join lateral (select s.job_id, s.turn, s.run_at from flyball.scheduled s where s.job_id = c.job_id limit 1) h on true
    left join places p on p.job_id = c.job_id
    order by c.n;
end $$;
comment on function flyball.notify_many is 'Sends up to 10,000 messages, all or none, within the limits of their tenant.';

-- Sends one message in the caller's own transaction. A key that the message names counts, unless
-- the argument names another.
create function flyball.notify(pool text, message jsonb, key text default '', run_at timestamptz default null,
    unique_key text default null, out id bigint, out status text, out held_until timestamptz)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set standard_conforming_strings = on
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off set jit = off as $$
#variable_conflict use_variable
begin
    if message is null or jsonb_typeof(message) <> 'object' then
        perform flyball.refuse('notify', 'message', 'must be a JSON object');
    end if;
    select m.id, m.status, m.held_until into id, status, held_until
    from flyball.notify_many(jsonb_build_array(message || jsonb_build_object('pool', pool)
        || jsonb_strip_nulls(jsonb_build_object('key', nullif(key, ''), 'run_at', run_at, 'unique_key', unique_key)))) m;
end $$;
comment on function flyball.notify is 'Sends one message in the caller''s own transaction, within the limits of its tenant.';

-- === Permissions =================================================================================

revoke execute on function flyball.sweep_pending_behind, flyball.sweep_pending, flyball.sweep_all_pending, flyball.record_pending,
    flyball.awaits_admission, flyball.is_just_sent, flyball.waiting_beside, flyball.request_lock, flyball.find_request,
    flyball.remember_request, flyball.remember_requests, flyball.enqueue_once, flyball.has_waiting, flyball.record_module,
    flyball.accept_message, flyball.admission_place, flyball.accept_excess, flyball.admission_places, flyball.places_behind,
    flyball.await_admission, flyball.expire_waiting, flyball.held_at
from public;
