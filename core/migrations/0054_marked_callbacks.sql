-- Chapter 54: a callback whose body is marked as a secret as a whole goes without the counts.
--
-- The counts were added beside the field `$encrypted`, which must be alone: the callback was accepted with its group,
-- and was a dead letter when the group had ended.
create or replace function flyball.callback_with(callback jsonb, counts jsonb) returns jsonb
language sql immutable parallel safe
return (
    select case
        when jsonb_typeof(a.args) <> 'object' or a.kind in ('notification', 'reindex', 'batch') then callback
        when a.place ?| array['$secret', '$encrypted'] then callback
        when a.kind <> 'http' then callback || jsonb_build_object('args', a.added || a.args)
        when a.args ? 'template' and jsonb_typeof(coalesce(a.args -> 'data', '{}')) = 'object'
            then callback || jsonb_build_object('args', a.args || jsonb_build_object('data', a.added || coalesce(a.args -> 'data', '{}')))
        when not a.args ? 'template' and upper(coalesce(a.args ->> 'method', 'GET')) in ('POST', 'PUT', 'PATCH')
            and jsonb_typeof(coalesce(nullif(a.args -> 'body', 'null'), '{}')) = 'object'
            then callback || jsonb_build_object('args', a.args
                || jsonb_build_object('body', a.added || coalesce(nullif(a.args -> 'body', 'null'), '{}')))
        else callback end
    from (
        select callback ->> 'kind' as kind, coalesce(callback -> 'args', '{}') as args, jsonb_build_object('group', counts) as added,
            case
                when callback ->> 'kind' <> 'http' then callback -> 'args'
                when callback -> 'args' ? 'template' then callback #> '{args,data}'
                else callback #> '{args,body}'
            end as place
    ) a
);
