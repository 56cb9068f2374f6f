-- Chapter 43: refusals name the argument that the caller has given.

-- What enqueue_rows checks first is checked where it knows the names of its arguments.
do $$
declare
    body   text;
    change record;
begin
    for change in
        select * from (values
            ('enqueue_rows', '    backlogs  jsonb[];
begin
', '    backlogs  jsonb[];
    wrong     record;
begin
'),
            ('enqueue_rows', '    if 1 < any (array[array_ndims(kinds), array_ndims(args), array_ndims(throttles), array_ndims(keys), array_ndims(priorities),
        array_ndims(run_ats), array_ndims(max_attempts), array_ndims(unique_keys), array_ndims(unique_fors), array_ndims(costs),
        array_ndims(traceparents), array_ndims(timeouts), array_ndims(debounces), array_ndims(debounce_maxes), array_ndims(replaces),
        array_ndims(groups), array_ndims(options)])
    then
        raise exception using errcode = ''22023'', column = '''', hint = ''Nothing was enqueued.'',
            message = ''enqueue_rows: every argument must be an array of one dimension, with one element for each job'';
    end if;
', '    if 1 < any (array[array_ndims(kinds), array_ndims(args), array_ndims(throttles), array_ndims(keys), array_ndims(priorities),
            array_ndims(run_ats), array_ndims(max_attempts), array_ndims(unique_keys), array_ndims(unique_fors), array_ndims(costs),
            array_ndims(traceparents), array_ndims(timeouts), array_ndims(debounces), array_ndims(debounce_maxes), array_ndims(replaces),
            array_ndims(groups), array_ndims(options)])
        or array[cardinality(args), cardinality(throttles), cardinality(keys), cardinality(priorities), cardinality(run_ats),
            cardinality(max_attempts), cardinality(unique_keys), cardinality(unique_fors), cardinality(costs),
            cardinality(traceparents), cardinality(timeouts), cardinality(debounces), cardinality(debounce_maxes),
            cardinality(replaces)] is distinct from array_fill(cardinality(kinds), array[14])
        or cardinality(groups) <> cardinality(kinds) or cardinality(options) <> cardinality(kinds)
    then
        select a.name, case
            when a.dimensions > 1 then format(''must have one dimension, not %s'', a.dimensions)
            when a.size is null then ''must be an array with one element for each job, not null''
            else format(''must have one element for each job: kinds has %s, and this %s'', cardinality(kinds), a.size) end as problem
        into wrong
        from (values (1, ''kinds'', array_ndims(kinds), cardinality(kinds)), (2, ''args'', array_ndims(args), cardinality(args)),
            (3, ''throttles'', array_ndims(throttles), cardinality(throttles)), (4, ''keys'', array_ndims(keys), cardinality(keys)),
            (5, ''priorities'', array_ndims(priorities), cardinality(priorities)), (6, ''run_ats'', array_ndims(run_ats), cardinality(run_ats)),
            (7, ''max_attempts'', array_ndims(max_attempts), cardinality(max_attempts)),
            (8, ''unique_keys'', array_ndims(unique_keys), cardinality(unique_keys)),
            (9, ''unique_fors'', array_ndims(unique_fors), cardinality(unique_fors)), (10, ''costs'', array_ndims(costs), cardinality(costs)),
            (11, ''traceparents'', array_ndims(traceparents), cardinality(traceparents)),
            (12, ''timeouts'', array_ndims(timeouts), cardinality(timeouts)), (13, ''debounces'', array_ndims(debounces), cardinality(debounces)),
            (14, ''debounce_maxes'', array_ndims(debounce_maxes), cardinality(debounce_maxes)),
            (15, ''replaces'', array_ndims(replaces), cardinality(replaces)),
            (16, ''groups'', array_ndims(groups), coalesce(cardinality(groups), cardinality(kinds))),
            (17, ''options'', array_ndims(options), coalesce(cardinality(options), cardinality(kinds)))
        ) as a(place, name, dimensions, size)
        where a.dimensions > 1 or a.size is distinct from cardinality(kinds) or a.size is null
        order by a.place limit 1;
        raise exception using errcode = ''22023'', column = wrong.name, hint = ''Nothing was enqueued.'',
            message = format(''enqueue_rows: %s: %s'', wrong.name, wrong.problem);
    end if;
'),
            ('notify_many', '            elsif coalesce(one.message ->> ''pool'', '''') = '''' then
                field := ''pool'';
                problem := ''must name the pool that sends the message'';
', '            elsif coalesce(one.message ->> ''pool'', '''') = '''' then
                field := ''pool'';
                problem := ''must name the pool that sends the message'';
            elsif one.message ->> ''pool'' !~ ''^[A-Za-z0-9._/:{}-]{1,128}$'' then
                field := ''pool'';
                problem := format(''%s is not the name of a pool; use 1 to 128 letters, digits or any of . _ - / : { }'',
                    to_json(left(one.message ->> ''pool'', 64)));
')) as c(name, before, after)
    loop
        body := pg_get_functiondef(('flyball.' || change.name)::regproc);
        if strpos(body, change.before) = 0 then
            raise exception 'flyball.% does not contain: %', change.name, change.before;
        end if;
        execute replace(body, change.before, change.after);
    end loop;
end $$;

-- The functions of inboxes call it recipient.
create or replace function flyball.check_recipient_id(what text, id text)
returns void
language plpgsql stable
as $$
begin
    if flyball.recipient_id_problem(check_recipient_id.id) is not null then
        perform flyball.refuse(what, case when what in ('inbox', 'inbox_counts', 'mark_inbox') then 'recipient' else 'id' end,
            flyball.recipient_id_problem(check_recipient_id.id));
    end if;
end $$;
