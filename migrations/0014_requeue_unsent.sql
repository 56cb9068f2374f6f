-- Chapter 14: messages that were just dying while accounts came back run again as well.

-- As before; a mark that is younger than a minute is left to the next look.
create or replace function flyball.requeue_unsent(pool text, max_jobs int default 1000, by text default null, out looked_at bigint, out jobs bigint)
language plpgsql volatile set enable_seqscan = off set enable_bitmapscan = off set jit = off as $$
#variable_conflict use_column
declare
    ids  bigint[];
    rung text;
begin
    select array_agg(u.job_id) into ids
    from (
        select d.job_id from flyball.delivery d
        where d.pool = requeue_unsent.pool and d.unsent
        order by d.pool, d.job_id
        limit max_jobs
        for update skip locked
    ) u;
    looked_at := coalesce(cardinality(ids), 0);
    jobs := 0;
    if looked_at = 0 then
        return;
    end if;
    with was_dead as (
        delete from flyball.dead d where d.job_id = any(ids) returning *
    ),
    held as materialized (
        select unnest(flyball.hold_keys(array(select w.job_id from was_dead w))) as job_id
    ),
    again as (
        insert into flyball.ready (lane_id, priority, job_id, attempt, cost, holds_unique)
        select w.lane_id, w.priority, w.job_id, 0, w.cost, w.job_id in (select h.job_id from held h) from was_dead w
        on conflict do nothing
    )
    select count(*), left(string_agg(distinct w.lane_id::text, ','), 7900) into jobs, rung from was_dead w;
    -- Those that are not dead any more have been seen to by somebody else. A message says first that it found no account and dies then,
    -- so whoever has only just said it may be about to.
    update flyball.delivery d set unsent = false
    where d.job_id = any(ids) and d.unsent and d.updated_at < clock_timestamp() - interval '1 minute';
    if jobs > 0 then
        perform flyball.note(null, flyball.signed(requeue_unsent.by), 'dead.requeue', requeue_unsent.pool, null,
            jsonb_build_object('jobs', jobs, 'filter', jsonb_build_object('throttle', requeue_unsent.pool, 'unsent', true)),
            'accounts are available again');
        perform pg_notify('flyball', rung);
    end if;
end $$;
