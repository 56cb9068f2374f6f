-- Chapter 2: what the other chapters share: the caller, tenants and owners, refusals and the audit
-- log, digests and addresses of recipients, and what of a job may be shown.
--
-- A kind that is not public is enqueued only by operators and by roles in `flyball.producer`. A
-- role in that table may have a tenant: it sends for that tenant alone, and changes nothing of
-- others.
--
-- The session that calls a function may have set the search path, and whether a backslash in a text
-- stands for itself. So functions that run with the rights of the schema's owner, triggers,
-- functions that operators call and all with settings for their plans have a path of their own, and
-- those with a pattern in their text also the usual meaning of a backslash. The path of an operator
-- has `public` in it: a function there whose types fit better than those of the system's would run
-- with the operator's rights. Functions in SQL without settings become a part of their callers'
-- plans. One that forbids scans has `jit` off as well, because such a plan looks so expensive that
-- Postgres would compile it.
--
-- A session plans a statement of a function once, perhaps while a table is empty. So statements
-- that run often, or that a person waits for, find each of their rows by a probe: `offset 0` keeps
-- a question a question about one row, `coalesce` hides a condition from an index that it alone
-- cannot bound, and an order by the key is that of one index.

-- === The caller ==================================================================================

-- The calling role: that of SET ROLE if it is set, else the login. Inside `security definer`
-- functions `current_user` is their owner; this still names the caller, also behind a pooler, whose
-- login may take another role per transaction. A `security definer` function of another owner does
-- not change it: the role that runs the transaction counts.
create function flyball.caller() returns name
language sql stable parallel safe
return case when current_setting('role') = 'none' then session_user else current_setting('role')::name end;

-- Operators may write the table of jobs directly: the owner of the schema, its members, superusers,
-- and roles with that grant.
create function flyball.is_operator() returns boolean
language sql stable
return has_table_privilege(flyball.caller(), 'flyball.job'::regclass, 'INSERT');

-- Whether the caller may enqueue a kind.
create function flyball.may_enqueue(kind text) returns boolean
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set standard_conforming_strings = on as $$
begin
    return exists (select from flyball.kind k where k.name = may_enqueue.kind and k.public) or flyball.is_operator() or exists (
        select from flyball.producer p
        join pg_catalog.pg_roles r on r.rolname = p.role
        where may_enqueue.kind = any(p.kinds) and pg_has_role(flyball.caller(), r.oid, 'USAGE'));
end $$;
comment on function flyball.may_enqueue is 'Whether the caller may enqueue jobs of a kind.';

-- Whether the caller may send critical messages of its tenant.
create function flyball.may_send_critical() returns boolean
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set standard_conforming_strings = on as $$
begin
    return flyball.is_operator() or exists (
        select from flyball.producer p
        join pg_catalog.pg_roles r on r.rolname = p.role
        where p.critical and pg_has_role(flyball.caller(), r.oid, 'USAGE'));
end $$;

-- The kinds that the caller may enqueue, for error messages.
create function flyball.enqueueable() returns text
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set standard_conforming_strings = on as $$
begin
    return (select coalesce(string_agg(k.name, ', ' order by k.name), 'none') from flyball.kind k where flyball.may_enqueue(k.name));
end $$;

-- === Tenants =====================================================================================

-- The tenant and module that `flyball.producer` gives the calling role, itself or as a member of
-- another; nulls if it gives none. A row of the role itself goes first.
create function flyball.role_tenant(out tenant text, out module text)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set standard_conforming_strings = on as $$
declare
    asks constant name := flyball.caller();
begin
    select p.tenant, p.module into role_tenant.tenant, role_tenant.module
    from flyball.producer p
    join pg_catalog.pg_roles r on r.rolname = p.role
    where p.tenant is not null and pg_has_role(asks, r.oid, 'USAGE')
    order by p.role <> asks, p.role
    limit 1;
end $$;

-- Refuses a setting of a session that names its tenant or its module. Every role may write them, so
-- they are checked where they are read, as flyball.as_tenant checks its arguments: a module is the
-- key of a lane, and the index of lanes holds no text of any length.
create function flyball.refuse_setting(name text, must_be text) returns text
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
begin
    raise exception using
        errcode = '22023',
        message = format('setting %s: %s', name, must_be),
        hint = 'use flyball.as_tenant(tenant, module)';
end $$;

-- The tenant of the caller's jobs; '' for the operators' own. The setting counts for operators
-- alone: every role can write a setting, and a role with a tenant has that tenant.
create function flyball.caller_tenant() returns text
language sql stable
return case
    when not flyball.is_operator() then coalesce((flyball.role_tenant()).tenant, '')
    when coalesce(current_setting('flyball.tenant', true), '') = '' then ''
    when current_setting('flyball.tenant') ~ '^[A-Za-z0-9._/:{}-]{1,64}$' then current_setting('flyball.tenant')
    else flyball.refuse_setting('flyball.tenant', 'must be 1 to 64 letters, digits or any of . _ - / : { }, or empty for none')
end;

-- The module of the caller within its tenant; '' for none.
create function flyball.caller_module() returns text
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set standard_conforming_strings = on as $$
declare
    session_module constant text := coalesce(current_setting('flyball.module', true), '');
    identity       record;
begin
    if octet_length(session_module) > 64 or session_module ~ '[[:cntrl:]]' then
        perform flyball.refuse_setting('flyball.module',
            'must be a name of at most 64 bytes without control characters, or empty for none');
    end if;
    if flyball.is_operator() then
        return session_module;
    end if;
    select * into identity from flyball.role_tenant();
    return case when identity.tenant is null then '' else coalesce(identity.module, nullif(session_module, ''), flyball.caller()::text) end;
end $$;

-- Acts for a tenant and one of its modules until the end of the transaction: the jobs that it
-- enqueues belong to them. For operators; a role with a tenant may name only its own. '' ends it.
create function flyball.as_tenant(tenant text, module text default '') returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set standard_conforming_strings = on as $$
declare
    identity record;
    field    text := 'tenant';
    problem  text;
    code     text := '22023';
begin
    if as_tenant.tenant is null or as_tenant.tenant !~ '^[A-Za-z0-9._/:{}-]{0,64}$' then
        problem := format('%s is not a tenant; use 1 to 64 letters, digits or any of . _ - / : { }, or '''' for none',
            coalesce(to_json(left(as_tenant.tenant, 80))::text, 'null'));
    elsif as_tenant.module is null or octet_length(as_tenant.module) > 64 or as_tenant.module ~ '[[:cntrl:]]' then
        field := 'module';
        problem := 'must be a name of at most 64 bytes without control characters, or '''' for none';
    elsif not flyball.is_operator() then
        code := '42501';
        select * into identity from flyball.role_tenant();
        if identity.tenant is null then
            problem := format('role %s has no tenant; an operator gives it one in flyball.producer', to_json(flyball.caller()));
        elsif as_tenant.tenant not in ('', identity.tenant) then
            problem := format('%s is not the tenant of role %s; it acts for %s', to_json(as_tenant.tenant), to_json(flyball.caller()),
                to_json(identity.tenant));
        elsif as_tenant.module not in ('', identity.module) then
            field := 'module';
            problem := format('%s is not the module of role %s; it acts for %s', to_json(as_tenant.module), to_json(flyball.caller()),
                to_json(identity.module));
        end if;
    end if;
    if problem is not null then
        raise exception using errcode = code, column = field, message = format('as_tenant: %s: %s', field, problem),
            hint = 'Nothing was changed.';
    end if;
    perform set_config('flyball.tenant', as_tenant.tenant, true), set_config('flyball.module', as_tenant.module, true);
end $$;
comment on function flyball.as_tenant is 'Acts for a tenant and one of its modules until the end of the transaction.';

-- The tenant outside which the caller may change nothing, whatever it was granted; null for
-- operators and for roles without a tenant.
create function flyball.bound_tenant() returns text
language sql stable
return case when not flyball.is_operator() then (flyball.role_tenant()).tenant end;

-- The owner of the caller's unique keys: a tenant, '' for operators, or the role itself.
create function flyball.unique_owner() returns text
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set standard_conforming_strings = on as $$
declare
    owner_tenant constant text := flyball.caller_tenant();
begin
    return case when owner_tenant <> '' then 'tenant:' || owner_tenant when flyball.is_operator() then ''
        else 'role:' || flyball.caller() end;
end $$;

-- The tenant that owns a throttle, by its name: `notify:<tenant>`, `ws:<tenant>`,
-- `ws-connections:<tenant>` or `tenant:<tenant>/<name>`; null
-- for a shared one. The same as `throttle::tenant::tenant_of`.
create function flyball.throttle_tenant(throttle text) returns text
language sql immutable parallel safe
return case when starts_with(throttle, 'notify:') then nullif(substr(throttle, 8), '')
    when starts_with(throttle, 'ws:') then nullif(substr(throttle, 4), '')
    when starts_with(throttle, 'ws-connections:') then nullif(substr(throttle, 16), '')
    else substring(throttle from '^tenant:([^/]+)/') end;

-- The tenant of jobs whose unique keys belong to this owner, so the two cannot disagree.
create function flyball.tenant_of(owner text) returns text
language sql immutable parallel safe
return case when starts_with(owner, 'tenant:') then substr(owner, 8) else '' end;

-- The digest of a unique key. No text holds a zero byte, so no key of one owner equals a key of
-- another.
create function flyball.unique_digest(owner text, kind text, key text) returns bytea
language sql stable parallel safe
return case when owner = '' then sha256(convert_to(kind || chr(31) || key, 'UTF8'))
    else sha256(convert_to(owner, 'UTF8') || '\x00'::bytea || convert_to(kind, 'UTF8') || '\x00'::bytea || convert_to(key, 'UTF8')) end;

-- === Refusals and the audit log ==================================================================

-- Refuses an argument.
create function flyball.refuse(what text, field text, message text) returns void
language plpgsql as $$
begin
    raise exception using
        errcode = '22023',
        column = field,
        message = format('%s: %s: %s', what, field, message),
        hint = 'Nothing was changed.';
end $$;

-- The function that the caller has called, for a refusal: messages, and the jobs of a new group, are
-- enqueued like all jobs, and many jobs column by column; the context of the call tells.
create function flyball.called_function(context text, otherwise text) returns text
language sql immutable parallel safe
return case when context ~ '\mflyball\.notify\(' then 'notify' when context ~ '\mflyball\.notify_many\(' then 'notify_many'
    when context ~ '\mflyball\.create_group\(' then 'create_group' when context ~ '\mflyball\.enqueue_many\(' then 'enqueue_many'
    when context ~ '\mflyball\.enqueue_rows\(' then 'enqueue_rows' else otherwise end;

-- The actor: the owner of the schema may name another one, as the server does; every other caller
-- is recorded under the name of its role. The server appends the token after a unit separator, and
-- its tenant after another.
create function flyball.audit_actor(by text) returns text
language sql stable
return left(case when flyball.caller() = current_user then coalesce(nullif(by, ''), flyball.caller()::text)
    else translate(flyball.caller()::text, chr(31), '') end, 400);

-- Writes one line of the audit log per operation, however many batches it takes: the numbers of a
-- later batch are added to it.
create function flyball.write_audit(operation bigint, actor text, action text, subject text, before jsonb, after jsonb, why text)
returns bigint
language plpgsql as $$
#variable_conflict use_column
declare
    actor_name   constant text := left(split_part(write_audit.actor, chr(31), 1), 200);
    actor_token  constant text := nullif(split_part(write_audit.actor, chr(31), 2), '');
    actor_tenant constant text := nullif(split_part(write_audit.actor, chr(31), 3), '');
    entry_id     bigint;
begin
    update flyball.audit a
    set after = (
        select jsonb_object_agg(n.key, case jsonb_typeof(n.value)
            when 'number' then to_jsonb((n.value)::numeric + coalesce((a.after -> n.key)::numeric, 0)) else n.value end)
        from jsonb_each(write_audit.after) n
    )
    where a.id = write_audit.operation and a.action = write_audit.action and a.actor = actor_name
        and a.token is not distinct from actor_token
        and a.tenant is not distinct from actor_tenant
    returning a.id into entry_id;
    if entry_id is null then
        insert into flyball.audit (actor, action, subject, before, after, why, token, tenant)
        values (actor_name, write_audit.action, write_audit.subject, write_audit.before, write_audit.after,
            left(coalesce(write_audit.why, ''), 1000), actor_token, actor_tenant)
        returning id into entry_id;
    end if;
    return entry_id;
end $$;

-- === Digests =====================================================================================

-- The stored digest of a recipient, from the digest that a program computes.
create function flyball.keyed_digest(known bytea) returns bytea
language plpgsql stable strict security definer set search_path = pg_catalog, pg_temp set standard_conforming_strings = on as $$
declare
    key flyball.digest_key;
begin
    select * into strict key from flyball.digest_key;
    return sha256(key.outer_pad || sha256(key.inner_pad || known));
end $$;

-- The stored digests of many recipients, in order: a call for each costs eight times as much.
create function flyball.keyed_digests(known bytea[]) returns bytea[]
language plpgsql stable strict security definer set search_path = pg_catalog, pg_temp set standard_conforming_strings = on as $$
declare
    key flyball.digest_key;
begin
    select * into strict key from flyball.digest_key;
    return array(select sha256(key.outer_pad || sha256(key.inner_pad || k.known))
        from unnest(known) with ordinality as k(known, n) order by k.n);
end $$;

-- The least number that a claim of a recipient has: the first three bytes of its key, then zeros.
-- core/src/recipient/dedup.rs makes the numbers.
create function flyball.first_claim(recipient uuid) returns bigint
language sql immutable parallel safe
return ('x' || left(recipient::text, 6) || '0000000000')::bit(64)::bigint;

-- The claims that jobs have among those of a recipient. Other recipients whose keys begin like its
-- key have theirs in between.
create function flyball.claims_of(recipient uuid, jobs bigint[]) returns setof bigint
language sql stable rows 1 set enable_seqscan = off set search_path = pg_catalog, pg_temp set jit = off as $$
    select d.claim from flyball.dedup d
    where d.claim between flyball.first_claim(recipient) and (flyball.first_claim(recipient) | 1099511627775) and d.job_id = any (jobs)
$$;

-- The mark of a tenant in the notification of a publication. A process that moves the messages of a
-- tenant step by step, because that is at its limit, need not look when more of them come. The mark
-- is a digest, because every role may listen.
create function flyball.tenant_mark(tenant text) returns text
language sql stable parallel safe
return left(encode(sha256(convert_to(tenant, 'UTF8')), 'hex'), 16);

-- === Addresses ===================================================================================

-- The canonical spelling of a recipient, by the rules of core/src/providers/recipient.rs as far as
-- SQL can apply them; null if it cannot: a domain with non-ASCII letters, a URL that is not
-- normalised, and an invalid recipient.
create function flyball.normal_recipient(channel text, recipient text) returns text
language sql immutable parallel safe
return case channel
    when 'email' then (
        select m[2] || '@' || m[3]
        from regexp_match(
            lower(btrim(recipient, E' \t\n\r\f' || chr(11)) collate "C"),
            '^(?:((?:"[^"<>@\\[:cntrl:]]*"|[^"<>@,;:()\[\]\\[:cntrl:]]*) *<))?'
                || '([a-z0-9!#$%&''*+/=?^_`{|}~-]{1,64}(?:\.[a-z0-9!#$%&''*+/=?^_`{|}~-]+)*)@([a-z0-9_](?:[a-z0-9._-]*[a-z0-9_])?)>?$') as m
        where (m[1] is not null) = (btrim(recipient, E' \t\n\r\f' || chr(11)) like '%>')
            and position('=?' in coalesce(m[1], '')) = 0
            and coalesce(m[1], '') ~ '^[ -~]*$'
            and length(m[2]) <= 64 and length(m[3]) <= 253 and m[3] !~ '\.\.|-\.|\.-|[^.]{64}|(^|[.])(0x[0-9a-f]*|[0-9]+)$'
            and m[3] !~ '(^|\.)xn--'
    )
    when 'sms' then (
        select n
        from regexp_replace(translate(recipient, E' -().\t\n\r\f' || chr(11), ''), '^whatsapp:', '', 'i') as n
        where n ~ '^\+[1-9][0-9]{4,14}$'
    )
    when 'push' then (
        select case when r ~ '^[0-9A-Fa-f]{64,}$' then lower(r collate "C") else r end
        from btrim(recipient, E' \t\n\r\f' || chr(11)) as r
        where r ~ '^[!-~]+$' and length(r) <= 4096
    )
    when 'chat' then (
        select case
            when r ~ '^[+-]?[0-9]{1,18}$' then (r::bigint)::text
            when r ~ '^[@#]' then lower(r collate "C")
            else r end
        from btrim(recipient, E' \t\n\r\f' || chr(11)) as r
        where r ~ '^[!#-+.-:=?-~-]{1,128}$'
    )
    when 'webhook' then (
        select case when r ~ '^https?://[^/]*$' then r || '/' else r end
        from btrim(recipient, E' \t\n\r\f' || chr(11)) as r
        where r ~ '^https?://[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)*(?::[1-9][0-9]{0,4})?(?:/[A-Za-z0-9/._~!$&()*+,;=:@-]*(?:\?[A-Za-z0-9/._~!$&()*+,;=:@?-]*)?)?$'
            and r !~ '^https?://[^/:]*\.?(?:0x[0-9a-f]*|[0-9]+)(?::|/|$)' and r !~ '/\.\.?(/|\?|$)' and r !~ '[/.]xn--'
            and r !~ '^https://[^/:]*:443(/|$)' and r !~ '^http://[^/:]*:80(/|$)'
            and coalesce(substring(r from '^https?://[^/:]*:([0-9]+)')::int, 0) <= 65535
    )
    when 'inapp' then (
        select recipient
        where octet_length(recipient) between 1 and 128 and recipient !~ '[[:cntrl:]]' and recipient not in ('check', '.', '..')
            and recipient = btrim(recipient, E' \t\n\r\f' || chr(11))
    )
end;

-- The unkeyed digest of a recipient, as programs compute it. Null if SQL cannot compute the
-- canonical spelling.
create function flyball.known_digest(channel text, recipient text) returns bytea
language sql stable parallel safe
return sha256(convert_to(channel || chr(31) || flyball.normal_recipient(channel, recipient), 'UTF8'));

-- The stored digest of a recipient. Null if SQL cannot compute the canonical spelling: the program
-- that sends the message writes it.
create function flyball.recipient_digest(channel text, recipient text) returns bytea
language sql stable parallel safe
return flyball.keyed_digest(flyball.known_digest(channel, recipient));

-- The masked form of a recipient.
create function flyball.mask_recipient(channel text, recipient text) returns text
language sql immutable parallel safe set standard_conforming_strings = on as $$
    select case
        when channel = 'email' then case when n like '%@%' then
            left(n, 1) || '***@' || left(substring(n from '[^@]*$'), 1) || '***'
                || coalesce(substring(substring(n from '[^@]*$') from '\.[^.]*$'), '') else '***' end
        when channel = 'webhook' then case when n ~ '^https?://' then
            substring(n from '^https?://') || left(substring(n from '^https?://([^/?#]*)'), 1) || '***'
                || coalesce(substring(substring(n from '^https?://([^/?#]*)') from '\.[^.]*$'), '') || '/***' else '***' end
        when channel = 'sms' and length(n) >= 10 then left(n, 5) || '***' || right(n, 2)
        when channel <> 'sms' and length(n) >= 12 then left(n, 3) || '***' || right(n, 2)
        when length(n) >= 5 then '***' || right(n, 2)
        else '***' end
    from (select flyball.normal_recipient(channel, recipient) as n) s
$$;

-- Refuses an invalid recipient of a channel.
create function flyball.check_recipient(what text, channel text, recipient text) returns void
language plpgsql set standard_conforming_strings = on as $$
begin
    if check_recipient.channel is null or check_recipient.channel not in ('sms', 'email', 'push', 'chat', 'webhook', 'inapp') then
        perform flyball.refuse(what, 'channel', format('%s is not a channel; allowed are sms, email, push, chat, webhook and inapp',
            coalesce(to_json(left(check_recipient.channel, 40))::text, 'null')));
    elsif btrim(coalesce(check_recipient.recipient, ''), E' \t\n\r\f' || chr(11)) = '' then
        perform flyball.refuse(what, 'recipient', 'is empty; give the address, number, token, chat or URL');
    elsif octet_length(check_recipient.recipient) > 4096 then
        perform flyball.refuse(what, 'recipient', format('is %s bytes long; at most 4096 are allowed',
            octet_length(check_recipient.recipient)));
    elsif flyball.normal_recipient(check_recipient.channel, check_recipient.recipient) is null then
        perform flyball.refuse(what, 'recipient', case check_recipient.channel
            when 'email' then 'must be exactly one mail address of ASCII letters; one with other letters or an xn-- domain is read by POST and DELETE /api/v1/suppressions'
            when 'sms' then 'must be a number in E.164 form, such as +15550100'
            when 'push' then 'must be one device''s token'
            when 'chat' then 'must be one chat''s id or name'
            when 'inapp' then 'must be the id of a recipient: 1 to 128 bytes without blanks around, other than check, . or ..'
            else 'must be a URL in its normal form, without escapes; any other is read by POST and DELETE /api/v1/suppressions' end);
    end if;
end $$;

-- === What may be shown ===========================================================================

-- A time in UTC as RFC 3339, without zeros at its end, as the API writes it.
create function flyball.time_text(moment timestamptz) returns text
language sql immutable parallel safe as $$
    select rtrim(rtrim(to_char(moment at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US'), '0'), '.') || 'Z'
$$;

-- The first line of a text, for a sentence.
create function flyball.first_line(text text) returns text
language sql immutable parallel safe
return case when length(split_part(text, E'\n', 1)) > 200 then left(split_part(text, E'\n', 1), 200) || '…'
    else split_part(text, E'\n', 1) end;

-- A value without the secrets that are marked in it, at any depth. What is deeper than the 127
-- levels that a worker reads is hidden whole if it has one: each level takes some of the stack, and
-- a search reads the arguments of every job.
create function flyball.without_secrets(value jsonb, level int default 1) returns jsonb
language plpgsql immutable parallel safe as $$
begin
    -- Most values have none, and LIKE knows it sooner than a regular expression.
    if value::text not like all (array['%"$secret"%', '%"$encrypted"%']) then
        return value;
    elsif level > 127 then
        return '"[secret]"';
    elsif jsonb_typeof(value) = 'object' then
        return case when value ?| array['$secret', '$encrypted'] then '"[secret]"'::jsonb else (
            select jsonb_object_agg(f.key, flyball.without_secrets(f.value, level + 1)) from jsonb_each(value) f) end;
    elsif jsonb_typeof(value) = 'array' then
        return (
            select jsonb_agg(flyball.without_secrets(e.value, level + 1) order by e.n)
            from jsonb_array_elements(value) with ordinality as e(value, n));
    end if;
    return value;
end $$;

-- A URL without the name and the password in it. One that is written in an unusual way and may have
-- them is hidden whole: programs read it differently.
create function flyball.shown_url(url text) returns text
language sql immutable parallel safe
return case
    when url !~ '@' then url
    when url ~* '^https?://[^\s\\/?#@]+([/?#][^\\\t\n\r]*)?$' then url
    when url ~* '^https?://[^\s\\/?#@]*@[^\s\\/?#@]+([/?#][^\\\t\n\r]*)?$' then regexp_replace(url, '^([A-Za-z]+://)[^@]*@', '\1***@')
    else '***' end;

-- A value without its texts, numbers and flags; an object keeps the names of its fields.
create function flyball.hidden_value(value jsonb) returns jsonb
language sql immutable parallel safe
return case jsonb_typeof(value)
    when 'null' then value
    when 'object' then (
        select coalesce(jsonb_object_agg(f.key, case when jsonb_typeof(f.value) = 'null' then f.value else '"***"' end), '{}')
        from jsonb_each(value) f)
    else '"***"' end;

-- Arguments without what a kind holds: those of a message without its recipient and contents, those
-- of a request without credentials.
create function flyball.masked_args(kind text, args jsonb) returns jsonb
language sql immutable parallel safe
return case
    when jsonb_typeof(args) <> 'object' then args
    when kind = 'notification' then args || (
        select coalesce(jsonb_object_agg(f.key, case
            when f.key <> 'to' then flyball.hidden_value(f.value)
            when jsonb_typeof(f.value) = 'string' then to_jsonb(flyball.mask_recipient(args ->> 'channel', f.value #>> '{}'))
            when jsonb_typeof(f.value) = 'null' then f.value
            else '"***"' end), '{}')
        from jsonb_each(args) f
        where f.key in ('to', 'subject', 'body', 'html', 'template', 'data', 'extra'))
    when kind = 'http' then args
        || case when jsonb_typeof(args -> 'headers') = 'object' then jsonb_build_object('headers', (
            select coalesce(jsonb_object_agg(h.key, case
                when lower(h.key collate "C") ~ '(auth|cookie|credential|jwt|key|passw|secret|session|sig|token|csrf)'
                    and lower(h.key collate "C") not in ('idempotency-key', 'x-idempotency-key') and h.value <> '"[secret]"' then '"***"'
                else h.value end), '{}')
            from jsonb_each(args -> 'headers') h)) else '{}' end
        || case when jsonb_typeof(args -> 'url') = 'string' then jsonb_build_object('url', flyball.shown_url(args ->> 'url')) else '{}' end
    else args end;

-- The arguments of a job as the API shows them.
create function flyball.shown_args(kind text, args jsonb) returns jsonb
language sql immutable parallel safe
return flyball.masked_args(kind, flyball.without_secrets(args));

-- === Permissions =================================================================================

revoke execute on function flyball.bound_tenant, flyball.refuse, flyball.audit_actor, flyball.write_audit, flyball.keyed_digest,
    flyball.keyed_digests, flyball.first_claim, flyball.claims_of, flyball.tenant_mark, flyball.known_digest,
    flyball.recipient_digest, flyball.check_recipient, flyball.time_text,
    flyball.first_line, flyball.without_secrets, flyball.shown_url, flyball.hidden_value, flyball.masked_args, flyball.shown_args
from public;
