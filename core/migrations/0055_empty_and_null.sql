-- Chapter 55: arguments that are empty or null, and why a job waits that runs after others.

-- The reason names the job that is waited for and its state, in the words of GET /api/v1/jobs/{id}: a dead letter
-- comes first, because nothing goes on until a person requeues or discards it. A job that is gone counts as cancelled.
create function flyball.why_after(job_id bigint) returns text
language sql stable as $$
    select case when w.state = 'dead' then format('it waits for job %s, which is dead: requeue it, or discard it', w.after_id)
            else format('it waits for the end of job %s, which is %s', w.after_id, w.state) end
        || case when w.others > 0 then format(', and for %s more', w.others) else '' end
    from (
        select o.after_id, coalesce(flyball.job_state(o.after_id), 'cancelled') as state, count(*) over () - 1 as others
        from flyball.job_after o
        where o.job_id = why_after.job_id
    ) w
    order by w.state <> 'dead', w.after_id
    limit 1
$$;
revoke execute on function flyball.why_after(bigint) from public;

-- A list of jobs to run after that is empty names none, so such a job is merged like every other. It was a duplicate by
-- SQL, which kept the old arguments, while HTTP leaves such a list out.
--
-- A `dry_run` that is null changed jobs, and discarded dead letters for ever, as if it were false. It comes from a
-- variable that was never set, so nobody knows what was meant: it is refused, and so is a `keep_attempts`.
do $migration$
declare
    change record;
    body   text;
begin
    for change in
        select * from (values
            ('flyball.why_job',
                $t$then 'it runs after other jobs, which have not ended'$t$,
                $t$then coalesce(flyball.why_after(job.id), 'it runs after other jobs, which have not ended')$t$),
            ('flyball.admit',
                $t$not coalesce(options ?| array['after', 'on_complete', 'on_dead'], false)$t$,
                $t$not coalesce(options ?| array['on_complete', 'on_dead'] or options -> 'after' <> '[]', false)$t$),
            ('flyball.cancel_jobs', 'coalesce(dry_run, false)', 'dry_run'),
            ('flyball.purge_lane', 'coalesce(dry_run, false)', 'dry_run'),
            ('flyball.discard_dead', 'coalesce(dry_run, false)', 'dry_run'),
            ('flyball.requeue_dead', 'coalesce(keep_attempts, false), max_jobs, coalesce(dry_run, false)', 'keep_attempts, max_jobs, dry_run'),
            ('flyball.cancel_walk', $t$    perform flyball.check_walk($t$, $t$    if dry_run is null then
        perform flyball.refuse(what, 'dry_run', 'must be true or false, not null');
    end if;
    perform flyball.check_walk($t$),
            ('flyball.dead_walk', $t$    perform flyball.check_walk($t$, $t$    if dry_run is null then
        perform flyball.refuse(what, 'dry_run', 'must be true or false, not null');
    elsif keep_attempts is null then
        perform flyball.refuse(what, 'keep_attempts', 'must be true or false, not null');
    end if;
    perform flyball.check_walk($t$)
        ) as v(name, was, becomes)
    loop
        body := pg_get_functiondef(change.name::regproc);
        if length(body) - length(replace(body, change.was, '')) <> length(change.was) then
            raise exception '% does not contain once: %', change.name, change.was;
        end if;
        execute replace(body, change.was, change.becomes);
    end loop;
end $migration$;
