-- Chapter 28: the settings of a session that name its tenant and its module.
--
-- Every role may write them, so they are checked where they are read, as flyball.as_tenant checks its
-- arguments: a module is the key of a lane, and the index of lanes holds no text of any length.

create function flyball.refuse_setting(name text, must_be text) returns text
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
begin
    raise exception using
        errcode = '22023',
        message = format('setting %s: %s', name, must_be),
        hint = 'use flyball.as_tenant(tenant, module)';
end $$;

create or replace function flyball.caller_tenant() returns text
language sql stable
return case
    when not flyball.is_operator() then coalesce((flyball.role_tenant()).tenant, '')
    when coalesce(current_setting('flyball.tenant', true), '') = '' then ''
    when current_setting('flyball.tenant') ~ '^[A-Za-z0-9._/:{}-]{1,64}$' then current_setting('flyball.tenant')
    else flyball.refuse_setting('flyball.tenant', 'must be 1 to 64 letters, digits or any of . _ - / : { }, or empty for none')
end;

create or replace function flyball.caller_module() returns text
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare
    session_module constant text := coalesce(current_setting('flyball.module', true), '');
    identity       record;
begin
    if octet_length(session_module) > 64 or session_module ~ '[[:cntrl:]]' then
        perform flyball.refuse_setting('flyball.module', 'must be a name of at most 64 bytes without control characters, or empty for none');
    end if;
    if flyball.is_operator() then
        return session_module;
    end if;
    select * into identity from flyball.role_tenant();
    return case when identity.tenant is null then '' else coalesce(identity.module, nullif(session_module, ''), flyball.caller()::text) end;
end $$;
