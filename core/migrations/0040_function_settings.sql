-- Chapter 40: settings of functions, which no caller may have otherwise.

-- A session that calls a function may have set both: the path on which names are looked up, and whether a
-- backslash in a text stands for itself, which the patterns of a function rely on. Functions without
-- settings of their own stay without, because those in SQL would not become a part of their callers'
-- plans any more, and run with the rights of their caller, or below a function that has both.
do $$
declare
    one record;
begin
    for one in
        select p.oid::regprocedure as name, p.prosecdef or p.prorettype = 'trigger'::regtype or strpos(p.prosrc, chr(92)) > 0 as has_texts,
            coalesce(array_to_string(p.proconfig, ' '), '') !~ 'search_path=' and (p.proconfig is not null or p.prorettype = 'trigger'::regtype)
                as has_no_path
        from pg_proc p
        where p.pronamespace = 'flyball'::regnamespace and p.prokind = 'f'
    loop
        if one.has_no_path then
            execute format('alter function %s set search_path = pg_catalog, pg_temp', one.name);
        end if;
        if one.has_texts then
            execute format('alter function %s set standard_conforming_strings = on', one.name);
        end if;
    end loop;
end $$;
