-- Chapter 49: statements of functions are not compiled.

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
