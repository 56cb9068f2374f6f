-- Chapter 57: neighbours in the database keep no lock of a request, and plant no code below a function that operators call.

-- Every role that may connect can keep an advisory lock. This one was named after the sender and the idempotency key of
-- the request, which others can know or guess, or after its body: while somebody kept it, the request was refused as
-- running, or waited. The name is made with the key of the installation, as digests of recipients are.

create or replace function flyball.request_lock(digest bytea) returns bigint
language sql stable
return hashtextextended('flyball.request ' || encode(flyball.keyed_digest(digest), 'hex'), 0);

do $migration$
declare
    change record;
    body   text := pg_get_functiondef('flyball.find_request'::regproc);
begin
    for change in
        select v.was, v.becomes
        from (values
        ($t$    previous record;
    name     constant bigint := hashtextextended('flyball.request ' || encode(find_request.digest, 'hex'), 0);
$t$,
            $t$    previous record;
$t$),
        ($t$if not pg_try_advisory_xact_lock(name) then$t$,
            $t$if not pg_try_advisory_xact_lock(flyball.request_lock(find_request.digest)) then$t$),
        ($t$perform pg_advisory_xact_lock(name);$t$,
            $t$perform pg_advisory_xact_lock(flyball.request_lock(find_request.digest));$t$)
        ) as v(was, becomes)
    loop
        if length(body) - length(replace(body, change.was, '')) <> length(change.was) then
            raise exception 'flyball.find_request does not contain once: %', change.was;
        end if;
        body := replace(body, change.was, change.becomes);
    end loop;
    execute body;
end $migration$;

-- An operator's session has `public` in its path, and a function there whose types fit better than those of the system's
-- would run with the operator's rights below one of these. The other functions that are documented have had a path
-- of their own since 0040, or before.
do $migration$
declare
    one record;
begin
    for one in
        select p.oid::regprocedure as name
        from pg_proc p
        where p.pronamespace = 'flyball'::regnamespace and p.prokind = 'f'
            and p.proname in ('cancel_jobs', 'discard_dead', 'pause_all', 'purge_lane', 'register_kind', 'requeue_dead', 'resume_all',
                'set_retention', 'set_weight')
    loop
        execute format('alter function %s set search_path = pg_catalog, pg_temp', one.name);
    end loop;
end $migration$;
