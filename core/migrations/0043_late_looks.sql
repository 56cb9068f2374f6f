-- Chapter 43: jobs of a day that is being emptied, and timeouts of remote workers.

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
