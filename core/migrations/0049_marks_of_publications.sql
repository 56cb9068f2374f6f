-- Chapter 49: a notification of a publication carries the mark of its tenant.
--
-- A process that moves the messages of a tenant step by step, because that is at its limit, need not look when more of
-- them come. The mark is a digest, because every role may listen. Programs of before look in any case.

create function flyball.tenant_mark(tenant text) returns text
language sql immutable parallel safe as $$
    select left(encode(sha256(convert_to(tenant, 'UTF8')), 'hex'), 16)
$$;
revoke execute on function flyball.tenant_mark from public;

do $migration$
declare
    was     constant text := $t$perform pg_notify('flyball_publish', '');$t$;
    becomes constant text := $t$perform pg_notify('flyball_publish', flyball.tenant_mark(append_publication.tenant));$t$;
    body    text := pg_get_functiondef('flyball.append_publication'::regproc);
begin
    if length(body) - length(replace(body, was, '')) <> length(was) then
        raise exception 'flyball.append_publication does not contain once: %', was;
    end if;
    execute replace(body, was, becomes);
end $migration$;
