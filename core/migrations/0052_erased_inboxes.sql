-- Chapter 52: open devices of an erased recipient are told to list its inbox again.
--
-- A publication would keep the name of the recipient, so the gateways are told by a notification with a mark, as in 0049.

do $migration$
declare
    was     constant text := $t$    return removed;
$t$;
    becomes constant text := $t$    if removed > 0 then
        perform pg_notify('flyball_channel', 'erased ' || flyball.tenant_mark(erase_inbox.tenant || chr(31) || own_channel));
    end if;
    return removed;
$t$;
    body    text := pg_get_functiondef('flyball.erase_inbox'::regproc);
begin
    if length(body) - length(replace(body, was, '')) <> length(was) then
        raise exception 'flyball.erase_inbox does not contain once: %', was;
    end if;
    execute replace(body, was, becomes);
end $migration$;
