-- Chapter 18: programs of two versions beside one schema.

-- A program works beside a schema that has migrations which it does not know, as long as it knows
-- `oldest_program`: the migration that is the newest one of the oldest program that may run. A
-- migration that only adds leaves the number alone. One that takes away what such a program uses
-- raises it, and is released one version after the program that has stopped using it.
create table flyball.compatibility (
    one            boolean primary key default true check (one),
    oldest_program bigint  not null
);
insert into flyball.compatibility (oldest_program) values (18);

-- Ends the replacement of functions by others with more parameters at the end. A migration renames the
-- old ones to <name>_before_<its number>, creates the new ones, and calls this. Each new one gets the
-- grants of its old one, as the operators left them. The old one goes, unless a function or a view of
-- theirs is bound to it: then it stays and calls the new one, whose grants alone count.
--
-- Only migrations need it, so the last one that does drops it.
create function flyball.replace_functions(migration int) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
    suffix constant text := '_before_' || migration;
    old    pg_proc;
    new    regprocedure;
    change text;
begin
    for old in
        select p.* from pg_proc p where p.pronamespace = 'flyball'::regnamespace and right(p.proname, length(suffix)) = suffix
    loop
        new := format('flyball.%I', left(old.proname, -length(suffix)))::regproc;
        for change in
            select c.change
            from (
                select 1 as step, format('revoke all on function %s from %s cascade', new, g.role) as change
                from pg_proc p
                cross join lateral aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
                cross join lateral (select case a.grantee when 0 then 'public' else a.grantee::regrole::text end as role) g
                where p.oid = new
                union all
                select 2, format('grant execute on function %s to %s', new, g.role) || case when a.is_grantable then ' with grant option' else '' end
                from aclexplode(coalesce(old.proacl, acldefault('f', old.proowner))) a
                cross join lateral (select case a.grantee when 0 then 'public' else a.grantee::regrole::text end as role) g
            ) c
            order by c.step
        loop
            execute change;
        end loop;
        begin
            execute format('drop function %s', old.oid::regprocedure);
        exception when dependent_objects_still_exist then
            execute format('create or replace function %s(%s) returns %s language sql as %L', old.oid::regproc,
                pg_get_function_arguments(old.oid), pg_get_function_result(old.oid), format('select %s from %s(%s)',
                    coalesce((
                        select string_agg(quote_ident(n.name), ', ' order by n.place)
                        from unnest(old.proargnames, old.proargmodes) with ordinality as n(name, mode, place)
                        where n.mode in ('o', 't')
                    ), '*'), new::regproc, (select string_agg('$' || n, ', ' order by n) from generate_series(1, old.pronargs) as n)));
            execute format('grant execute on function %s to public', old.oid::regprocedure);
        end;
    end loop;
end $$;
revoke execute on function flyball.replace_functions from public;
