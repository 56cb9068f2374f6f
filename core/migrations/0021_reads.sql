-- Chapter 21: reads for programs that speak SQL: a job with what the API shows of it, its attempts, its
-- result, jobs by a filter, failures, the audit log, workers, kinds and suppressions; and the groups of
-- one owner.
--
-- They run with the rights of the schema's owner, so a single grant gives a role one of them, and they
-- confine a role with a tenant to that tenant. They cannot tell the things that Redis knows, such as
-- tokens and pauses of a throttle.

-- Lists the groups of one role or tenant. Those of operators are left out.
create index job_group_owner on flyball.job_group (owner, id) where owner <> '';
-- Finds the groups that nobody has sealed, oldest first.
create index job_group_unsealed on flyball.job_group (id) where sealed_at is null;

-- === Helpers =====================================================================================

-- The tenant whose jobs a caller reads; null for all. A role with a tenant reads its own and may not
-- name another; other callers read those of the tenant that they name, an operator without one those of
-- the tenant that it acts for.
create function flyball.read_tenant(what text, tenant text) returns text
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare
    own text;
begin
    if flyball.is_operator() then
        return coalesce(read_tenant.tenant, nullif(current_setting('flyball.tenant', true), ''));
    end if;
    own := (flyball.role_tenant()).tenant;
    if own is null then
        return read_tenant.tenant;
    elsif read_tenant.tenant <> own then
        raise exception using errcode = '42501', column = 'tenant',
            message = format('%s: tenant: %s is not the tenant of role %s; it reads those of %s', what,
                to_json(left(read_tenant.tenant, 80)), to_json(flyball.caller()), to_json(own));
    end if;
    return own;
end $$;

-- Refuses a caller that is bound to a tenant: what it asks for concerns all of them.
create function flyball.check_reads_all(what text) returns void
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
begin
    if not flyball.is_operator() and (flyball.role_tenant()).tenant is not null then
        raise exception using errcode = '42501',
            message = format('%s: concerns all tenants, and role %s is bound to one', what, to_json(flyball.caller()));
    end if;
end $$;

-- Refuses a number of rows that a list does not return.
create function flyball.check_most(what text, most int) returns void
language plpgsql as $$
begin
    if most is null or most not between 1 and 1000 then
        perform flyball.refuse(what, 'most', format('is %s; allowed are 1 to 1000', coalesce(most::text, 'null')));
    end if;
end $$;

-- A value without its texts, numbers and flags; an object keeps the names of its fields.
create function flyball.hidden_value(value jsonb) returns jsonb
language sql immutable parallel safe
return case jsonb_typeof(value)
    when 'null' then value
    when 'object' then (
        select coalesce(jsonb_object_agg(f.key, case when jsonb_typeof(f.value) = 'null' then f.value else '"***"' end), '{}')
        from jsonb_each(value) f)
    else '"***"' end;

-- Arguments without what a kind holds: those of a message without its recipient and contents, those of
-- a request without credentials.
create function flyball.masked_args(kind text, args jsonb) returns jsonb
language sql immutable parallel safe
return case
    when jsonb_typeof(args) <> 'object' then args
    when kind = 'notification' then args || (
        select coalesce(jsonb_object_agg(f.key, case
            when f.key <> 'to' then flyball.hidden_value(f.value)
            when jsonb_typeof(f.value) = 'string' then to_jsonb(flyball.mask_recipient(args ->> 'channel', f.value #>> '{}'))
            when jsonb_typeof(f.value) = 'null' then f.value
            else '"***"' end), '{}')
        from jsonb_each(args) f
        where f.key in ('to', 'subject', 'body', 'html', 'template', 'data', 'extra'))
    when kind = 'http' then args
        || case when jsonb_typeof(args -> 'headers') = 'object' then jsonb_build_object('headers', (
            select coalesce(jsonb_object_agg(h.key, case
                when lower(h.key collate "C") ~ '(auth|cookie|credential|jwt|key|passw|secret|session|sig|token|csrf)'
                    and lower(h.key collate "C") not in ('idempotency-key', 'x-idempotency-key') and h.value <> '"[secret]"' then '"***"'
                else h.value end), '{}')
            from jsonb_each(args -> 'headers') h)) else '{}' end
        || case when jsonb_typeof(args -> 'url') = 'string' then jsonb_build_object('url', flyball.shown_url(args ->> 'url')) else '{}' end
    else args end;

-- The arguments of a job as the API shows them.
create function flyball.shown_args(kind text, args jsonb) returns jsonb
language sql immutable parallel safe
return flyball.masked_args(kind, flyball.without_secrets(args));

-- The first line of a text, for a sentence.
create function flyball.first_line(text text) returns text
language sql immutable parallel safe
return case when length(split_part(text, E'\n', 1)) > 200 then left(split_part(text, E'\n', 1), 200) || '…' else split_part(text, E'\n', 1) end;

-- === One job =====================================================================================

-- The reason for which a job does not run yet and the end of its wait, as {"reason", "until"}; null if
-- it does not wait, or if there is no such job. Tokens, pauses of keys and throttles, and limits of
-- concurrency are in Redis: a job that is ready may wait for any of them.
create function flyball.why_job(job_id bigint, tenant text default null) returns jsonb
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
#variable_conflict use_column
declare
    reads    constant text := flyball.read_tenant('why_job', why_job.tenant);
    job      flyball.job;
    due      record;
    everything flyball.pause;
    state    text;
    reason   text;
    until    timestamptz;
begin
    select * into job from flyball.job j where j.id = why_job.job_id and (reads is null or j.tenant = reads);
    if not found then
        return null;
    end if;
    state := flyball.job_state(why_job.job_id);
    if state in ('scheduled', 'retryable') then
        select s.run_at, s.attempt, s.turn into due from flyball.scheduled s where s.job_id = why_job.job_id;
        until := case when due.turn >= -4 or due.run_at > now() then due.run_at end;
        reason := case when due.turn < -4 then 'it runs after other jobs, which have not ended'
            when state = 'scheduled' then 'it is scheduled for a later time'
            else format('attempt %s of %s failed%s and the next is due later', due.attempt, job.max_attempts, coalesce(' (' || (
                select flyball.first_line(a.error) from flyball.attempt a where a.job_id = why_job.job_id order by a.finished_at desc limit 1
            ) || ')', '')) end;
    elsif state = 'running' then
        if exists (select from flyball.cancel c where c.job_id = why_job.job_id) then
            reason := 'its cancellation was requested; its handler has not stopped yet';
        end if;
    elsif state = 'ready' then
        select * into everything from flyball.pause;
        if found then
            reason := case when reads is not null then 'everything is paused'
                else format('everything has been paused since %s by %s%s', flyball.time_text(date_trunc('second', everything.since)), everything."by",
                    coalesce(': ' || nullif(flyball.first_line(everything.why), ''), '')) end;
        else
            reason := flyball.unserved_reason(job.throttle, job.kind);
        end if;
        if reason is null and job.admission_lane is not null
            and exists (select from flyball.ready r where r.lane_id = job.admission_lane and r.priority = job.priority and r.job_id = job.id)
        then
            reason := format('it waits for the limits of tenant %s and its module', job.tenant);
        end if;
        reason := coalesce(reason, format('it waits for tokens of throttle %s or for a free slot of a worker; Redis knows which: '
            || 'GET /api/v1/jobs/%s and flyball why --job %s tell it', job.throttle, job.id, job.id));
    end if;
    return case when reason is not null then jsonb_build_object('reason', reason, 'until', flyball.time_text(until)) end;
end $$;

-- The reason for which no live worker runs jobs of a throttle and a kind; null if one does. The rest that a job
-- needs besides, such as a channel, is known to programs only.
create function flyball.unserved_reason(throttle text, kind text) returns text
language plpgsql stable as $$
#variable_conflict use_variable
declare
    live   bigint;
    serves bigint;
    runs   bigint;
    runnable bigint;
begin
    select count(*), count(*) filter (where w.of_throttle), count(*) filter (where w.of_kind), count(*) filter (where w.of_throttle and w.of_kind)
    into live, serves, runs, runnable
    from (
        select kind = any(o.kinds) as of_kind, cardinality(o.throttles) = 0 or exists (
            select from unnest(o.throttles) p(pattern)
            where case when right(p.pattern, 1) = '*' then starts_with(throttle, left(p.pattern, -1)) else throttle = p.pattern end
        ) as of_throttle
        from flyball.worker o
        where o.stopped_at is null and o.heartbeat_at + o.ttl >= clock_timestamp() and o.role <> 'remote'
    ) w;
    return case
        when runnable > 0 then null
        when live = 0 then 'no worker is live; start one'
        when serves = 0 then format('no live worker serves the throttle %s; start one without --throttles, or with a pattern that stands for it', throttle)
        when runs = 0 then format('no live worker serves the kind %s; start a worker that does', kind)
        else format('no live worker serves the kind %s, the throttle %s together', kind, throttle) end;
end $$;

-- Finished attempts of a job, newest first.
create function flyball.list_attempts(job_id bigint, before timestamptz default null, most int default 100, tenant text default null)
returns table (attempt int, outcome text, worker text, started_at timestamptz, finished_at timestamptz, error text)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
#variable_conflict use_column
declare
    reads constant text := flyball.read_tenant('list_attempts', list_attempts.tenant);
begin
    perform flyball.check_most('list_attempts', most);
    return query
        select a.attempt::int, a.outcome::text, w.name, a.started_at, a.finished_at, a.error
        from flyball.attempt a
        left join flyball.worker w on w.id = a.worker_id
        where a.job_id = list_attempts.job_id and (list_attempts.before is null or a.finished_at < list_attempts.before)
            and (reads is null or exists (select from flyball.job j where j.id = list_attempts.job_id and j.tenant = reads))
        order by a.finished_at desc
        limit most;
end $$;

-- The result of a completed job, as long as it is kept; null for none.
create function flyball.job_result(job_id bigint, tenant text default null) returns jsonb
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    reads constant text := flyball.read_tenant('job_result', job_result.tenant);
begin
    return (
        select o.result from flyball.result o
        where o.job_id = job_result.job_id and o.kept_until > now()
            and (reads is null or exists (select from flyball.job j where j.id = o.job_id and j.tenant = reads)));
end $$;

-- A job with all that the API shows of it, under the same names; null if there is no such job.
-- `waiting` says no more than flyball.why_job.
create function flyball.show_job(job_id bigint, tenant text default null) returns jsonb
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
#variable_conflict use_column
declare
    reads constant text := flyball.read_tenant('show_job', show_job.tenant);
    shown jsonb;
begin
    select jsonb_build_object('id', j.id, 'kind', j.kind, 'throttle', j.throttle, 'key', j.key, 'tenant', j.tenant,
            'state', flyball.job_state(j.id), 'priority', j.priority,
            'attempt', coalesce(l.attempt, r.attempt, s.attempt, d.attempt, a.attempt, 0), 'max_attempts', j.max_attempts, 'cost', j.cost,
            'created_at', flyball.time_text(j.created_at), 'due_at', flyball.time_text(case when s.turn >= -4 or s.run_at > now() then s.run_at end),
            'ended_at', flyball.time_text(case when l.job_id is null and r.job_id is null and s.job_id is null
                then coalesce(d.died_at, a.finished_at) end),
            'last_error', coalesce(d.error, a.error), 'group', j.group_id, 'tags', coalesce(to_jsonb(j.tags), '[]'), 'args', flyball.shown_args(j.kind, j.args), 'unique', j.unique_key is not null)
        || jsonb_build_object('worker', w.name, 'heartbeat_at', flyball.time_text(w.heartbeat_at),
            'heartbeat_age_s', extract(epoch from clock_timestamp() - w.heartbeat_at), 'started_at', flyball.time_text(l.claimed_at),
            'timeout_s', j.timeout_s, 'traceparent', j.traceparent,
            'cancelling', l.job_id is not null and exists (select from flyball.cancel x where x.job_id = j.id),
            'progress', (
                select jsonb_build_object('done', c.done, 'total', c.total,
                    'percent', case when c.total > 0 then least(c.done::float8 / c.total * 100, 100) end, 'note', c.note,
                    'at', flyball.time_text(c.updated_at))
                from flyball.checkpoint c where c.job_id = j.id),
            'after', coalesce(to_jsonb(j.after), '[]'), 'after_failure', j.after_failure, 'waits_for', coalesce(case when s.turn < -4 then (
                select jsonb_agg(jsonb_build_object('id', o.after_id, 'state', coalesce(flyball.job_state(o.after_id), 'cancelled'))
                    order by o.after_id)
                from flyball.job_after o where o.job_id = j.id) end, '[]'),
            'on_complete', j.on_complete, 'on_dead', j.on_dead, 'webhook_secret', j.webhook_secret, 'retry', j.retry,
            'result', flyball.job_result(j.id, reads))
    into shown
    from flyball.job j
    left join flyball.lease l on l.job_id = j.id
    left join flyball.ready r on r.lane_id in (j.lane_id, j.admission_lane) and r.priority = j.priority and r.job_id = j.id
    left join flyball.scheduled s on s.job_id = j.id
    left join flyball.dead d on d.job_id = j.id
    left join flyball.worker w on w.id = l.worker_id
    left join lateral (
        select t.attempt, t.error, t.finished_at from flyball.attempt t where t.job_id = j.id order by t.finished_at desc limit 1
    ) a on true
    where j.id = show_job.job_id and (reads is null or j.tenant = reads);
    return shown || jsonb_build_object('waiting', flyball.why_job(show_job.job_id, reads), 'attempts', (
        select coalesce(jsonb_agg(jsonb_build_object('attempt', a.attempt, 'outcome', a.outcome, 'worker', a.worker,
            'started_at', flyball.time_text(a.started_at), 'finished_at', flyball.time_text(a.finished_at), 'error', a.error)
            order by a.finished_at), '[]')
        from flyball.list_attempts(show_job.job_id, null, 100, reads) a));
end $$;

-- === Lists =======================================================================================

-- Jobs that match a filter, newest first. While `next` is not null, older jobs may match: call again
-- with before => next.
create function flyball.list_jobs(filter jsonb default '{}', before bigint default null, max_jobs int default 100,
    out jobs jsonb, out next bigint)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    reads constant text := flyball.read_tenant('list_jobs', filter ->> 'tenant');
    page  record;
begin
    if max_jobs is null or max_jobs not between 1 and 1000 then
        perform flyball.refuse('list_jobs', 'max_jobs', format('is %s; allowed are 1 to 1000', coalesce(max_jobs::text, 'null')));
    elsif before < 1 then
        perform flyball.refuse('list_jobs', 'before', format('is %s; give what "next" answered, or null to begin', before));
    end if;
    select f.jobs, f.next into page from flyball.find_jobs(flyball.read_filter('list_jobs', filter, reads), before, max_jobs) f;
    next := page.next;
    select coalesce(jsonb_agg(to_jsonb(j) - 'group_id' || jsonb_build_object('group', j.group_id, 'tags', coalesce(j.tags, '{}'),
        'created_at', flyball.time_text(j.created_at), 'due_at', flyball.time_text(j.due_at), 'ended_at', flyball.time_text(j.ended_at))
        order by j.id desc), '[]') into jobs
    from unnest(page.jobs) j;
end $$;

-- The last attempts that failed, newest first. A job that is gone is known by its number only.
create function flyball.list_failures(most int default 100, in_tenant text default null)
returns table (job_id bigint, kind text, throttle text, key text, tenant text, "group" bigint, attempt int, outcome text, error text, at timestamptz)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    reads constant text := flyball.read_tenant('list_failures', in_tenant);
begin
    perform flyball.check_most('list_failures', most);
    return query
        select f.job_id, coalesce(j.kind, ''), coalesce(j.throttle, ''), coalesce(j.key, ''), coalesce(j.tenant, ''), j.group_id,
            f.attempt::int, f.outcome::text, f.error, f.at
        from (select * from flyball.failure o order by o.id desc limit case when reads is null then most else 10000 end) f
        left join lateral (select * from flyball.job o where o.id = f.job_id limit 1) j on true
        where reads is null or j.tenant = reads
        order by f.id desc
        limit most;
end $$;

-- The audit log, newest first; of a tenant what its tokens did.
create function flyball.list_audit(most int default 100, before_id bigint default null, in_tenant text default null)
returns table (id bigint, at timestamptz, actor text, token text, tenant text, action text, subject text, before jsonb, after jsonb, why text)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    reads constant text := flyball.read_tenant('list_audit', in_tenant);
begin
    perform flyball.check_most('list_audit', most);
    return query
        select a.id, a.at, a.actor, a.token, a.tenant, a.action, a.subject, a.before, a.after, coalesce(a.why, '')
        from flyball.audit a
        where (reads is null or a.tenant = reads) and a.id < coalesce(before_id, 9223372036854775807)
        order by a.id desc
        limit most;
end $$;

-- The live workers with the number of jobs that each runs, by their numbers.
create function flyball.list_workers()
returns table (id bigint, name text, remote boolean, host text, started_at timestamptz, heartbeat_at timestamptz, running bigint,
    throttles text[], kinds text[], capabilities jsonb)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
begin
    perform flyball.check_reads_all('list_workers');
    return query
        with held as (select l.worker_id, count(*) as jobs from flyball.lease l group by l.worker_id)
        select w.id::bigint, w.name, w.role = 'remote', w.host, w.started_at, w.heartbeat_at, coalesce(h.jobs, 0), w.throttles, w.kinds,
            w.capabilities
        from flyball.worker w
        left join held h on h.worker_id = w.id
        where w.stopped_at is null and w.heartbeat_at + w.ttl >= clock_timestamp() and w.role <> 'broker'
        order by w.id
        limit 1000;
end $$;

-- The kinds that can be enqueued, by name, with the number of attempts that have ended and their mean
-- cost in tokens.
create function flyball.list_kinds()
returns table (name text, public boolean, registered_at timestamptz, attempts bigint, mean_cost float8)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
begin
    perform flyball.check_reads_all('list_kinds');
    return query select k.name, k.public, k.registered_at, k.attempts, k.mean_cost from flyball.kind k order by k.name limit 1000;
end $$;

-- The caller's groups as flyball.show_group shows them, newest first; of a state, or created before a
-- time. Groups that nobody seals stay open for ever.
create function flyball.list_groups(in_state text default null, created_before timestamptz default null, before bigint default null,
    most int default 100)
returns setof jsonb
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set plan_cache_mode = force_custom_plan as $$
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

-- The recipients that get no messages, in the order of channel and digest, after a place that is
-- written `channel:digest`.
create function flyball.list_suppressions(in_channel text default null, after text default null, most int default 100)
returns table (channel text, recipient_digest text, reason text, pool text, account text, created_at timestamptz)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
begin
    perform flyball.check_reads_all('list_suppressions');
    perform flyball.check_most('list_suppressions', most);
    if in_channel not in ('sms', 'email', 'push', 'chat', 'webhook', 'inapp') then
        perform flyball.refuse('list_suppressions', 'in_channel', format('%s is not a channel; allowed are sms, email, push, chat, webhook and inapp',
            to_json(left(in_channel, 40))));
    elsif after !~ '^[a-z]+:[0-9a-f]{64}$' then
        perform flyball.refuse('list_suppressions', 'after', 'is not a place in this list; allowed is a channel, a colon and a recipient_digest');
    end if;
    return query
        select s.channel, encode(s.recipient_digest, 'hex'), s.reason, s.pool, s.account, s.created_at
        from flyball.suppression s
        where (s.channel, s.recipient_digest) > (coalesce(split_part(after, ':', 1), in_channel, ''), coalesce(decode(split_part(after, ':', 2), 'hex'), ''))
            and (in_channel is null or s.channel = in_channel)
        order by s.channel, s.recipient_digest
        limit most;
end $$;

-- === Groups and messages =========================================================================

-- A group with the changes that are not in its row yet, its callback as the API shows jobs. Never more
-- jobs have ended than were counted: the changes of one job may come in two parts.
create or replace function flyball.group_view(g flyball.job_group) returns jsonb
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

-- Requeues messages of a pool that died because no account was available, at most max_jobs, the
-- oldest first; their deadlines start again. A mark that is younger than a minute is left for the
-- next call: such a message may be dying at this moment. The reason is for the audit log.
alter function flyball.requeue_unsent rename to requeue_unsent_before_21;
create function flyball.requeue_unsent(pool text, max_jobs int default 1000, by text default null, why text default null,
    out examined bigint, out jobs bigint)
language plpgsql volatile set enable_seqscan = off set enable_bitmapscan = off set jit = off as $$
#variable_conflict use_column
declare
    ids            bigint[];
    notified_lanes text;
begin
    select array_agg(u.job_id) into ids
    from (
        select d.job_id from flyball.delivery d
        where d.pool = requeue_unsent.pool and d.unsent
        order by d.pool, d.job_id
        limit max_jobs
        for update skip locked
    ) u;
    examined := coalesce(cardinality(ids), 0);
    jobs := 0;
    if examined = 0 then
        return;
    end if;
    with was_dead as (
        delete from flyball.dead d where d.job_id = any(ids) returning *
    ),
    keyed as materialized (
        select unnest(flyball.lock_unique_keys(array(select w.job_id from was_dead w))) as job_id
    ),
    requeued as (
        insert into flyball.ready (lane_id, priority, job_id, attempt, cost, holds_unique)
        select w.lane_id, w.priority, w.job_id, 0, w.cost, w.job_id in (select h.job_id from keyed h) from was_dead w
        on conflict do nothing
    )
    select count(*), left(string_agg(distinct w.lane_id::text, ','), 7900) into jobs, notified_lanes from was_dead w;
    -- Jobs that are not dead any more were handled by another process. A message records first that
    -- it found no account and then dies, so one with a fresh mark may be about to die.
    update flyball.delivery d set unsent = false
    where d.job_id = any(ids) and d.unsent and d.updated_at < clock_timestamp() - interval '1 minute';
    if jobs > 0 then
        perform flyball.write_audit(null, flyball.audit_actor(requeue_unsent.by), 'dead.requeue', requeue_unsent.pool, null,
            jsonb_build_object('jobs', jobs, 'filter', jsonb_build_object('throttle', requeue_unsent.pool, 'unsent', true)),
            coalesce(nullif(requeue_unsent.why, ''), 'accounts are available again'));
        perform pg_notify('flyball', notified_lanes);
    end if;
end $$;

-- === Permissions =================================================================================

revoke execute on function flyball.read_tenant, flyball.check_reads_all, flyball.check_most, flyball.hidden_value,
    flyball.masked_args, flyball.shown_args, flyball.first_line, flyball.why_job, flyball.unserved_reason, flyball.list_attempts, flyball.job_result,
    flyball.show_job, flyball.list_jobs, flyball.list_failures, flyball.list_audit, flyball.list_workers, flyball.list_kinds, flyball.list_suppressions
from public;

select flyball.replace_functions(21);
drop function flyball.replace_functions;

comment on function flyball.requeue_unsent is 'Requeues messages that died because no account was available.';
comment on function flyball.show_job is 'A job with all that the API shows of it.';
comment on function flyball.why_job is 'The reason for which a job does not run yet, as far as Postgres knows it.';
comment on function flyball.list_attempts is 'Finished attempts of a job, newest first.';
comment on function flyball.job_result is 'The result of a completed job, as long as it is kept.';
comment on function flyball.list_jobs is 'Jobs that match a filter, newest first; call again with before => next for more.';
comment on function flyball.list_failures is 'The last attempts that failed, newest first.';
comment on function flyball.list_audit is 'The audit log, newest first.';
comment on function flyball.list_workers is 'The live workers.';
comment on function flyball.list_kinds is 'The kinds that can be enqueued.';
comment on function flyball.list_groups is 'The caller''s groups, newest first.';
comment on function flyball.list_suppressions is 'The recipients that get no messages, by their digests.';
