-- Chapter 38: throttles that limit the requests of another API take no jobs of their clients.

-- As those of the HTTP API itself: a job in `limit:lead` under the key of a client would take the
-- requests of that client. It is put into the functions as they are, because nothing else of them
-- changes; `enqueue` and `enqueue_rows_as` of 0037 leave such jobs to the check.
do $$
declare
    refused constant text := 'elsif not trusted and throttle like ''api:%'' then';
    author  constant text := 'elsif new.throttle like ''api:%'' and not flyball.is_operator() then';
    change  record;
    body    text;
begin
    for change in
        select c.name, c.before, c.after from (values
            ('check_job', refused, 'elsif not trusted and throttle like ''limit:%'' then
        code := ''42501'';
        message := format(''%s limits the requests of an API, and only operators may enqueue in it; name one of your own'', to_json(throttle));
        return;
    ' || refused),
            ('check_author', author, 'elsif new.throttle like ''limit:%'' and not flyball.is_operator() then
        raise exception using errcode = ''42501'', column = ''throttle'', hint = ''No schedule was changed.'',
            message = format(''schedule: throttle: %s limits the requests of an API, and only operators may enqueue in it; name one of your own'',
                to_json(new.throttle));
    ' || author)) as c(name, before, after)
    loop
        body := pg_get_functiondef(('flyball.' || change.name)::regproc);
        if strpos(body, change.before) = 0 then
            raise exception 'flyball.% does not contain: %', change.name, change.before;
        end if;
        execute replace(body, change.before, change.after);
    end loop;
end $$;
