-- Chapter 5: groups: jobs that are counted together, and a callback job when all of them have
-- ended.
--
-- No job waits for its group. Adding a job, or ending one, writes a row of its own and never the
-- group's; so an open transaction that added a job holds up no other. The first process that comes
-- by adds these rows to the group's counts, under the lock of the group's row, and the one that
-- finds the last job ended enqueues the callback in the same transaction.

-- === Members =====================================================================================

-- The owner of groups among the owners of unique keys: tokens without a tenant and schedules are
-- the operators'.
create function flyball.group_owner(owner text) returns text
language sql immutable parallel safe
return case when starts_with(owner, 'tenant:') or starts_with(owner, 'role:') then owner else '' end;

-- Returns what is wrong with joining a group, or null. Until the transaction ends the group cannot
-- be sealed: what seals it sees all that joined. A group of others is like none.
create function flyball.check_group(group_id bigint, owner text, replaces boolean) returns text
language plpgsql volatile as $$
#variable_conflict use_variable
declare
    sealed timestamptz;
begin
    if replaces then
        return 'cannot be used together with replace or debounce: the job may take the place of one outside of the group';
    end if;
    select g.sealed_at into sealed from flyball.job_group g
    where g.id = group_id and g.owner = flyball.group_owner(owner)
    for key share;
    if not found then
        return format('%s is not the number of a group of yours; flyball.create_group makes one', group_id);
    elsif sealed is not null then
        return format('group %s is sealed, and no more jobs can join it; create another one', group_id);
    end if;
    return null;
end $$;

-- Adds new jobs to a group, in the statement's own transaction.
create function flyball.add_members(group_id bigint, jobs bigint[]) returns void
language sql volatile as $$
    insert into flyball.group_member (job_id, group_id) select unnest(add_members.jobs), add_members.group_id;
    insert into flyball.group_change (group_id, jobs) values (add_members.group_id, cardinality(add_members.jobs));
$$;

-- === Ends ========================================================================================

-- The counts of a group, as its callback gets them.
create function flyball.group_counts(g flyball.job_group) returns jsonb
language sql immutable parallel safe
return jsonb_build_object('id', (g).id, 'name', (g).name, 'jobs', (g).jobs, 'completed', (g).completed, 'dead', (g).dead,
    'cancelled', (g).cancelled);

-- The callback with the counts of its group in its arguments, as `group`; in those of a request it
-- is in the body, or in the data of its template. Kinds that come with Flyball and know no such
-- argument get none, and a `group` of the callback's own is kept. A callback whose body is marked
-- as a secret as a whole goes without the counts: the field `$encrypted` must be alone.
create function flyball.callback_with(callback jsonb, counts jsonb) returns jsonb
language sql immutable parallel safe
return (
    select case
        when jsonb_typeof(a.args) <> 'object' or a.kind in ('notification', 'reindex', 'batch') then callback
        when a.place ?| array['$secret', '$encrypted'] then callback
        when a.kind <> 'http' then callback || jsonb_build_object('args', a.added || a.args)
        when a.args ? 'template' and jsonb_typeof(coalesce(a.args -> 'data', '{}')) = 'object'
            then callback || jsonb_build_object('args', a.args || jsonb_build_object('data', a.added || coalesce(a.args -> 'data', '{}')))
        when not a.args ? 'template' and upper(coalesce(a.args ->> 'method', 'GET')) in ('POST', 'PUT', 'PATCH')
            and jsonb_typeof(coalesce(nullif(a.args -> 'body', 'null'), '{}')) = 'object'
            then callback || jsonb_build_object('args', a.args
                || jsonb_build_object('body', a.added || coalesce(nullif(a.args -> 'body', 'null'), '{}')))
        else callback end
    from (
        select callback ->> 'kind' as kind, coalesce(callback -> 'args', '{}') as args, jsonb_build_object('group', counts) as added,
            case
                when callback ->> 'kind' <> 'http' then callback -> 'args'
                when callback -> 'args' ? 'template' then callback #> '{args,data}'
                else callback #> '{args,body}'
            end as place
    ) a
);

-- Adds the changes of a group to its counts; the caller holds the lock of its row. If it is sealed
-- and all its jobs have ended, it ends with its callback enqueued, and the function returns true. A
-- callback that is refused, for instance by a full lane, is tried again, and so is one whose unique
-- key another job holds: that job is not the callback, and may have run before the group has ended.
-- An open transaction that has locked what the callback needs, such as its unique key, puts the end
-- of this group off, and of no other: the lock is waited for no longer than the patience.
create function flyball.settle_group(group_id bigint, patience text default '100ms') returns boolean
language plpgsql as $$
#variable_conflict use_variable
declare
    g              flyball.job_group;
    enqueued       record;
    callback       bigint;
    caller_timeout constant text := current_setting('lock_timeout');
begin
    with folded as (
        delete from flyball.group_change c
        where c.ctid = any(array(select d.ctid from flyball.group_change d where d.group_id = group_id limit 50000))
        returning c.*
    )
    update flyball.job_group u
    set jobs = u.jobs + s.jobs, completed = u.completed + s.completed, dead = u.dead + s.dead, cancelled = u.cancelled + s.cancelled
    from (
        select sum(f.jobs) as jobs, sum(f.completed) as completed, sum(f.dead) as dead, sum(f.cancelled) as cancelled
        from folded f having count(*) > 0
    ) s
    where u.id = group_id;
    select * into g from flyball.job_group u where u.id = group_id;
    if g.sealed_at is null or g.ended_at is not null or g.jobs > g.completed + g.dead + g.cancelled
        or exists (select from flyball.group_change c where c.group_id = group_id)
    then
        return false;
    end if;
    begin
        if g.callback is not null then
            perform set_config('lock_timeout', patience, true);
            select e.job_id, e.duplicate and not e.replaced as is_taken into enqueued
            from flyball.enqueue_json_as(g.owner, g.module,
                jsonb_build_array(flyball.callback_with(g.callback, flyball.group_counts(g)))) e;
            if enqueued.is_taken then
                raise exception using errcode = '23505',
                    message = format('callback.unique_key: job %s holds it; the callback is enqueued when the key is free',
                        enqueued.job_id);
            end if;
            callback := enqueued.job_id;
            perform set_config('lock_timeout', caller_timeout, true);
        end if;
    exception when data_exception or integrity_constraint_violation or raise_exception or configuration_limit_exceeded
        or insufficient_privilege or lock_not_available then
        update flyball.job_group u
        set callback_problem = case sqlstate
                when '55P03' then 'callback: an open transaction holds what it needs, such as its unique_key; it is enqueued when that is free'
                else left(regexp_replace(sqlerrm, '^[a-z_]+: jobs[[]0[]]', 'callback'), 1000) end,
            retry_at = clock_timestamp() + interval '10 seconds'
        where u.id = group_id;
        return false;
    end;
    update flyball.job_group u
    set ended_at = clock_timestamp(), callback_job_id = callback, callback_problem = null, retry_at = null
    where u.id = group_id;
    return true;
end $$;

-- Adds what has changed to the counts of up to `most` groups, and enqueues calls of webhooks;
-- returns how many groups ended, whether there may be more to do, and the number of calls. Groups
-- that another transaction holds are left to it, or to the next call; they do not count towards
-- `most`, and neither do the changes of one group.
--
-- One open transaction may hold what the callbacks of any number of groups need. So a call that has
-- waited for one has less patience with the next, and after half a second it leaves the rest to the
-- next call: what it has done is committed, and webhooks are called, meanwhile.
create function flyball.settle_groups(most int default 100, out ended int, out more boolean, out calls int)
language plpgsql volatile as $$
#variable_conflict use_variable
declare
    found_groups bigint[];
    tried_again  bigint[];
    one          bigint;
    begun        constant timestamptz := clock_timestamp();
    is_late      boolean := false;
begin
    ended := 0;
    found_groups := array(
        with recursive hop as (
            (select d.group_id from flyball.group_change d order by d.group_id limit 1)
            union all
            select n.group_id
            from hop h
            cross join lateral (
                select d.group_id from flyball.group_change d where d.group_id > h.group_id order by d.group_id limit 1
            ) n
        )
        select g.id
        from (select h.group_id from hop h limit 10000) c
        cross join lateral (
            select j.id from flyball.job_group j where j.id = c.group_id for no key update skip locked
        ) g
        limit most
    );
    tried_again := array(
        select r.id from flyball.job_group r
        where r.retry_at <= clock_timestamp() and r.id <> all (found_groups)
        order by r.retry_at
        limit most
        for no key update skip locked
    );
    foreach one in array found_groups || tried_again loop
        is_late := clock_timestamp() > begun + interval '0.5 seconds';
        exit when is_late;
        if flyball.settle_group(one, case when clock_timestamp() > begun + interval '0.1 seconds' then '10ms' else '100ms' end) then
            ended := ended + 1;
        end if;
    end loop;
    select e.enqueued, e.more or is_late or cardinality(found_groups) = most into calls, more from flyball.enqueue_calls() e;
end $$;

-- === Create and seal =============================================================================

-- Refuses a name or a callback that is not acceptable. The callback is enqueued on trial and taken
-- back, so the same rules hold as for every job.
create function flyball.check_new_group(name text, callback jsonb) returns void
language plpgsql volatile set standard_conforming_strings = on as $$
#variable_conflict use_variable
declare
    field   text;
    message text;
    code    text;
begin
    if name is null or octet_length(name) > 200 then
        perform flyball.refuse('create_group', 'name', case when name is null then 'must not be null; leave it out for none'
            else format('is %s bytes long; at most 200 are allowed', octet_length(name)) end);
    elsif callback is null then
        return;
    elsif jsonb_typeof(callback) <> 'object' then
        perform flyball.refuse('create_group', 'callback', format('must be a job as an object, not %s', jsonb_typeof(callback)));
    elsif callback ? 'after' then
        perform flyball.refuse('create_group', 'callback.after', 'must be left out: the callback runs after the group');
    elsif callback ? 'group' then
        perform flyball.refuse('create_group', 'callback.group', 'must be left out: the callback runs after the group and is not in one');
    end if;
    begin
        perform flyball.enqueue_many(jsonb_build_array(flyball.callback_with(callback, jsonb_build_object('id', 1000000000000000,
            'name', name, 'jobs', 1000000000000000, 'completed', 1000000000000000, 'dead', 1000000000000000,
            'cancelled', 1000000000000000))));
        raise exception using errcode = 'FB001';
    exception
        when sqlstate 'FB001' then
            null;
        -- A lane that is full now need not be so when the group ends.
        when configuration_limit_exceeded then
            null;
        when invalid_parameter_value or insufficient_privilege then
            get stacked diagnostics field = column_name, message = message_text, code = returned_sqlstate;
            raise exception using errcode = code, column = 'callback' || coalesce('.' || nullif(field, ''), ''),
                message = format('create_group: callback%s: %s', coalesce('.' || nullif(field, ''), ''),
                    regexp_replace(message, '^[a-z_]+: jobs(\[0\])?[a-z_.]*: ', '')),
                hint = 'Nothing was created.';
    end;
end $$;

-- Seals a group of an owner; null for any. Returns 'sealed', 'ended' if all its jobs have ended by
-- now, 'already sealed', 'already ended' or 'not found'.
create function flyball.seal_group_of(group_id bigint, owner text) returns text
language plpgsql volatile as $$
#variable_conflict use_variable
declare
    g flyball.job_group;
begin
    -- Waits for the transactions that add jobs.
    select * into g from flyball.job_group u where u.id = group_id and (owner is null or u.owner = owner) for update;
    if not found then
        return 'not found';
    elsif g.ended_at is not null then
        return 'already ended';
    elsif g.sealed_at is not null then
        return 'already sealed';
    end if;
    update flyball.job_group u set sealed_at = clock_timestamp() where u.id = group_id;
    return case when flyball.settle_group(group_id) then 'ended' else 'sealed' end;
end $$;

-- Creates a group for an owner of unique keys, with jobs that were checked, which seal it; the HTTP
-- API knows its tokens. Rights are those of the caller.
create function flyball.create_group_as(owner text, module text, name text, callback jsonb, jobs jsonb,
    out group_id bigint, out job_ids bigint[], out duplicates boolean[])
language plpgsql volatile as $$
#variable_conflict use_variable
begin
    perform flyball.check_new_group(name, callback);
    -- Without a zone it is a time of this session, which is not the one that ends the group.
    if jsonb_typeof(callback -> 'run_at') = 'string' then
        callback := callback || jsonb_build_object('run_at', flyball.time_text((callback ->> 'run_at')::timestamptz));
    end if;
    insert into flyball.job_group (owner, tenant, module, name, callback)
    values (flyball.group_owner(owner), flyball.tenant_of(owner), module, name, callback)
    returning id into group_id;
    if jobs is not null then
        select array_agg(e.job_id order by e.n), array_agg(e.duplicate order by e.n) into job_ids, duplicates
        from flyball.enqueue_json_as(owner, module, jobs, group_id) with ordinality as e(job_id, duplicate, replaced, n);
        perform flyball.seal_group_of(group_id, null);
    end if;
end $$;

-- Creates a group in the caller's own transaction and returns its number. With `jobs`, up to 10,000
-- of them, it is sealed; without, jobs join by their field `group` until flyball.seal_group.
create function flyball.create_group(callback jsonb default null, name text default '', jobs jsonb default null,
    out group_id bigint, out job_ids bigint[], out duplicates boolean[])
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set standard_conforming_strings = on as $$
#variable_conflict use_variable
begin
    if jsonb_typeof(jobs) = 'null' then
        jobs := null;
    end if;
    if jsonb_typeof(callback) = 'null' then
        callback := null;
    end if;
    select g.group_id into group_id
    from flyball.create_group_as(flyball.unique_owner(), flyball.caller_module(), name, callback, null) g;
    if jobs is not null then
        if jsonb_typeof(jobs) <> 'array' then
            perform flyball.refuse('create_group', 'jobs', 'must be a JSON array of jobs');
        elsif jsonb_array_length(jobs) > 10000 then
            perform flyball.refuse('create_group', 'jobs',
                format('has %s elements; at most 10000 are allowed', jsonb_array_length(jobs)));
        elsif exists (select from jsonb_array_elements(jobs) j where jsonb_typeof(j.value) = 'object' and j.value ? 'group') then
            perform flyball.refuse('create_group', 'jobs', 'must be without the field group: the jobs join the new group');
        end if;
        select array_agg(e.job_id order by e.n), array_agg(e.duplicate order by e.n) into job_ids, duplicates
        from flyball.enqueue_many((
            select coalesce(jsonb_agg(case when jsonb_typeof(j.job) = 'object' then j.job || jsonb_build_object('group', group_id)
                else j.job end order by j.n), '[]')
            from jsonb_array_elements(jobs) with ordinality as j(job, n)
        )) with ordinality as e(job_id, duplicate, replaced, backlog, n);
        perform flyball.seal_group_of(group_id, null);
    end if;
end $$;
comment on function flyball.create_group is 'Creates a group of jobs, with a callback job for when all have ended.';

-- The groups that the caller reaches: all of them for an operator that acts for no tenant (null),
-- else those of one owner.
create function flyball.group_reach() returns text
language sql stable
return case when flyball.is_operator() and flyball.caller_tenant() = '' then null else flyball.group_owner(flyball.unique_owner()) end;

-- Says that no more jobs join a group: when all have ended, its callback is enqueued.
create function flyball.seal_group(group_id bigint) returns text
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set standard_conforming_strings = on as $$
begin
    return flyball.seal_group_of(seal_group.group_id, flyball.group_reach());
end $$;
comment on function flyball.seal_group is 'Says that no more jobs join a group.';

-- === Show ========================================================================================

-- A group with the changes that are not in its row yet, its callback as the API shows jobs. Never
-- more jobs have ended than were counted: the changes of one job may come in two parts.
create function flyball.group_view(g flyball.job_group) returns jsonb
language sql stable
return (
    select jsonb_build_object('id', (g).id, 'name', (g).name, 'tenant', (g).tenant,
        'state', case when (g).ended_at is not null then 'ended' when (g).sealed_at is not null then 'running' else 'open' end,
        'jobs', c.jobs, 'pending', greatest(c.jobs - c.completed - c.dead - c.cancelled, 0), 'completed', c.completed, 'dead', c.dead,
        'cancelled', c.cancelled, 'created_at', (g).created_at, 'sealed_at', (g).sealed_at, 'cancelled_at', (g).cancelled_at,
        'ended_at', (g).ended_at, 'callback', (g).callback || case when (g).callback ? 'args'
            then jsonb_build_object('args', flyball.shown_args((g).callback ->> 'kind', (g).callback -> 'args')) else '{}' end,
        'callback_job_id', (g).callback_job_id, 'callback_problem', (g).callback_problem)
    from (
        select (g).jobs + coalesce(sum(d.jobs), 0)::bigint as jobs, (g).completed + coalesce(sum(d.completed), 0)::bigint as completed,
            (g).dead + coalesce(sum(d.dead), 0)::bigint as dead, (g).cancelled + coalesce(sum(d.cancelled), 0)::bigint as cancelled
        from flyball.group_change d where d.group_id = (g).id
    ) c
);

-- A group of the caller's, or null.
create function flyball.show_group(group_id bigint) returns jsonb
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set standard_conforming_strings = on as $$
begin
    return (
        select flyball.group_view(g) from flyball.job_group g
        where g.id = show_group.group_id and g.owner = coalesce(flyball.group_reach(), g.owner));
end $$;
comment on function flyball.show_group is 'A group of the caller''s: its state, its counts and its callback.';

-- The caller's groups as flyball.show_group shows them, newest first; of a state, or created before
-- a time. Groups that are never sealed stay open for ever.
create function flyball.list_groups(in_state text default null, created_before timestamptz default null, before bigint default null,
    most int default 100)
returns setof jsonb
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set plan_cache_mode = force_custom_plan
set standard_conforming_strings = on as $$
#variable_conflict use_column
declare
    reach constant text := flyball.group_reach();
begin
    perform flyball.check_most('list_groups', most);
    if in_state not in ('open', 'running', 'ended') then
        perform flyball.refuse('list_groups', 'in_state', format('%s is not a state of a group; allowed are open, running and ended',
            to_json(left(in_state, 40))));
    end if;
    return query
        select flyball.group_view(g) from flyball.job_group g
        where (reach is null or g.owner = reach) and g.id < coalesce(list_groups.before, 9223372036854775807)
            and (list_groups.created_before is null or g.created_at < list_groups.created_before)
            and (in_state is null
                or in_state = 'open' and g.sealed_at is null
                or in_state = 'running' and g.sealed_at is not null and g.ended_at is null
                or in_state = 'ended' and g.ended_at is not null)
        order by g.id desc
        limit most;
end $$;
comment on function flyball.list_groups is 'The caller''s groups, newest first.';

-- === Cancel ======================================================================================

-- Cancels up to max_jobs jobs of a group: waiting ones at once, running ones are asked to stop; no
-- more can join. When all have ended, the callback is enqueued. While `more` is true, call again.
-- Nulls if there is no such group. A member that is in no table of jobs any more counts as
-- cancelled. One that an open transaction holds is left to a later call. A call that changes
-- nothing leaves no entry in the audit log.
create function flyball.cancel_group(group_id bigint, by text default null, why text default '', tenant text default null,
    max_jobs int default 1000, out cancelled bigint, out requested bigint, out more boolean)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off
set standard_conforming_strings = on as $$
#variable_conflict use_variable
declare
    found_members bigint[];
    live          record;
    missing       bigint;
    rounds        int := 0;
    is_new        boolean;
begin
    if max_jobs is null or max_jobs not between 1 and 10000 then
        perform flyball.refuse('cancel_group', 'max_jobs', format('is %s; allowed are 1 to 10000: call again for more',
            coalesce(max_jobs::text, 'null')));
    end if;
    -- Waits for the transactions that add jobs.
    perform from flyball.job_group g where g.id = group_id and (tenant is null or g.tenant = tenant)
        and g.tenant = coalesce(flyball.bound_tenant(), g.tenant)
    for update;
    if not found then
        return;
    end if;
    update flyball.job_group g
    set sealed_at = coalesce(g.sealed_at, clock_timestamp()), cancelled_at = coalesce(g.cancelled_at, clock_timestamp())
    where g.id = group_id and (g.sealed_at is null or g.cancelled_at is null);
    is_new := found;
    cancelled := 0;
    requested := 0;
    -- A job may be claimed or come back between two looks, so look again.
    loop
        found_members := array(
            select m.job_id from flyball.group_member m
            where m.group_id = cancel_group.group_id and not m.dead
                and (select 1 from flyball.cancel c where c.job_id = m.job_id limit 1) is null
            order by m.job_id
            limit max_jobs - cancelled - requested
        );
        select * into live from flyball.cancel_live(found_members);
        with gone as (
            delete from flyball.group_member m
            where m.job_id = any(found_members) and (select 1 from flyball.job o where o.id = m.job_id limit 1) is null
            returning m.job_id
        ),
        counted as (
            insert into flyball.group_change (group_id, cancelled)
            select cancel_group.group_id, count(*) from gone having count(*) > 0
        )
        select count(*) into missing from gone;
        cancelled := cancelled + cardinality(live.cancelled_jobs) + missing;
        requested := requested + live.requested;
        rounds := rounds + 1;
        exit when cardinality(found_members) = 0 or cancelled + requested >= max_jobs or rounds >= 20;
    end loop;
    more := exists (
        select from flyball.group_member m
        where m.group_id = cancel_group.group_id and not m.dead
            and (select 1 from flyball.cancel c where c.job_id = m.job_id limit 1) is null);
    if is_new or cancelled + requested > 0 then
        perform flyball.write_audit(null, flyball.audit_actor(by), 'group.cancel', group_id::text, null,
            jsonb_build_object('cancelled', cancelled, 'requested', requested), why);
    end if;
    perform flyball.settle_group(group_id);
end $$;
comment on function flyball.cancel_group is 'Cancels up to max_jobs jobs of a group; call again while more is true.';

-- === Permissions =================================================================================

revoke execute on function flyball.group_owner, flyball.check_group, flyball.add_members, flyball.group_counts, flyball.callback_with,
    flyball.settle_group, flyball.settle_groups, flyball.check_new_group, flyball.seal_group_of, flyball.create_group_as,
    flyball.group_reach, flyball.group_view, flyball.cancel_group
from public;
