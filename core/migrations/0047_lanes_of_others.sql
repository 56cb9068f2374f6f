-- Chapter 47: jobs stay out of the lanes of others that the producer does not name.

-- The throttles of pools take messages, and jobs of other kinds from operators alone. A job of the kind http goes to a
-- server of its producer's choice, and a refusal by that server pauses the lane of the job. In the throttle of a pool
-- that is the lane of a tenant's messages, and in the one of its accounts an account.
create function flyball.is_of_pool(throttle text) returns boolean
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set standard_conforming_strings = on as $$
begin
    return exists (select from flyball.knobs b where b.throttle = is_of_pool.throttle || ':accounts')
        or right(is_of_pool.throttle, 9) = ':accounts'
            and exists (select from flyball.knobs b where b.throttle = left(is_of_pool.throttle, -9));
end $$;

do $migration$
declare
    change record;
    body   text;
begin
    for change in
        select v.name::regproc as name, v.was, v.becomes
        from (values
        ('flyball.check_job',
            $t$        message := format('%s belongs to another tenant; name one of your own, or one that no tenant owns', to_json(throttle));
        return;
$t$,
            $t$        message := format('%s belongs to another tenant; name one of your own, or one that no tenant owns', to_json(throttle));
        return;
    elsif not trusted and throttle = 'flyball:alerts' then
        code := '42501';
        message := format('%s sends the alerts of Flyball itself, and only operators may enqueue in it; name one of your own', to_json(throttle));
        return;
    elsif not trusted and (kind <> 'notification' or right(throttle, 9) = ':accounts') and flyball.is_of_pool(throttle) then
        code := '42501';
        message := format('%s belongs to a pool, in which only operators may enqueue jobs other than its messages; name one of your own',
            to_json(throttle));
        return;
$t$),

        -- The calls of webhooks have lanes by tenant or host.
        ('flyball.check_job',
            $t$                        else format('is %s bytes long; at most 512 are allowed', octet_length(key)) end;
        return;
$t$,
            $t$                        else format('is %s bytes long; at most 512 are allowed', octet_length(key)) end;
        return;
    elsif not trusted and throttle = 'webhooks' and key not in ('', flyball.caller_tenant()) then
        code := '42501';
        message := 'names the calls of others in throttle "webhooks"; leave it out, or name a throttle of your own';
        return;
$t$),
        -- The limits of a tenant count its messages, and not what they take from the pool that others share.
        ('flyball.check_job',
            $t$        message := format('is %s; allowed is more than 0 and at most 1e9 tokens', coalesce(cost::text, 'null'));
        return;
$t$,
            $t$        message := format('is %s; allowed is more than 0 and at most 1e9 tokens', coalesce(cost::text, 'null'));
        return;
    elsif not trusted and kind = 'notification' and cost > 10 then
        code := '42501';
        message := format('is %s; a message costs at most 10 tokens, unless an operator enqueues it', cost);
        return;
$t$),
        -- By HTTP the tenant of the caller is given, and its rights are those of the owner. Once the job is taken, because
        -- of two changes at once each sees the lane before the other.
        ('flyball.update',
            $t$    job.lane_id := flyball.lane_of(job.throttle, job.key);
$t$,
            $t$    if (throttle is not null or key is not null) and job.throttle = 'webhooks'
        and job.key not in ('', coalesce(tenant, case when not flyball.is_operator() then flyball.caller_tenant() end))
    then
        raise exception using errcode = '22023', column = 'key', hint = 'Nothing was changed.',
            message = 'update: key: names the calls of others in throttle "webhooks"; leave it empty, or name a throttle of your own';
    elsif job.kind = 'notification' and cost > 10 and (tenant is not null or not flyball.is_operator()) then
        raise exception using errcode = '22023', column = 'cost', hint = 'Nothing was changed.',
            message = format('update: cost: is %s; a message costs at most 10 tokens, unless an operator enqueues it', cost);
    end if;
    job.lane_id := flyball.lane_of(job.throttle, job.key);
$t$),

        -- The conditions under which no job is checked by itself.
        ('flyball.enqueue',
            $t$                and not flyball.is_of_admission(throttle)
$t$,
            $t$                and not flyball.is_of_admission(throttle)
                and right(throttle, 9) <> ':accounts' and throttle <> 'flyball:alerts' and (throttle <> 'webhooks' or key = '')
                and (kind = 'notification' or not exists (select from flyball.knobs b where b.throttle = throttle || ':accounts'))
$t$),
        ('flyball.enqueue_rows_as',
            $t$        and 512 >= all (select octet_length(k) from unnest(keys) as k)
$t$,
            $t$        and (trusted or 'webhooks' <> all (throttles) and 'flyball:alerts' <> all (throttles) and not exists (
            select from (select distinct unnest(throttles) as name) as t
            where right(t.name, 9) = ':accounts'
                or not 'notification' = all (kinds) and exists (select from flyball.knobs b where b.throttle = t.name || ':accounts' offset 0)))
        and 512 >= all (select octet_length(k) from unnest(keys) as k)
$t$),

        ('flyball.check_author',
            $t$    elsif flyball.throttle_tenant(new.throttle) <> flyball.caller_tenant() and not flyball.is_operator() then
$t$,
            $t$    elsif new.throttle = 'flyball:alerts' and not flyball.is_operator() then
        raise exception using errcode = '42501', column = 'throttle', hint = 'No schedule was changed.',
            message = format('schedule: throttle: %s sends the alerts of Flyball itself, and only operators may enqueue in it; name one of your own',
                to_json(new.throttle));
    elsif not flyball.is_operator() and (new.kind <> 'notification' or right(new.throttle, 9) = ':accounts')
        and flyball.is_of_pool(new.throttle)
    then
        raise exception using errcode = '42501', column = 'throttle', hint = 'No schedule was changed.',
            message = format('schedule: throttle: %s belongs to a pool, in which only operators may enqueue jobs other than its messages; name one of your own',
                to_json(new.throttle));
    elsif new.throttle = 'webhooks' and new.key not in ('', flyball.caller_tenant()) and not flyball.is_operator() then
        raise exception using errcode = '42501', column = 'key', hint = 'No schedule was changed.',
            message = 'schedule: key: names the calls of others in throttle "webhooks"; leave it out, or name a throttle of your own';
    elsif new.kind = 'notification' and new.cost > 10 and not flyball.is_operator() then
        raise exception using errcode = '42501', column = 'cost', hint = 'No schedule was changed.',
            message = format('schedule: cost: is %s; a message costs at most 10 tokens, unless an operator enqueues it', new.cost);
    elsif flyball.throttle_tenant(new.throttle) <> flyball.caller_tenant() and not flyball.is_operator() then
$t$)
        ) as v(name, was, becomes)
    loop
        body := pg_get_functiondef(change.name);
        if length(body) - length(replace(body, change.was, '')) <> length(change.was) then
            raise exception 'flyball: % does not contain exactly once: %', change.name, change.was;
        end if;
        execute replace(body, change.was, change.becomes);
    end loop;
end $migration$;
