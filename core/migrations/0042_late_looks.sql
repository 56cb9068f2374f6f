-- Chapter 42: jobs of a day that is being emptied, timeouts of remote workers, and occurrences that a
-- declaration lost.

-- A day is emptied in one transaction: its tables are truncated, and the jobs that stay are written back. Who
-- reads them waits for its end. A function that is stable reads with the view of the statement that called it,
-- which is older than that wait, and finds a day without jobs: a job that waited for one of them was cancelled,
-- and another that named it was refused. One that is volatile takes its view after the wait.
alter function flyball.ends_of(bigint[]) volatile;
alter function flyball.absent_of(bigint[], text) volatile;
alter function flyball.is_of_tenant(bigint, text) volatile;
alter function flyball.job_state(bigint) volatile;

-- Seconds after which the attempt of a remote worker is over, by its job or its kind; null for none.
alter table flyball.lease add column timeout_s real;

-- As it was, but an occurrence that a process left because it did not know the time zone is not lost by the
-- declaration with which the next one starts.
do $$
declare
    body constant text := pg_get_functiondef('flyball.schedule'::regproc);
    was  constant text := 'then c.next_at end,';
begin
    if length(body) - length(replace(body, was, '')) <> length(was) then
        raise exception 'flyball.schedule does not contain once: %', was;
    end if;
    execute replace(body, was, 'then coalesce(c.next_at, case when c.problem like ''time_zone: %'' then c.missed_at end) end,');
end $$;
