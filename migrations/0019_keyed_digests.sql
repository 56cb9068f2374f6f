-- Chapter 19: recipients are known by keyed digests, and by the address that messages go to.
--
-- A digest without a key of a phone number is as good as the number, because all numbers can be tried. So every digest is an
-- HMAC-SHA-256 over the digest of before, under a key that is made here and never leaves this database. What was kept before is keyed
-- now, so that suppressions stay as they are.

-- The key as HMAC uses it: 32 random bytes, filled up and mixed with its two constants.
create table flyball.digest_key (
    is_only   boolean primary key default true check (is_only),
    inner_pad bytea   not null check (length(inner_pad) = 64),
    outer_pad bytea   not null check (length(outer_pad) = 64)
);
-- Whoever may read all tables of the schema still finds nothing in this one; it is read by one function of its owner.
alter table flyball.digest_key enable row level security;
revoke all on flyball.digest_key from public;

do $$
declare
    -- Four random UUIDs hold 488 bits of Postgres' strong random source; this needs no extension.
    key       constant bytea := sha256(decode(replace(gen_random_uuid()::text || gen_random_uuid()::text || gen_random_uuid()::text
        || gen_random_uuid()::text, '-', ''), 'hex'));
    inner_pad bytea := decode(repeat('36', 64), 'hex');
    outer_pad bytea := decode(repeat('5c', 64), 'hex');
begin
    for n in 0..31 loop
        inner_pad := set_byte(inner_pad, n, get_byte(inner_pad, n) # get_byte(key, n));
        outer_pad := set_byte(outer_pad, n, get_byte(outer_pad, n) # get_byte(key, n));
    end loop;
    insert into flyball.digest_key (inner_pad, outer_pad) values (inner_pad, outer_pad);
end $$;

-- The digest under which a recipient is kept, of the digest that a program computes.
create function flyball.keyed_digest(known bytea) returns bytea
language plpgsql stable strict security definer set search_path = pg_catalog, pg_temp as $$
declare
    key flyball.digest_key;
begin
    select * into strict key from flyball.digest_key;
    return sha256(key.outer_pad || sha256(key.inner_pad || known));
end $$;

update flyball.suppression set recipient_digest = flyball.keyed_digest(recipient_digest);
update flyball.delivery set recipient_digest = flyball.keyed_digest(recipient_digest) where recipient_digest is not null;
update flyball.delivery_event set recipient_digest = flyball.keyed_digest(recipient_digest) where recipient_digest is not null;
-- Whom nobody troubles for some minutes is found out again.
delete from flyball.recipient_rest;

-- The one spelling of a recipient, by the law of src/providers/recipient.rs as far as SQL can keep it; null where it cannot: a domain
-- with letters beyond ASCII, a URL that is not in its normal form, and what is no recipient at all.
create or replace function flyball.normal_recipient(channel text, recipient text) returns text
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
end;

-- Null where the one spelling is not known here: the program that sends the message writes it.
create or replace function flyball.recipient_digest(channel text, recipient text) returns bytea
language sql stable parallel safe
return flyball.keyed_digest(sha256(convert_to(channel || chr(31) || flyball.normal_recipient(channel, recipient), 'UTF8')));

-- A recipient as people may see it.
create or replace function flyball.mask_recipient(channel text, recipient text) returns text
language sql immutable parallel safe as $$
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

-- The digests under which a recipient may be suppressed: its own, and that of the spelling of before.
create function flyball.known_digests(channel text, recipient text) returns bytea[]
language sql stable parallel safe as $$
    select array(
        select sha256(convert_to(channel || chr(31) || s.text, 'UTF8'))
        from (values
            (1, flyball.normal_recipient(channel, recipient)),
            (2, case channel when 'sms' then 'whatsapp:' || flyball.normal_recipient(channel, recipient)
                when 'email' then lower(btrim(recipient, E' \t\n\r\f' || chr(11)) collate "C")
                else btrim(recipient, E' \t\n\r\f' || chr(11)) end)) as s(n, text)
        where s.text is not null
        order by s.n)
$$;

create or replace function flyball.check_recipient(what text, channel text, recipient text) returns void
language plpgsql as $$
begin
    if check_recipient.channel is null or check_recipient.channel not in ('sms', 'email', 'push', 'chat', 'webhook') then
        perform flyball.refuse(what, 'channel', format('%s is not a channel; allowed are sms, email, push, chat and webhook',
            coalesce(to_json(left(check_recipient.channel, 40))::text, 'null')));
    elsif btrim(coalesce(check_recipient.recipient, ''), E' \t\n\r\f' || chr(11)) = '' then
        perform flyball.refuse(what, 'recipient', 'is empty; give the address, number, token, chat or URL');
    elsif octet_length(check_recipient.recipient) > 4096 then
        perform flyball.refuse(what, 'recipient', format('is %s bytes long; at most 4096 are allowed', octet_length(check_recipient.recipient)));
    elsif flyball.normal_recipient(check_recipient.channel, check_recipient.recipient) is null then
        perform flyball.refuse(what, 'recipient', case check_recipient.channel
            when 'email' then 'must be exactly one mail address of ASCII letters; one with other letters or an xn-- domain is read by POST and DELETE /api/v1/suppressions'
            when 'sms' then 'must be a number in E.164 form, such as +15550100'
            when 'push' then 'must be one device''s token'
            when 'chat' then 'must be one chat''s id or name'
            else 'must be a URL in its normal form, without escapes; any other is read by POST and DELETE /api/v1/suppressions' end);
    end if;
end $$;

-- Nothing goes to a recipient any more, which is known by these digests, the first of which is written. False if it was so already.
create function flyball.suppress_known(channel text, known bytea[], shown text, reason text, by text) returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
begin
    if exists (
        select from flyball.suppression s
        where s.channel = suppress_known.channel
            and s.recipient_digest = any(array(select flyball.keyed_digest(k) from unnest(suppress_known.known) as k))
    ) then
        return false;
    end if;
    insert into flyball.suppression (channel, recipient_digest, reason)
    values (suppress_known.channel, flyball.keyed_digest(known[1]), left(coalesce(suppress_known.reason, ''), 1000))
    on conflict do nothing;
    if not found then
        return false;
    end if;
    perform flyball.note(null, flyball.signed(suppress_known.by), 'recipient.suppress', suppress_known.channel || '/' || shown, null, null,
        suppress_known.reason);
    return true;
end $$;

-- Messages go again to a recipient that is known by these digests. False if none were kept back.
create function flyball.unsuppress_known(channel text, known bytea[], shown text, why text, by text) returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    was jsonb;
begin
    with gone as (
        delete from flyball.suppression s
        where s.channel = unsuppress_known.channel
            and s.recipient_digest = any(array(select flyball.keyed_digest(k) from unnest(unsuppress_known.known) as k))
        returning s.reason, s.created_at
    )
    select jsonb_build_object('reason', g.reason, 'created_at', g.created_at) into was from gone g order by g.created_at limit 1;
    if was is null then
        return false;
    end if;
    perform flyball.note(null, flyball.signed(unsuppress_known.by), 'recipient.unsuppress', unsuppress_known.channel || '/' || shown, was, null,
        unsuppress_known.why);
    return true;
end $$;

create or replace function flyball.suppress(channel text, recipient text, reason text default '', by text default null) returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
begin
    perform flyball.check_recipient('suppress', suppress.channel, suppress.recipient);
    return flyball.suppress_known(suppress.channel, flyball.known_digests(suppress.channel, suppress.recipient),
        flyball.mask_recipient(suppress.channel, suppress.recipient), suppress.reason, suppress.by);
end $$;

create or replace function flyball.unsuppress(channel text, recipient text, by text default null, why text default '') returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
begin
    perform flyball.check_recipient('unsuppress', unsuppress.channel, unsuppress.recipient);
    return flyball.unsuppress_known(unsuppress.channel, flyball.known_digests(unsuppress.channel, unsuppress.recipient),
        flyball.mask_recipient(unsuppress.channel, unsuppress.recipient), unsuppress.why, unsuppress.by);
end $$;

create or replace function flyball.is_suppressed(channel text, recipient text) returns boolean
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
begin
    perform flyball.check_recipient('is_suppressed', is_suppressed.channel, is_suppressed.recipient);
    return exists (
        select from flyball.suppression s
        where s.channel = is_suppressed.channel
            and s.recipient_digest = any(array(
                select flyball.keyed_digest(k) from unnest(flyball.known_digests(is_suppressed.channel, is_suppressed.recipient)) as k
            ))
    );
end $$;

do $$
declare
    f regprocedure;
begin
    for f in
        select p.oid::regprocedure
        from pg_proc p
        where p.pronamespace = 'flyball'::regnamespace
            and p.proname = any(array['keyed_digest', 'recipient_digest', 'known_digests', 'suppress_known', 'unsuppress_known'])
    loop
        execute format('revoke execute on function %s from public', f);
    end loop;
end $$;
