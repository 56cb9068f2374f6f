-- Chapter 57: the lock of a request has a name that only the owner of the schema can compute.
--
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
