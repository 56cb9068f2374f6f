-- Chapter 47: an inbox has no caps of actors.

-- An inbox interrupts nobody, so the caps for each recipient and actor do not hold there; `cap_lists` in
-- core/src/recipient/gates.rs has the same.
do $$
declare
    body    constant text := pg_get_functiondef('flyball.refuse_capped'::regproc);
    was     constant text := 'if one.args ->> ''actor'' is not null then';
    becomes constant text := 'if one.args ->> ''actor'' is not null and channel <> ''inapp'' then';
begin
    if length(body) - length(replace(body, was, '')) <> length(was) then
        raise exception 'flyball.refuse_capped does not contain once: %', was;
    end if;
    execute replace(body, was, becomes);
end $$;
