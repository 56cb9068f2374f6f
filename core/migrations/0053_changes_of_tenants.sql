-- Chapter 53: a role with a tenant changes the jobs of its tenant alone, whatever it was granted.
--
-- The functions that read jobs hold to the tenant of their caller. Those that change one job or one group did so only if
-- the tenant was named: a role of one tenant that was granted `flyball.cancel` cancelled the jobs of all others.

create function flyball.bound_tenant() returns text
language sql stable
return case when not flyball.is_operator() then (flyball.role_tenant()).tenant end;

create or replace function flyball.is_of_tenant(job_id bigint, tenant text) returns boolean
language sql volatile
return (is_of_tenant.tenant is null
        or exists (select from flyball.job j where j.id = is_of_tenant.job_id and j.tenant = is_of_tenant.tenant))
    and (flyball.bound_tenant() is null
        or exists (select from flyball.job j where j.id = is_of_tenant.job_id and j.tenant = flyball.bound_tenant()));

do $migration$
declare
    change record;
    body   text;
begin
    for change in
        select * from (values
            ('flyball.update', $t$where j.id = job_id and (tenant is null or j.tenant = tenant);$t$,
                $t$where j.id = job_id and flyball.is_of_tenant(job_id, tenant);$t$),
            ('flyball.cancel_group', $t$where g.id = group_id and (tenant is null or g.tenant = tenant) for update;$t$,
                $t$where g.id = group_id and (tenant is null or g.tenant = tenant)
        and g.tenant = coalesce(flyball.bound_tenant(), g.tenant)
    for update;$t$)
        ) as v(name, was, becomes)
    loop
        body := pg_get_functiondef(change.name::regproc);
        if length(body) - length(replace(body, change.was, '')) <> length(change.was) then
            raise exception '% does not contain once: %', change.name, change.was;
        end if;
        execute replace(body, change.was, change.becomes);
    end loop;
end $migration$;

revoke execute on function flyball.bound_tenant from public;
