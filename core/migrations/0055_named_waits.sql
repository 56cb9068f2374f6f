-- Chapter 55: why a job waits that runs after others.

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

do $migration$
declare
    was     constant text := $t$then 'it runs after other jobs, which have not ended'$t$;
    becomes constant text := $t$then coalesce(flyball.why_after(job.id), 'it runs after other jobs, which have not ended')$t$;
    body    constant text := pg_get_functiondef('flyball.why_job'::regproc);
begin
    if length(body) - length(replace(body, was, '')) <> length(was) then
        raise exception 'flyball.why_job does not contain once: %', was;
    end if;
    execute replace(body, was, becomes);
end $migration$;
