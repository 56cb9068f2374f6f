-- Chapter 48: calls by SQL: what the session of a caller compiles, and what its transaction says late.

-- A function that forbids scans makes a plan with one look expensive: the estimate is far above the cost from which
-- Postgres compiles a statement (`jit_above_cost`), and a retry from psql took two seconds for the compilation of a
-- statement of two milliseconds. The connections of the program have `jit` off; those of others that call a function
-- have what their server has, which is on by default.
do $$
declare
    one record;
begin
    for one in
        select p.oid::regprocedure as name
        from pg_proc p
        where p.pronamespace = 'flyball'::regnamespace and p.prokind = 'f' and 'enable_seqscan=off' = any (p.proconfig)
            and not 'jit=off' = any (p.proconfig)
    loop
        execute format('alter function %s set jit = off', one.name);
    end loop;
end $$;

-- A request to cancel that is committed after the last attempt of its job has ended finds a dead letter, and stays for
-- a minute. A person who requeues the dead letter within it wants it to run: the request is forgotten.
do $migration$
declare
    change record;
    body   text;
begin
    for change in
        select * from (values
            ('flyball.retry', $t$        requeued as ($t$, $t$        forgotten as (
            delete from flyball.cancel
            where job_id = any(array(
                select c.job_id from flyball.cancel c where c.job_id = any(array(select d.job_id from was_dead d)) for update skip locked
            ))
        ),
        requeued as ($t$),
            ('flyball.dead_walk', $t$    requeued as ($t$, $t$    forgotten as (
        delete from flyball.cancel
        where job_id = any(array(
            select c.job_id from flyball.cancel c where c.job_id = any(array(select t.job_id from removed t)) for update skip locked
        ))
    ),
    requeued as ($t$)
        ) as v(name, was, becomes)
    loop
        body := pg_get_functiondef(change.name::regproc);
        if length(body) - length(replace(body, change.was, '')) <> length(change.was) then
            raise exception '% does not contain once: %', change.name, change.was;
        end if;
        execute replace(body, change.was, change.becomes);
    end loop;
end $migration$;
