-- Chapter 3: enqueueing: validation of a job, and the functions that enqueue.
--
-- Four laws. A kind that is not public is enqueued only by operators and by roles in
-- `flyball.producer`. A unique key belongs to its owner: the same key of another owner is a
-- different key, so nobody replaces or delays the jobs of others. Keys that begin with `cron:`
-- belong to schedules. A throttle of the HTTP API accepts jobs from operators only, and so does one
-- that limits the requests of another API: a job in `limit:lead` under the key of a client would
-- take the requests of that client. One that belongs to a tenant accepts them from that tenant and
-- operators.
--
-- The entry points run one plain statement for a valid and simple job. A job that looks invalid, or
-- needs more than an insert (a unique key, a later time, a lane with a limit), goes through the one
-- function that knows every rule and message. A refusal names the function and the argument that
-- the caller has given.

-- === Kinds =======================================================================================

-- Registers a kind before its first worker starts. `public` says whether every role may enqueue it;
-- null leaves it unchanged, and means true for a new kind.
create function flyball.register_kind(name text, public boolean default null) returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
begin
    if name is null or octet_length(name) not between 1 and 128 then
        raise exception using errcode = '22023', column = 'name', hint = 'Nothing was registered.',
            message = format('register_kind: name: %s', case when name is null then 'must not be null; give the kind''s name'
                when name = '' then 'must not be empty; give the kind''s name'
                else format('is %s bytes long; at most 128 are allowed', octet_length(name)) end);
    end if;
    insert into flyball.kind as k (name, public) values (name, coalesce(public, true))
    on conflict on constraint kind_pkey do update set public = coalesce(register_kind.public, k.public)
    where register_kind.public <> k.public;
end $$;

-- === Throttles ===================================================================================

-- The number in the text of a knob, as Redis and Rust read it; null if the text is none.
create function flyball.knob_number(text text) returns float8
language sql immutable parallel safe
return case when text ~ '^[ \t\n\r\v\f]*[-+]?([0-9]{1,12}(\.[0-9]{0,20})?|\.[0-9]{1,20})([eE][-+]?[0-9]{1,2})?[ \t\n\r\v\f]*$' then text::float8 end;

-- The highest cost of a job that a throttle accepts, by the recorded knobs: `max_cost`, else 10
-- windows of tokens or a full bucket, and at least 1000; of the throttle and those above it the
-- lowest counts. An unreadable value counts as absent, as in `Knobs::max_cost`.
create function flyball.max_cost(throttle text) returns float8
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set standard_conforming_strings = on as $$
declare
    f      jsonb;
    cost   float8;
    rate   float8;
    span   float8;
    burst  float8;
    name   text := max_cost.throttle;
    lowest float8;
begin
    -- A request for tokens is charged at four levels at most.
    for depth in 1..4 loop
        select b.fields into f from flyball.knobs b where b.throttle = name;
        exit when f is null and lowest is not null;
        cost := flyball.knob_number(f ->> 'max_cost');
        if cost between 0.001 and 1e9 then
            lowest := least(lowest, cost);
        else
            rate := flyball.knob_number(f ->> 'rps');
            span := flyball.knob_number(f ->> 'window');
            burst := flyball.knob_number(f ->> 'burst');
            if f ->> 'mode' = 'auto' and coalesce(rate, 0) >= 0 then
                rate := greatest(rate, coalesce(flyball.knob_number(f ->> 'max'), 1000));
            end if;
            lowest := least(lowest, case when rate < 0 then 1e9
                else least(greatest(greatest(10, case when burst <= 1e4 then burst end) * coalesce(span, 1) * coalesce(rate, 0), 1000), 1e9) end);
        end if;
        name := f ->> 'parent';
        exit when coalesce(name, '') = '';
    end loop;
    return lowest;
end $$;

-- The throttle that admits the messages of a tenant.
create function flyball.admission_throttle(tenant text) returns text
language sql immutable parallel safe
return 'notify:' || tenant;

-- Whether a throttle belongs to the admission of messages, so that no job goes into it.
create function flyball.is_of_admission(throttle text) returns boolean
language sql immutable parallel safe
return starts_with(throttle, 'notify:') or starts_with(throttle, 'notify-critical:') or starts_with(throttle, 'ws:')
    or starts_with(throttle, 'ws-connections:');

-- The throttles of pools take messages, and jobs of other kinds from operators alone. A job of the
-- kind http goes to a server of its producer's choice, and a refusal by that server pauses the lane
-- of the job. In the throttle of a pool that is the lane of a tenant's messages, and in the one of
-- its accounts an account.
create function flyball.is_of_pool(throttle text) returns boolean
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set standard_conforming_strings = on as $$
begin
    return exists (select from flyball.knobs b where b.throttle = is_of_pool.throttle || ':accounts')
        or right(is_of_pool.throttle, 9) = ':accounts'
            and exists (select from flyball.knobs b where b.throttle = left(is_of_pool.throttle, -9));
end $$;

-- Returns why a caller that is no operator may not enqueue jobs of a kind in a throttle, or null.
create function flyball.throttle_problem(kind text, throttle text) returns text
language sql stable
return case
    when throttle like 'limit:%'
        then format('%s limits the requests of an API, and only operators may enqueue in it; name one of your own', to_json(throttle))
    when throttle like 'api:%'
        then format('%s is a throttle of the HTTP API itself, in which only operators may enqueue; name one of your own', to_json(throttle))
    when flyball.throttle_tenant(throttle) <> flyball.caller_tenant()
        then format('%s belongs to another tenant; name one of your own, or one that no tenant owns', to_json(throttle))
    when throttle = 'flyball:alerts'
        then format('%s sends the alerts of Flyball itself, and only operators may enqueue in it; name one of your own', to_json(throttle))
    when (kind <> 'notification' or right(throttle, 9) = ':accounts') and flyball.is_of_pool(throttle)
        then format('%s belongs to a pool, in which only operators may enqueue jobs other than its messages; name one of your own',
            to_json(throttle))
    end;

-- The key of a job in its throttle: a message of a tenant that names none has that of its tenant,
-- so that many messages of one tenant delay those of no other.
create function flyball.message_key(kind text, key text, tenant text) returns text
language sql immutable parallel safe
return case when kind = 'notification' and key = '' then tenant else key end;

-- === Validation ==================================================================================

-- Version, trace id, parent id and flags in the format of W3C Trace Context; a trace id or a parent
-- id of zeros is invalid.
create function flyball.is_traceparent(text text) returns boolean
language sql immutable parallel safe
return text ~ '^(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}$';

-- Seconds as an interval; an impossible number becomes a value outside of every argument's range.
create function flyball.span(seconds float8) returns interval
language sql immutable parallel safe
return case when seconds is null then null when abs(seconds) <= 1e9 then make_interval(secs => seconds)
            else interval '1000000000 seconds' end;

-- The seconds of a duration that JSON gives as a number or as the text of an interval. For any
-- other JSON type, the name of the type is read as an interval, which fails: otherwise `[1]` would
-- be accepted.
create function flyball.seconds_of(span jsonb) returns float8
language sql stable parallel safe
return case jsonb_typeof(span) when 'null' then null when 'number' then span::float8
            when 'string' then extract(epoch from (span #>> '{}')::interval)::float8
            else extract(epoch from jsonb_typeof(span)::interval)::float8 end;

-- Returns what is wrong with a job and its error code, or nothing. The same rules for SQL, HTTP and
-- CLI.
create function flyball.check_job(
    kind text, args jsonb, throttle text, key text, priority int, max_attempts int,
    unique_key text, unique_for interval, cost float8, run_at timestamptz,
    traceparent text default null, timeout interval default null, debounce interval default null,
    debounce_max interval default null, replace boolean default false,
    owner text default null, trusted boolean default flyball.is_operator(),
    out field text, out message text, out code text)
language plpgsql stable as $$
#variable_conflict use_variable
declare
    known_kinds text;
    cost_max    float8;
begin
    code := '22023';
    field := 'kind';
    if kind is null or kind = '' then
        message := 'must name what runs the job, for instance ''http''';
        return;
    elsif octet_length(kind) > 128 then
        message := format('is %s bytes long; at most 128 are allowed', octet_length(kind));
        return;
    elsif not exists (select 1 from flyball.kind k where k.name = kind) then
        select string_agg(k.name, ', ' order by k.name) into known_kinds from flyball.kind k;
        message := format('%s is not a kind that any worker has registered; known kinds: %s', to_json(kind), known_kinds);
        return;
    elsif not trusted and not flyball.may_enqueue(kind) then
        code := '42501';
        message := format('%s is not public, and role %s may not enqueue it; it may enqueue: %s', to_json(kind),
            to_json(flyball.caller()), flyball.enqueueable());
        return;
    end if;

    field := 'args';
    if args is null then
        message := 'must not be null; leave it out for {}';
        return;
    elsif octet_length(args::text) > 262144 then
        message := format('is %s bytes long; at most 262144 (256 KiB) are allowed: store the data elsewhere and pass its address',
            octet_length(args::text));
        return;
    end if;

    field := 'throttle';
    if throttle is null or throttle !~ '^[A-Za-z0-9._/:{}-]+$' or octet_length(throttle) > 128 then
        message := format('%s is not a throttle''s name; use 1 to 128 letters, digits or any of . _ - / : { }',
            coalesce(to_json(left(throttle, 64))::text, 'null'));
        return;
    elsif flyball.is_of_admission(throttle) then
        message := format('%s admits the messages of a tenant and takes no jobs; name the pool that sends the message', to_json(throttle));
        return;
    elsif not trusted then
        message := flyball.throttle_problem(kind, throttle);
        if message is not null then
            code := '42501';
            return;
        end if;
    end if;

    field := 'key';
    if key is null or octet_length(key) > 512 then
        message := case when key is null then 'must not be null; leave it out for none'
                        else format('is %s bytes long; at most 512 are allowed', octet_length(key)) end;
        return;
    elsif not trusted and throttle = 'webhooks' and key not in ('', flyball.caller_tenant()) then
        code := '42501';
        message := 'names the calls of others in throttle "webhooks"; leave it out, or name a throttle of your own';
        return;
    end if;

    field := 'priority';
    if priority is null or priority not between 0 and 3 then
        message := format('is %s; allowed are 0 (runs first), 1, 2 and 3 (runs last)', coalesce(priority::text, 'null'));
        return;
    elsif kind = 'notification' and priority = 0 and not trusted
        and flyball.tenant_of(coalesce(owner, flyball.unique_owner())) <> '' and not flyball.may_send_critical()
    then
        code := '42501';
        message := format('is 0 (critical), and role %s may not send critical messages; an operator permits it in flyball.producer',
            to_json(flyball.caller()));
        return;
    end if;

    field := 'max_attempts';
    if max_attempts is null or max_attempts not between 1 and 1000 then
        message := format('is %s; allowed are 1 to 1000', coalesce(max_attempts::text, 'null'));
        return;
    end if;

    field := 'unique_key';
    if unique_key = '' or octet_length(unique_key) > 512 then
        message := format('is %s bytes long; allowed are 1 to 512, or null for none', octet_length(unique_key));
        return;
    elsif unique_key like 'cron:%' and owner is distinct from 'cron' then
        message := 'begins with "cron:", which is kept for the jobs of schedules; begin it with anything else';
        return;
    end if;

    field := 'unique_for';
    if unique_for is not null and unique_key is null then
        message := 'needs a unique_key';
        return;
    elsif unique_for <= interval '0' or unique_for > interval '366 days' then
        message := format('is %s; allowed is more than 0 and at most 366 days', unique_for);
        return;
    end if;

    field := 'cost';
    if cost is null or cost = 'NaN'::float8 or cost <= 0 or cost > 1e9 then
        message := format('is %s; allowed is more than 0 and at most 1e9 tokens', coalesce(cost::text, 'null'));
        return;
    elsif not trusted and kind = 'notification' and cost > 10 then
        code := '42501';
        message := format('is %s; a message costs at most 10 tokens, unless an operator enqueues it', cost);
        return;
    end if;
    cost_max := flyball.max_cost(throttle);
    if cost > cost_max then
        message := format('is %s; throttle %s takes jobs of at most %s tokens (its knob max_cost, or a parent''s)', cost, throttle, cost_max);
        return;
    end if;

    field := 'run_at';
    if run_at < timestamptz '1970-01-01 00:00:00Z' or run_at > now() + interval '3660 days' then
        message := format('is %s; allowed are times from 1970 (at once) to ten years from now', run_at);
        return;
    end if;

    field := 'traceparent';
    if not flyball.is_traceparent(traceparent) then
        message := format('%s is not a W3C trace parent; write it like 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01, or null for none',
            to_json(left(traceparent, 64)));
        return;
    end if;

    field := 'timeout';
    if timeout < interval '1 microsecond' or timeout > interval '366 days' then
        message := format('is %s; allowed is at least a microsecond (0.000001 s) and at most 366 days, or null for the kind''s own', timeout);
        return;
    end if;

    field := 'debounce';
    if debounce is not null then
        if unique_key is null then
            message := 'needs a unique_key';
        elsif unique_for is not null then
            message := 'cannot be used together with unique_for: the key is free when the job has ended';
        elsif run_at is not null then
            message := 'cannot be used together with run_at: it names the time itself';
        elsif debounce <= interval '0' or debounce > interval '366 days' then
            message := format('is %s; allowed is more than 0 and at most 366 days', debounce);
        end if;
        if message is not null then
            return;
        end if;
    end if;

    field := 'debounce_max';
    if debounce_max is not null and debounce is null then
        message := 'needs a debounce';
        return;
    elsif debounce_max < debounce or debounce_max > interval '3660 days' then
        message := format('is %s; allowed is at least the debounce of %s and at most 3660 days', debounce_max, debounce);
        return;
    end if;

    field := 'replace';
    if replace is null then
        message := 'must be true or false, not null';
        return;
    elsif replace and unique_key is null then
        message := 'needs a unique_key';
        return;
    elsif replace and unique_for is not null then
        message := 'cannot be used together with unique_for: the key is free when the job has ended';
        return;
    end if;

    field := null;
end $$;

-- === Options =====================================================================================

-- The waits among the options of a job, with what is not given; null for none.
create function flyball.retry_of(options jsonb) returns jsonb
language sql immutable parallel safe
return case when jsonb_typeof(options -> 'retry') = 'object' then (
    select jsonb_build_object('delay_s', trim_scale(r.delay_s), 'factor', coalesce(trim_scale(r.factor), 2),
        'max_delay_s', trim_scale(coalesce(r.max_delay_s, greatest(r.delay_s, 3600))))
    from jsonb_to_record(options -> 'retry') as r(delay_s numeric, factor numeric, max_delay_s numeric)
) end;

-- Returns all that is wrong with the waits of a job, or null.
create function flyball.retry_problem(retry jsonb) returns text
language sql immutable parallel safe
return case
    when retry is null or jsonb_typeof(retry) = 'null' then null
    when jsonb_typeof(retry) <> 'object'
        then format('must be an object such as {"delay_s": 5, "factor": 2, "max_delay_s": 600}, not %s', jsonb_typeof(retry))
    else (
        select string_agg(p.problem, '; ' order by p.n)
        from (
            select 0 as n, 'needs a delay_s: the longest wait after the first failure, 0.001 to 31622400 seconds (366 days)' as problem
            where coalesce(jsonb_typeof(retry -> 'delay_s'), 'null') = 'null'
            union all
            select b.n, format('%s is %s; allowed are %s', f.name,
                left(case when jsonb_typeof(f.value) = 'number' then trim_scale(f.value::numeric)::text else f.value::text end, 40),
                b.allowed)
            from jsonb_each(retry) as f(name, value)
            join (values (1, 'delay_s', 0.001, 31622400, '0.001 to 31622400 seconds (366 days)'),
                (2, 'factor', 1, 100, '1 (always the same) to 100'),
                (3, 'max_delay_s', 0.001, 31622400, '0.001 to 31622400 seconds (366 days)')) as b(n, name, low, high, allowed)
                on b.name = f.name
            where jsonb_typeof(f.value) <> 'null'
                and case when jsonb_typeof(f.value) = 'number' then f.value::numeric not between b.low and b.high else true end
            union all
            select 4, format('has %s; allowed are delay_s, factor, max_delay_s', to_json(left(f.name, 64)))
            from jsonb_object_keys(retry) as f(name) where f.name not in ('delay_s', 'factor', 'max_delay_s')
        ) p
    ) end;

-- The jobs after which a job runs, among its options; null for none.
create function flyball.after_of(options jsonb) returns bigint[]
language sql immutable parallel safe
return case when jsonb_typeof(options -> 'after') = 'array' then (
    select array_agg(distinct e.id::numeric::bigint) from jsonb_array_elements_text(options -> 'after') as e(id)) end;

-- Returns what is wrong with the jobs after which one runs, or null, if there is no `absent` one of
-- the caller's own. A job of others is like none.
create function flyball.after_problem(absent bigint, replaces boolean) returns text
language sql immutable parallel safe
return case
    when replaces then 'cannot be used together with replace or debounce: the job may take the place of one that waits for no other'
    when absent is not null then format('%s is not the number of a job of yours whose history is kept', absent) end;

-- Returns what is wrong with the webhooks of a job besides their form, and its error code, or
-- nothing. A call is a job of the kind `http`, so nobody gets one who may not enqueue those.
create function flyball.check_webhooks(options jsonb, replaces boolean, trusted boolean, out field text, out message text, out code text)
language plpgsql stable as $$
begin
    if not options ?| array['on_complete', 'on_dead'] then
        return;
    end if;
    field := case when options ? 'on_complete' then 'on_complete' else 'on_dead' end;
    if replaces then
        code := '22023';
        message := 'cannot be used together with replace or debounce: the job may take the place of one without webhooks';
    elsif not trusted and not flyball.may_enqueue('http') then
        code := '42501';
        message := format('is called by a job of the kind http, which role %s may not enqueue; it may enqueue: %s',
            to_json(flyball.caller()), flyball.enqueueable());
    else
        field := null;
    end if;
end $$;

-- The fields of a job that have no column of their own in enqueue_rows; null for none.
create function flyball.options_of(job jsonb) returns jsonb
language sql immutable parallel safe
return nullif(jsonb_strip_nulls(jsonb_build_object('tags', job -> 'tags',
    'after', job -> 'after',
    'after_failure', job -> 'after_failure',
    'on_complete', job -> 'on_complete',
    'on_dead', job -> 'on_dead',
    'webhook_secret', job -> 'webhook_secret',
    'retry', job -> 'retry')), '{}');

-- Returns what is wrong with the options of a job, or nothing.
create function flyball.check_options(options jsonb, out field text, out message text)
language plpgsql immutable set standard_conforming_strings = on as $$
#variable_conflict use_variable
declare
    tag  jsonb;
    ids  int;
begin
    if options is null or options in ('{}', 'null') then
        return;
    elsif jsonb_typeof(options) <> 'object' then
        field := 'options';
        message := format('must be an object, not %s', jsonb_typeof(options));
        return;
    end if;
    select format('%s is not an option of a job; allowed are tags, after, after_failure, on_complete, on_dead, webhook_secret, retry',
        to_json(left(o.name, 64))), 'options' into message, field
    from jsonb_object_keys(options) as o(name)
    where o.name not in ('tags', 'after', 'after_failure', 'on_complete', 'on_dead', 'webhook_secret', 'retry')
    limit 1;
    if found then
        return;
    end if;

    field := 'tags';
    if jsonb_typeof(options -> 'tags') not in ('array', 'null') then
        message := format('must be a list of texts, not %s', jsonb_typeof(options -> 'tags'));
        return;
    elsif jsonb_typeof(options -> 'tags') = 'array' then
        if jsonb_array_length(options -> 'tags') > 16 then
            message := format('has %s elements; at most 16 are allowed', jsonb_array_length(options -> 'tags'));
            return;
        end if;
        for tag in select t.value from jsonb_array_elements(options -> 'tags') t loop
            message := case
                when jsonb_typeof(tag) <> 'string'
                    then format('has an element that is a %s; allowed are texts of 1 to 64 bytes', jsonb_typeof(tag))
                when octet_length(tag #>> '{}') not between 1 and 64
                    then format('has an element of %s bytes; allowed are texts of 1 to 64 bytes', octet_length(tag #>> '{}'))
                when tag #>> '{}' ~ '[\u0001-\u001f\u007f-\u009f]'
                    then format('%s has a control character, which no tag may have', tag) end;
            if message is not null then
                return;
            end if;
        end loop;
    end if;

    field := 'after';
    if jsonb_typeof(options -> 'after') not in ('array', 'null') then
        message := format('must be a list of job numbers, not %s', jsonb_typeof(options -> 'after'));
        return;
    elsif jsonb_typeof(options -> 'after') = 'array' then
        ids := jsonb_array_length(options -> 'after');
        message := case when ids > 100 then format('has %s elements; at most 100 are allowed', ids) else (
            select format('has the element %s; allowed are the numbers of jobs', left(e.value::text, 40))
            from jsonb_array_elements(options -> 'after') e
            where case when jsonb_typeof(e.value) = 'number' then e.value::numeric <> trunc(e.value::numeric)
                or e.value::numeric not between 1 and 9007199254740991 else true end
            limit 1
        ) end;
        if message is not null then
            return;
        end if;
    end if;

    field := 'after_failure';
    if jsonb_typeof(options -> 'after_failure') <> 'null' then
        message := case
            when options -> 'after_failure' not in ('"cancel"', '"run"')
                then format('is %s; allowed are "cancel" and "run"', left((options -> 'after_failure')::text, 40))
            when coalesce(ids, 0) = 0 then 'needs an after' end;
        if message is not null then
            return;
        end if;
    end if;

    foreach field in array array['on_complete', 'on_dead'] loop
        message := case
            when jsonb_typeof(options -> field) = 'null' or not options ? field then null
            when jsonb_typeof(options -> field) <> 'string' then format('must be a URL, not %s', jsonb_typeof(options -> field))
            when octet_length(options ->> field) > 2048
                then format('is %s bytes long; at most 2048 are allowed', octet_length(options ->> field))
            when options ->> field !~* '^https?://[!-"$-.0->A-[\]-~]+([/?#][!-~]*)?$'
                then 'must be a URL in ASCII that begins with https:// or http://, has a host, and has no blanks and no name or password' end;
        if message is not null then
            return;
        end if;
    end loop;

    field := 'webhook_secret';
    if options ? field and jsonb_typeof(options -> field) <> 'null' then
        message := case
            -- The secret itself may be here by mistake, so it is not shown.
            when jsonb_typeof(options -> field) <> 'string' or options ->> field !~ '^[A-Za-z0-9_]{1,64}$'
                or options ->> field like 'whsec\_%'
                then 'must be the name of a secret, 1 to 64 letters, digits or underscores: the secret itself is in the variable FLYBALL_WEBHOOK_SECRET_<NAME> of the workers'
            when coalesce(options ->> 'on_complete', options ->> 'on_dead') is null then 'needs an on_complete or an on_dead' end;
        if message is not null then
            return;
        end if;
    end if;

    field := 'retry';
    message := flyball.retry_problem(options -> 'retry');
    if message is not null then
        return;
    end if;

    field := null;
end $$;

-- The tags among the options of a job, each once and in order; null for none.
create function flyball.tags_of(options jsonb) returns text[]
language sql immutable parallel safe
return case when jsonb_typeof(options -> 'tags') = 'array' then (
    select array_agg(t.tag order by t.n)
    from (
        select e.tag, min(e.n) as n from jsonb_array_elements_text(options -> 'tags') with ordinality as e(tag, n) group by e.tag
    ) t
) end;

-- === Reads of an enqueue =========================================================================

-- Checks a lane's limit for `adding` more jobs: null if there is no limit or enough room, else the
-- depth and the limit. Counting stops one above the limit and at 5,000: a higher limit is compared
-- with the depth recorded when the lane was last walked, which is cheap and some seconds old. A
-- recorded depth that is older than ten minutes refuses nothing. A bitmap scan would read the whole
-- lane before counting. An unreadable knob sets no limit. A lane of a shared throttle may hold jobs
-- of other tenants, so a role with a tenant learns that it is full, and not how full.
create function flyball.check_backlog(entry_point text, throttle text, key text, lane bigint, adding bigint, out backlog jsonb)
language plpgsql volatile set enable_seqscan = off set enable_bitmapscan = off set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on set jit = off as $$
#variable_conflict use_variable
declare
    count_max     constant bigint := 5000;
    cap           bigint;
    depth         bigint;
    ready_count   bigint;
    overflow_mode text;
    context       text;
    own_tenant    text;
    hides         boolean;
begin
    select case when k.size between 1 and 1e9 and k.size = floor(k.size) then k.size::bigint end, k.overflow_mode
    into cap, overflow_mode
    from (
        select flyball.knob_number(b.fields ->> 'max_backlog') as size, b.fields ->> 'on_backlog' as overflow_mode
        from flyball.knobs b
        where b.throttle = throttle
    ) k;
    if cap is null then
        return;
    end if;
    if cap > count_max then
        select l.depth into depth
        from flyball.lane l
        cross join flyball.sweep s
        where l.lane_id = lane and s.one and greatest(l.depth_at, s.lanes_at) > now() - interval '10 minutes';
        if coalesce(depth, 0) + adding <= cap then
            return;
        end if;
    end if;
    select count(*) into ready_count from (select from flyball.ready r where r.lane_id = lane limit least(cap, count_max) + 1) as page;
    depth := case when ready_count > count_max then greatest(ready_count, depth) else ready_count end;
    if depth + adding <= cap then
        return;
    end if;
    own_tenant := flyball.bound_tenant();
    hides := own_tenant is not null and flyball.throttle_tenant(throttle) is distinct from own_tenant;
    if overflow_mode = 'reject' then
        get diagnostics context = pg_context;
        raise exception using
            errcode = '53400',
            message = format('%s: throttle %s, key %s: %s; its knob max_backlog allows %s',
                flyball.called_function(context, entry_point), to_json(throttle), to_json(key),
                case when hides then 'this lane has no room'
                    when depth = 1 then '1 job of this lane is ready'
                    else format('%s jobs of this lane are ready', depth) end
                    || case when adding > 1 then format(' and %s more were sent', adding) else '' end, cap),
            hint = 'Nothing was enqueued. Try again when some have run, or raise the knob max_backlog.',
            constraint = 'max_backlog', schema = throttle, column = key,
            datatype = format('%s/%s', case when hides then cap else depth end, cap);
    end if;
    backlog := jsonb_build_object('depth', case when hides then cap + 1 else depth + adding end, 'max', cap);
end $$;

-- The priority of a job whose arguments state the urgency of a message.
create function flyball.notification_priority(args jsonb) returns int
language sql immutable parallel safe
return case args ->> 'priority' when 'critical' then 0 when 'high' then 1 when 'low' then 3 else 2 end;

-- Whether a message has a field that the gates of recipients look at. Such a message is not ready
-- when it is enqueued: it stands in `scheduled` with a turn from -4 to -1, by its priority, where
-- no promotion sees it, until a planner has taken it through the gates.
create function flyball.needs_plan(kind text, args jsonb) returns boolean
language sql immutable parallel safe
return kind = 'notification'
    and (args ?| array['recipient', 'category', 'template_id', 'actor', 'digest', 'at_most', 'dedup_key', 'local_time']
        or args ->> 'channel' = 'inapp');

-- Whether a text is a time of the recipient's clock, as `LocalTime::parse` reads it.
create function flyball.is_local_time(value text) returns boolean
language sql immutable strict parallel safe
return case
    when value ~ '^(2[0-9]{3}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])T)?([01][0-9]|2[0-3]):[0-5][0-9]$'
    then length(value) = 5
        or substr(value, 9, 2)::int
            <= extract(day from make_date(substr(value, 1, 4)::int, substr(value, 6, 2)::int, 1) + interval '1 month - 1 day')
    else false end;

-- === A waiting job is rewritten ==================================================================

-- A job is written once, except while it waits: a job with `replace` or `debounce` takes the place
-- of the waiting one, and people change fields of one. Both take its row out of the queue, rewrite
-- the job, and put a new row in. The transaction that takes the row has the job, and only snapshots
-- that see the new row also see the job as it is now, so no claim runs a mix of the two.

-- Takes a waiting job out of its queue and returns its place; nulls if it does not wait. `run_at`
-- is null for one that was ready.
create function flyball.take_waiting(job_id bigint) returns flyball.scheduled
language plpgsql volatile as $$
#variable_conflict use_variable
declare
    taken flyball.scheduled;
begin
    -- Promotion moves a job from here to `ready`, so this is the order of the search. The
    -- transaction that deletes the row has the job: a claim skips it or was faster.
    delete from flyball.scheduled s where s.job_id = job_id returning s.* into taken;
    if not found then
        delete from flyball.ready r
        where r.lane_id in ((select j.lane_id from flyball.job j where j.id = job_id),
                (select j.admission_lane from flyball.job j where j.id = job_id))
            and r.priority = (select j.priority from flyball.job j where j.id = job_id) and r.job_id = job_id
        returning r.job_id, r.lane_id, r.cost, r.priority, r.attempt, r.holds_unique, 0, false
        into taken.job_id, taken.lane_id, taken.cost, taken.priority, taken.attempt, taken.holds_unique, taken.turn, taken.retry;
    end if;
    return taken;
end $$;

-- Writes all that can change in a job that was taken out of its queue. With new arguments the
-- cursor of the old ones is forgotten.
create function flyball.rewrite_job(job flyball.job, has_new_args boolean) returns void
language plpgsql volatile as $$
#variable_conflict use_variable
begin
    update flyball.job as j
    set lane_id = job.lane_id, priority = job.priority, max_attempts = job.max_attempts, cost = job.cost, run_at = job.run_at,
        throttle = job.throttle, key = job.key, args = job.args, traceparent = job.traceparent, timeout_s = job.timeout_s,
        module = job.module, admission_lane = job.admission_lane, tags = job.tags, after = job.after,
        after_failure = job.after_failure, on_complete = job.on_complete, on_dead = job.on_dead, webhook_secret = job.webhook_secret,
        retry = job.retry, unique_until = job.unique_until
    where j.id = job.id;
    if has_new_args then
        delete from flyball.checkpoint c where c.job_id = job.id;
    end if;
end $$;

-- === One job, all rules ==========================================================================

-- Enqueues one job with validated arguments by all rules; the entry points call it for anything
-- beyond a plain insert. Only the places of many messages in the queue of their tenant are taken
-- together, behind all their unique keys. If the throttle's knob `over_limit` is merge, a job with
-- a unique key replaces the waiting one, as with `replace`, and the history of that one records it.
-- The recorded knobs are at most a second or so old; an unreadable knob counts as wait.
create function flyball.admit(
    entry_point text,
    kind text, args jsonb, throttle text, key text, priority int, run_at timestamptz, max_attempts int,
    unique_key text, unique_for interval, cost float8, traceparent text, timeout interval,
    debounce interval, debounce_max interval, replace boolean, owner text, module text default '', admitted boolean default false,
    group_id bigint default null, options jsonb default null,
    out job_id bigint, out duplicate boolean, out replaced boolean, out backlog jsonb)
language plpgsql volatile as $$
#variable_conflict use_variable
declare
    holder       record;
    holder_state record;
    taken        flyball.scheduled;
    job          flyball.job;
    owner_tenant constant text := flyball.tenant_of(owner);
    lane_key     constant text := flyball.message_key(kind, key, owner_tenant);
    lane         bigint := flyball.lane_of(throttle, lane_key);
    -- The lane in which a message of a tenant waits, unless the entry point took its slot.
    waiting_lane bigint := case when kind = 'notification' and owner_tenant <> '' and not admitted
        then flyball.lane_of(flyball.admission_throttle(owner_tenant), module) end;
    target_lane  bigint := coalesce(waiting_lane, lane);
    due_at       timestamptz := coalesce(now() + debounce, run_at);
    digest       bytea;
    until        timestamptz := now() + unique_for;
    burst_start  timestamptz := case when debounce is not null then now() end;
    -- A member does not take the place of a job that its group does not count, and one that waits
    -- for others or has webhooks not that of a job without.
    merges       constant boolean := unique_key is not null and unique_for is null and debounce is null and not replace and group_id is null
        and not coalesce(options ?| array['on_complete', 'on_dead'] or options -> 'after' <> '[]', false)
        and exists (select from flyball.knobs b where b.throttle = throttle and b.fields ->> 'over_limit' = 'merge');
    replaces     constant boolean := replace or merges or debounce is not null;
    awaited      constant bigint[] := case when options ? 'after' then flyball.awaited(options) end;
begin
    key := lane_key;
    job_id := flyball.next_id() | (group_id is not null or coalesce(options ?| array['on_complete', 'on_dead'], false))::int;
    duplicate := false;
    replaced := false;

    if unique_key is not null then
        digest := flyball.unique_digest(owner, kind, unique_key);
        -- Each round takes the key, or takes the waiting job out of its queue, or has seen another
        -- transaction do so.
        for round in 1..1000 loop
            if round = 1000 then
                raise exception using errcode = '40001', message = format('%s: the job that holds the unique_key kept moving', entry_point),
                    hint = 'Nothing was enqueued. Try again.';
            end if;
            -- A second producer of the same new key waits here until the first commits or rolls
            -- back.
            insert into flyball.unique_holder as u (digest, job_id, expires_at, since) values (digest, job_id, until, burst_start)
            on conflict do nothing;
            exit when found;

            if replaces then
                -- Producers that replace run one after another, so that the key cannot pass to
                -- another job during the search for this one.
                select u.job_id, u.expires_at, u.since into holder from flyball.unique_holder u where u.digest = digest for update;
                continue when not found;
                taken := flyball.take_waiting(holder.job_id);
                replaced := taken.job_id is not null;
                exit when replaced;
            else
                select u.job_id, u.expires_at, u.since into holder from flyball.unique_holder u where u.digest = digest;
                continue when not found;
            end if;

            -- One statement and so one snapshot, in which a job is in one table only.
            select exists (select from flyball.scheduled s where s.job_id = holder.job_id)
                    or exists (
                        select from flyball.ready r
                        where r.lane_id in ((select j.lane_id from flyball.job j where j.id = holder.job_id),
                                (select j.admission_lane from flyball.job j where j.id = holder.job_id))
                            and r.priority = (select j.priority from flyball.job j where j.id = holder.job_id) and r.job_id = holder.job_id
                    ) as is_waiting,
                exists (select from flyball.lease l where l.job_id = holder.job_id) as is_running
            into holder_state;
            continue when replaces and holder_state.is_waiting;
            if not replaces and (holder.expires_at > now()
                or holder.expires_at is null and (holder_state.is_waiting or holder_state.is_running))
            then
                job_id := holder.job_id;
                duplicate := true;
                return;
            end if;

            -- The key passes to the new job: it has expired, or the job that held it is running or
            -- has ended.
            update flyball.unique_holder as u set job_id = job_id, expires_at = until, since = burst_start
            where u.digest = digest and u.job_id = holder.job_id and u.expires_at is not distinct from holder.expires_at;
            exit when found;
        end loop;
    end if;

    if replaced then
        -- The waiting job keeps its place and its id and gets the new arguments. Workers read it
        -- only after they claim the row that is inserted below, so none can run it with the old
        -- arguments.
        job_id := holder.job_id;
        duplicate := true;
        -- The burst of the waiting job continues. A job that was not delayed is not a burst, and
        -- one that was tried and failed is over: then a new burst begins, with all attempts.
        if debounce is not null and taken.attempt = 0 then
            burst_start := coalesce(holder.since, burst_start);
        end if;
        due_at := least(due_at, burst_start + coalesce(debounce_max, debounce * 10));
        -- A job that replaces holds its key until it has ended. One that was taken for a time stays
        -- taken for it, but would be free too early if that time is over before the job can run.
        until := case when holder.expires_at > greatest(due_at, now()) then holder.expires_at end;
        update flyball.unique_holder as u set since = burst_start, expires_at = until
        where u.digest = digest and (u.since is distinct from burst_start or u.expires_at is distinct from until);
        select o.* into job from flyball.job o where o.id = job_id;
        if flyball.needs_plan(job.kind, job.args) then
            perform flyball.give_back_replaced(job);
        end if;
        -- The entry point gives back the slot of a duplicate, so the new message waits where the
        -- old one did.
        if admitted and kind = 'notification' and owner_tenant <> '' and taken.lane_id = job.admission_lane then
            waiting_lane := flyball.lane_of(flyball.admission_throttle(owner_tenant), module);
            target_lane := waiting_lane;
        end if;
        if job.lane_id <> lane and awaited is null and (due_at is null or due_at <= now()) then
            backlog := flyball.check_backlog(entry_point, throttle, key, lane, 1);
        end if;
        job.unique_until := until;
        job.lane_id := lane;
        job.priority := priority;
        job.max_attempts := max_attempts;
        job.cost := cost;
        job.run_at := due_at;
        job.throttle := throttle;
        job.key := key;
        job.args := args;
        job.traceparent := traceparent;
        job.timeout_s := extract(epoch from timeout);
        job.module := module;
        job.admission_lane := waiting_lane;
        job.tags := flyball.tags_of(options);
        job.after := null;
        job.after_failure := null;
        job.on_complete := null;
        job.on_dead := null;
        job.webhook_secret := null;
        job.retry := flyball.retry_of(options);
        perform flyball.rewrite_job(job, true);
        -- A request to cancel was for the job that is gone.
        delete from flyball.cancel c where c.job_id = job_id;
        if merges then
            insert into flyball.attempt (job_id, attempt, outcome) values (job_id, 0, 'merged');
        end if;
    else
        if to_regclass('flyball.job_' || (job_id >> 38)) is null then
            perform flyball.ensure_day(job_id >> 38);
        end if;
        if awaited is null and (due_at is null or due_at <= now()) then
            backlog := flyball.check_backlog(entry_point, throttle, key, lane, 1);
        end if;
        if kind = 'notification' and owner_tenant <> '' and entry_point <> 'enqueue_many' then
            perform flyball.record_pending(entry_point, owner_tenant, array[job_id], priority = 0);
        end if;
        insert into flyball.job
            (id, lane_id, priority, max_attempts, cost, run_at, kind, throttle, key, tenant, unique_key, unique_until, args,
             traceparent, timeout_s, module, admission_lane, group_id, tags,
             after, after_failure, on_complete, on_dead, webhook_secret, retry)
        values (job_id, lane, priority, max_attempts, cost, due_at, kind, throttle, key, owner_tenant, digest, until, args,
            traceparent, extract(epoch from timeout), module, waiting_lane, group_id,
            -- A first call costs as much as the insert of a row, whatever it is given.
            case when options is not null then flyball.tags_of(options) end,
            case when options is not null then flyball.after_of(options) end, options ->> 'after_failure',
            options ->> 'on_complete', options ->> 'on_dead', options ->> 'webhook_secret',
            case when options is not null then flyball.retry_of(options) end);
        if group_id is not null then
            perform flyball.add_members(group_id, array[job_id]);
        end if;
        if options ?| array['on_complete', 'on_dead'] then
            insert into flyball.webhook_job (job_id) values (job_id);
        end if;
    end if;

    if awaited is not null then
        insert into flyball.scheduled (job_id, run_at, lane_id, priority, cost, retry, holds_unique, turn)
        values (job_id, coalesce(due_at, now()), target_lane, priority, cost, false, unique_key is not null and unique_for is null,
            priority - 8);
        perform flyball.add_waits(job_id, awaited, options);
    elsif flyball.needs_plan(kind, args) then
        insert into flyball.scheduled (job_id, run_at, lane_id, priority, cost, retry, holds_unique, turn)
        values (job_id, greatest(due_at, now()), target_lane, priority, cost, false, unique_key is not null and unique_for is null,
            priority - 4);
        if due_at is null or due_at <= now() then
            perform pg_notify('flyball_plan', '');
        end if;
    elsif due_at is null or due_at <= now() then
        insert into flyball.ready (lane_id, priority, job_id, cost, holds_unique)
        values (target_lane, priority, job_id, cost, unique_key is not null and unique_for is null);
        -- Producers notify only while a dispatcher sleeps: an active one sees new jobs by their
        -- ids. A job with an old id that just came to this lane would be found late.
        if replaced and (taken.run_at is not null or taken.lane_id <> target_lane)
            or coalesce((select d.asleep from flyball.wakeup d), true)
        then
            perform pg_notify('flyball', target_lane::text);
        end if;
    else
        insert into flyball.scheduled (job_id, run_at, lane_id, priority, cost, retry, holds_unique)
        values (job_id, due_at, target_lane, priority, cost, false, unique_key is not null and unique_for is null);
    end if;
end $$;

-- === Entry points ================================================================================

-- Enqueues one job in the caller's own transaction. It runs with the rights of the schema's owner,
-- so a role needs only `grant usage on schema flyball`: it can enqueue, and neither read nor change
-- what others have enqueued. The fast path is for jobs that every role may enqueue; all others are
-- checked in full. A message of the default priority gets the priority in its arguments. A priority
-- or a number of attempts of any size is refused by its name, and throttles that limit the requests
-- of an API are refused as those of the HTTP API are.
create function flyball.enqueue(
    kind text,
    args jsonb default '{}',
    throttle text default 'default',
    key text default '',
    priority int default 1,
    run_at timestamptz default null,
    max_attempts int default 10,
    unique_key text default null,
    unique_for interval default null,
    cost float8 default 1,
    traceparent text default null,
    timeout interval default null,
    debounce interval default null,
    debounce_max interval default null,
    replace boolean default false,
    "group" bigint default null,
    tags text[] default null,
    after bigint[] default null,
    after_failure text default null,
    on_complete text default null,
    on_dead text default null,
    webhook_secret text default null,
    retry jsonb default null,
    out job_id bigint,
    out duplicate boolean,
    out replaced boolean,
    out backlog jsonb)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set standard_conforming_strings = on as $$
#variable_conflict use_variable
declare
    issue       record;
    must_notify boolean;
    options     jsonb;
begin
    if kind = 'notification' and priority = 1 then
        priority := flyball.notification_priority(args);
    end if;

    if run_at is null and unique_key is null and unique_for is null and debounce is null and debounce_max is null and not replace
        and "group" is null and tags is null and after is null and after_failure is null
        and on_complete is null and on_dead is null and webhook_secret is null and retry is null
        -- A number that does not fit into its column would fail before the condition below refuses
        -- it.
        and priority between 0 and 3 and max_attempts between 1 and 1000
    then
        -- The whole of a plain job. It inserts nothing if `check_job` might refuse, if today's
        -- partition is missing, or if the throttle limits its backlog or its costs. The length of
        -- the arguments' text is measured: their size as jsonb says little, because 1e100000 takes
        -- as much as 1.5, and a value from a table may be compressed.
        with inserted as (
            insert into flyball.job
                (id, lane_id, priority, max_attempts, cost, kind, throttle, key, tenant, args, traceparent, timeout_s)
            select flyball.next_id(), flyball.lane_of(throttle, key), priority, max_attempts, cost, kind, throttle, key,
                flyball.caller_tenant(), args, traceparent, extract(epoch from timeout)
            from flyball.kind k
            where k.name = kind and case when k.public then true else flyball.may_enqueue(kind) end
                and octet_length(args::text) <= 262144
                and throttle ~ '^[A-Za-z0-9._/:{}-]+$' and octet_length(throttle) <= 128 and left(throttle, 4) <> 'api:'
                and left(throttle, 6) <> 'limit:'
                and left(throttle, 7) <> 'tenant:' and (kind <> 'notification' or flyball.caller_tenant() = ''
                    and not flyball.needs_plan(kind, args))
                and not flyball.is_of_admission(throttle)
                and right(throttle, 9) <> ':accounts' and throttle <> 'flyball:alerts' and (throttle <> 'webhooks' or key = '')
                and (kind = 'notification' or not exists (select from flyball.knobs b where b.throttle = throttle || ':accounts'))
                and octet_length(key) <= 512
                and cost > 0 and cost <= 1
                and (traceparent is null or flyball.is_traceparent(traceparent))
                and (timeout is null or timeout >= interval '1 microsecond' and timeout <= interval '366 days')
                and to_regclass('flyball.job_' || flyball.day_of(now())) is not null
                and not exists (select from flyball.knobs b where b.throttle = throttle and b.fields ?| array['max_backlog', 'max_cost'])
            returning id, lane_id
        )
        insert into flyball.ready as r (lane_id, priority, job_id, cost, holds_unique)
        select inserted.lane_id, priority, inserted.id, cost, false from inserted
        returning r.job_id, false, false, (select d.asleep from flyball.wakeup d) is distinct from false
        into job_id, duplicate, replaced, must_notify;
        if must_notify then
            perform pg_notify('flyball', flyball.lane_of(throttle, key)::text);
            return;
        elsif must_notify is not null then
            return;
        end if;
    end if;

    select * into issue from flyball.check_job(kind, args, throttle, key, priority, max_attempts, unique_key, unique_for, cost,
        run_at, traceparent, timeout, debounce, debounce_max, replace);
    if issue.field is null then
        options := flyball.options_of(jsonb_build_object('tags', tags, 'after', after, 'after_failure', after_failure,
            'on_complete', on_complete, 'on_dead', on_dead, 'webhook_secret', webhook_secret,
            'retry', retry));
        select o.field, o.message, '22023' as code into issue from flyball.check_options(options) o;
    end if;
    if issue.field is null and options ? 'after' then
        select 'after' as field, a.message, '22023' as code into issue
        from flyball.after_problem(flyball.absent_of(flyball.after_of(options), flyball.caller_tenant()),
            cardinality(flyball.after_of(options)) > 0 and (replace or debounce is not null)) as a(message)
        where a.message is not null;
    end if;
    if issue.field is null and options ?| array['on_complete', 'on_dead'] then
        select w.field, w.message, w.code into issue
        from flyball.check_webhooks(options, replace or debounce is not null, flyball.is_operator()) w;
    end if;
    if issue.field is null and "group" is not null then
        select 'group' as field, g.message, '22023' as code into issue
        from flyball.check_group("group", flyball.unique_owner(), replace or debounce is not null) as g(message)
        where g.message is not null;
    end if;
    if issue.field is not null then
        raise exception using
            errcode = issue.code,
            message = format('enqueue: %s: %s', issue.field, issue.message),
            column = issue.field,
            hint = 'Nothing was enqueued.';
    end if;
    select a.job_id, a.duplicate, a.replaced, a.backlog into job_id, duplicate, replaced, backlog
    from flyball.admit('enqueue', kind, args, throttle, key, priority, run_at, max_attempts, unique_key, unique_for, cost,
        traceparent, timeout, debounce, debounce_max, replace, flyball.unique_owner(), flyball.caller_module(), group_id => "group",
        options => options) a;
    if flyball.needs_plan(kind, args) then
        perform flyball.refuse_capped(flyball.caller_tenant(), array[job_id], array[kind], array[args],
            array[coalesce(now() + debounce, run_at)], array[duplicate]);
    end if;
end $$;
comment on function flyball.enqueue is 'Enqueues one job in the caller''s own transaction. See the README for the meaning of each argument.';

-- Refuses all jobs of one call for what is wrong with one of them. The words are those of the
-- function that was called: in the job of a message the pool is the throttle, and the message itself
-- the arguments.
create function flyball.refuse_element(n bigint, field text, message text, code text default '22023') returns void
language plpgsql as $$
#variable_conflict use_variable
declare
    context text;
    called  text;
    given   text := field;
begin
    get diagnostics context = pg_context;
    called := flyball.called_function(context, 'enqueue_many');
    if called in ('notify', 'notify_many') then
        given := case field when 'throttle' then 'pool' when 'args' then '' else field end;
    end if;
    if called = 'notify' and given = '' then
        given := 'message';
    end if;
    raise exception using
        errcode = code,
        message = format('%s: %s: %s', called, case called
            when 'notify' then given
            else format('%s[%s]%s', case called when 'notify_many' then 'messages' else 'jobs' end, n,
                coalesce('.' || nullif(given, ''), '')) end, message),
        column = given,
        table = case called when 'notify' then '' else n::text end,
        hint = 'Nothing was enqueued.';
end $$;

-- Enqueues validated jobs for an owner of unique keys, which names the tenant of the jobs as well:
-- the functions below determine the caller; the HTTP API knows its tokens. It runs with the rights
-- of its caller, so calling it directly gains nothing. The places of messages in the queue of their
-- tenant are taken behind all unique keys: a transaction that has the places waits for no key.
--
-- `options` are fields of a job that few jobs have, as an object. So the next such field needs no
-- further parameter, and jobs without any pay for none.
create function flyball.enqueue_rows_as(
    owner text, trusted boolean,
    kinds text[], args jsonb[], throttles text[], keys text[], priorities int[], run_ats timestamptz[], max_attempts int[],
    unique_keys text[], unique_fors float8[], costs float8[], traceparents text[], timeouts float8[],
    debounces float8[], debounce_maxes float8[], replaces boolean[], module text default '', admitted boolean default false,
    groups bigint[] default null, options jsonb[] default null)
returns table (job_id bigint, duplicate boolean, replaced boolean, backlog jsonb)
language plpgsql volatile set plan_cache_mode = force_generic_plan set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    size          constant int := coalesce(cardinality(kinds), 0);
    today         constant bigint := flyball.day_of(now());
    immediate     constant boolean := run_ats is not null and array_remove(run_ats, null) = '{}';
    plain         constant boolean := unique_keys is not null and array_remove(unique_keys, null) = '{}';
    untraced      constant boolean := array_remove(traceparents, null) = '{}';
    untimed       constant boolean := array_remove(timeouts, null) = '{}';
    -- Null if no job is to join a group.
    joins         constant bigint[] := case when array_remove(groups, null) <> '{}' then groups end;
    -- The options that are given: without nulls, which are like none. Null if no job has any.
    extras        jsonb[];
    -- For which others each job waits, as an array; null if none waits.
    waits         jsonb[];
    -- True if any job has webhooks.
    calls         boolean := false;
    owner_tenant  constant text := flyball.tenant_of(owner);
    sender_module constant text := module;
    messages      constant boolean := owner_tenant <> '' and 'notification' = any (kinds);
    -- The messages that must be planned; null if there are none.
    unplanned     boolean[] := case when 'notification' = any (kinds) then array(
        select flyball.needs_plan(g.kind, g.args) from unnest(kinds, args) with ordinality as g(kind, args, n) order by g.n) end;
    -- The lane in which messages of a tenant wait, unless the entry point took their slots.
    waiting_lane  constant bigint := case when messages and not admitted
        then flyball.lane_of(flyball.admission_throttle(owner_tenant), module) end;
    one           record;
    result        record;
    lane_backlog  jsonb;
    place         bigint;
    ids           bigint[];
    lanes         bigint[];
    -- The lanes in which the jobs stand first.
    target_lanes  bigint[];
    -- True if they all wait behind others, for which a worker comes anyway.
    all_behind    boolean := false;
    duplicates    boolean[];
    replacements  boolean[];
    backlogs      jsonb[];
begin
    if unplanned is not null and true <> all (unplanned) then
        unplanned := null;
    end if;
    if size > 10000 then
        raise exception using errcode = '22023', column = '',
            message = format('enqueue_many: jobs: has %s elements; at most 10000 are allowed', size),
            hint = 'Nothing was enqueued.';
    elsif array[cardinality(args), cardinality(throttles), cardinality(keys), cardinality(priorities), cardinality(run_ats),
            cardinality(max_attempts), cardinality(unique_keys), cardinality(unique_fors), cardinality(costs),
            cardinality(traceparents), cardinality(timeouts), cardinality(debounces), cardinality(debounce_maxes),
            cardinality(replaces)] is distinct from array_fill(size, array[14]) or cardinality(groups) <> size
        or cardinality(options) <> size
    then
        raise exception using errcode = '22023', column = '',
            message = 'enqueue_rows: every argument must be an array with one element for each job', hint = 'Nothing was enqueued.';
    elsif size = 0 then
        return;
    end if;

    if 'notification' = any (kinds) and 1 = any (priorities) then
        priorities := array(
            select case when g.kind = 'notification' and g.priority = 1 then flyball.notification_priority(g.args) else g.priority end
            from unnest(kinds, priorities, args) with ordinality as g(kind, priority, args, n)
            order by g.n);
    end if;
    if messages and '' = any (keys) then
        keys := array(
            select flyball.message_key(g.kind, g.key, owner_tenant)
            from unnest(kinds, keys) with ordinality as g(kind, key, n)
            order by g.n);
    end if;

    -- Each column is checked as a whole, which is far cheaper than checking each job. Only if a
    -- column holds a suspicious value are the jobs checked one by one.
    if (plain and immediate
        and array_remove(unique_fors, null) = '{}' and array_remove(debounces, null) = '{}' and array_remove(debounce_maxes, null) = '{}'
        and false = all (replaces)
        and case when kinds[1] = all (kinds) then exists (select from flyball.kind k where k.name = kinds[1] and (trusted or k.public))
                 else kinds <@ array(select k.name from flyball.kind k where k.name in (select distinct unnest(kinds))
                     and (trusted or k.public)) end
        and array_position(args, null) is null
        and 262144 >= all (select octet_length(a::text) from unnest(args) as a)
        and case when throttles[1] = all (throttles) then throttles[1] ~ '^[A-Za-z0-9._/:{}-]+$' and octet_length(throttles[1]) <= 128
                      and not flyball.is_of_admission(throttles[1])
                      and (trusted or left(throttles[1], 4) <> 'api:' and left(throttles[1], 6) <> 'limit:'
                          and left(throttles[1], 7) <> 'tenant:')
                 else true = all (select t ~ '^[A-Za-z0-9._/:{}-]+$' and octet_length(t) <= 128 and not flyball.is_of_admission(t)
                                      and (trusted or left(t, 4) <> 'api:' and left(t, 6) <> 'limit:'
                                          and left(t, 7) <> 'tenant:')
                                  from (select distinct unnest(throttles) as t) as t) end
        and (trusted or 'webhooks' <> all (throttles) and 'flyball:alerts' <> all (throttles) and not exists (
            select from (select distinct unnest(throttles) as name) as t
            where right(t.name, 9) = ':accounts'
                or not 'notification' = all (kinds)
                    and exists (select from flyball.knobs b where b.throttle = t.name || ':accounts' offset 0)))
        and 512 >= all (select octet_length(k) from unnest(keys) as k)
        and 0 <= all (priorities) and 3 >= all (priorities)
        and (trusted or owner_tenant = '' or 0 <> all (priorities) or 'notification' <> all (kinds))
        and 1 <= all (max_attempts) and 1000 >= all (max_attempts)
        and 0 < all (costs) and 1 >= all (costs)
        and not exists (
            select from flyball.knobs b where b.throttle = any(array(select distinct unnest(throttles))) and b.fields ? 'max_cost')
        and (untraced or true = all (select flyball.is_traceparent(t) from unnest(array_remove(traceparents, null)) as t))
        and (untimed or 1e-6 <= all (array_remove(timeouts, null)) and 366 * 86400.0 >= all (array_remove(timeouts, null)))) is not true
    then
        for one in
            select g.n, c.field, c.message, c.code
            from unnest(kinds, args, throttles, keys, priorities, run_ats, max_attempts, unique_keys, unique_fors, costs,
                    traceparents, timeouts, debounces, debounce_maxes, replaces) with ordinality
                as g(kind, args, throttle, key, priority, run_at, max_attempts, unique_key, unique_for, cost, traceparent,
                    timeout, debounce, debounce_max, replace, n)
            cross join lateral flyball.check_job(g.kind, g.args, g.throttle, g.key, g.priority, g.max_attempts, g.unique_key,
                flyball.span(g.unique_for), g.cost, g.run_at, g.traceparent, flyball.span(g.timeout), flyball.span(g.debounce),
                flyball.span(g.debounce_max), g.replace, owner, trusted) c
            where c.field is not null
            order by g.n
            limit 1
        loop
            perform flyball.refuse_element(one.n - 1, one.field, one.message, one.code);
        end loop;
    end if;

    if array_remove(options, null) <> '{}' then
        for one in
            select g.n, c.field, c.message
            from unnest(options) with ordinality as g(options, n)
            cross join lateral flyball.check_options(g.options) c
            where g.options is not null and c.field is not null
            order by g.n
            limit 1
        loop
            perform flyball.refuse_element(one.n - 1, one.field, one.message);
        end loop;
        -- A null within is like none, as well.
        extras := array(
            select nullif(nullif(jsonb_strip_nulls(g.options), '{}'), 'null')
            from unnest(options) with ordinality as g(options, n)
            order by g.n);
        extras := case when array_remove(extras, null) <> '{}' then extras end;
    end if;
    if extras is not null then
        for one in
            select g.n, c.field, c.message, c.code
            from unnest(extras, replaces, debounces) with ordinality as g(options, replace, debounce, n)
            cross join lateral flyball.check_webhooks(g.options, g.replace or g.debounce is not null, trusted) c
            where c.field is not null
            order by g.n
            limit 1
        loop
            perform flyball.refuse_element(one.n - 1, one.field, one.message, one.code);
        end loop;
        calls := exists (select from unnest(extras) as g(options) where g.options ?| array['on_complete', 'on_dead']);
    end if;

    if extras is not null and exists (select from unnest(extras) as g(options) where g.options ? 'after') then
        for one in
            select g.n, flyball.after_problem(g.absent, g.replaces) as message
            from (
                select a.n, a.replaces,
                    case when (select 1 from flyball.job j where j.id = a.id and j.tenant = owner_tenant limit 1) is null
                        then a.id end as absent
                from (
                    select g.n, g.replace or g.debounce is not null as replaces, unnest(flyball.after_of(g.options)) as id
                    from unnest(extras, replaces, debounces) with ordinality as g(options, replace, debounce, n)
                    where g.options ? 'after'
                ) a
            ) g
            where g.absent is not null or g.replaces
            order by g.n, g.absent
            limit 1
        loop
            perform flyball.refuse_element(one.n - 1, 'after', one.message);
        end loop;
        with pairs as materialized (
            select g.n, g.options ->> 'after_failure' = 'run' as runs, unnest(flyball.after_of(g.options)) as id
            from unnest(extras, unique_keys) with ordinality as g(options, unique_key, n)
            where g.unique_key is null and g.options ? 'after'
        ),
        held as (
            select p.n, to_jsonb(array_agg(p.id order by p.id)) as ids
            from pairs p
            join flyball.ends_of(array(select distinct q.id from pairs q)) e on e.job_id = p.id
            where e.state = 'live' or e.state <> 'completed' and p.runs is not true
            group by p.n
        )
        select array_agg(h.ids order by k.n) into waits
        from generate_series(1, size) as k(n)
        left join held h on h.n = k.n;
        waits := case when array_remove(waits, null) <> '{}' then waits end;
    end if;

    if joins is not null then
        -- In the order of their numbers, as everywhere.
        for one in
            select g.n, c.message
            from (
                select j.id, bool_or(j.replaces) as replaces, coalesce(min(j.n) filter (where j.replaces), min(j.n)) as n
                from (
                    select u.id, u.n, u.replace or u.debounce is not null as replaces
                    from unnest(joins, replaces, debounces) with ordinality as u(id, replace, debounce, n)
                    where u.id is not null
                ) as j
                group by j.id
                order by j.id
            ) g
            cross join lateral flyball.check_group(g.id, owner, g.replaces) as c(message)
            where c.message is not null
            order by g.n
            limit 1
        loop
            perform flyball.refuse_element(one.n - 1, 'group', one.message);
        end loop;
    end if;

    if to_regclass('flyball.job_' || today) is null then
        perform flyball.ensure_day(today);
    end if;

    -- Each lane with a limit is checked once, before jobs are added to it.
    if exists (
        select from (select distinct unnest(throttles)) as t(name)
        join flyball.knobs b on b.throttle = t.name and b.fields ? 'max_backlog'
    ) then
        backlogs := array_fill(null::jsonb, array[size]);
        for one in
            select g.throttle, g.key, flyball.lane_of(g.throttle, g.key) as lane, array_agg(g.n) as places
            from unnest(throttles, keys, run_ats, unique_keys, waits) with ordinality as g(throttle, key, run_at, unique_key, waits, n)
            where g.unique_key is null and g.waits is null and (g.run_at is null or g.run_at <= now())
            group by 1, 2, 3
            order by 3
        loop
            lane_backlog := flyball.check_backlog('enqueue_many', one.throttle, one.key, one.lane, cardinality(one.places));
            if lane_backlog is not null then
                foreach place in array one.places loop
                    backlogs[place] := lane_backlog;
                end loop;
            end if;
        end loop;
    end if;

    ids := case when joins is null and not calls
            then array(select (today << 38) | (nextval('flyball.job_seq') << 1) from generate_series(1, size))
        else array(
            select (today << 38) | (nextval('flyball.job_seq') << 1)
                | (g.id is not null or coalesce(g.options ?| array['on_complete', 'on_dead'], false))::int
            from unnest(kinds, joins, extras) with ordinality as g(kind, id, options, n)
            order by g.n) end;
    lanes := case when throttles[1] = all (throttles) and keys[1] = all (keys)
        then array_fill(flyball.lane_of(throttles[1], keys[1]), array[size])
        else array(select flyball.lane_of(g.throttle, g.key) from (select unnest(throttles) as throttle, unnest(keys) as key) as g) end;

    target_lanes := case when waiting_lane is null then lanes
        else array(select case when g.kind = 'notification' then waiting_lane else g.lane end
                   from unnest(kinds, lanes) with ordinality as g(kind, lane, n) order by g.n) end;
    if waiting_lane is not null and 'notification' = all (kinds) then
        all_behind := flyball.has_waiting(owner_tenant, sender_module);
    end if;
    if messages and plain then
        perform flyball.record_pending('enqueue_many', owner_tenant, m.ids, m.urgent)
        from (
            select array_agg(g.id) as ids, bool_and(g.priority = 0) as urgent
            from unnest(ids, kinds, priorities) as g(id, kind, priority)
            where g.kind = 'notification'
        ) m
        where m.ids is not null;
    end if;

    if plain and immediate and untraced and untimed and not messages and unplanned is null and joins is null and extras is null then
        insert into flyball.job (id, lane_id, priority, max_attempts, cost, kind, throttle, key, tenant, args)
        select unnest(ids), unnest(lanes), unnest(priorities), unnest(max_attempts), unnest(costs), unnest(kinds), unnest(throttles),
            unnest(keys), owner_tenant, unnest(args);
        insert into flyball.ready (lane_id, priority, job_id, cost, holds_unique)
        select unnest(lanes), unnest(priorities), unnest(ids), unnest(costs), false;
    else
        insert into flyball.job
            (id, lane_id, priority, max_attempts, cost, run_at, kind, throttle, key, tenant, args, traceparent, timeout_s,
             module, admission_lane, group_id, tags,
             after, after_failure, on_complete, on_dead, webhook_secret, retry)
        select g.id, g.lane, g.priority, g.max_attempts, g.cost, g.run_at, g.kind, g.throttle, g.key, owner_tenant, g.args,
            g.traceparent, g.timeout, sender_module, case when g.kind = 'notification' then waiting_lane end, g.group_id,
            -- A first call costs as much as the insert of a row, whatever it is given.
            case when g.options is not null then flyball.tags_of(g.options) end,
            case when g.options is not null then flyball.after_of(g.options) end, g.options ->> 'after_failure',
            g.options ->> 'on_complete', g.options ->> 'on_dead', g.options ->> 'webhook_secret',
            case when g.options is not null then flyball.retry_of(g.options) end
        from (
            select unnest(ids) as id, unnest(lanes) as lane, unnest(priorities) as priority, unnest(max_attempts) as max_attempts,
                unnest(costs) as cost, unnest(run_ats) as run_at, unnest(kinds) as kind, unnest(throttles) as throttle,
                unnest(keys) as key, unnest(args) as args, unnest(traceparents) as traceparent, unnest(timeouts) as timeout,
                unnest(unique_keys) as unique_key, unnest(joins) as group_id,
                unnest(extras) as options
        ) as g
        where g.unique_key is null;
        if joins is not null then
            perform flyball.add_members(g.id, array_agg(g.job_id))
            from unnest(joins, ids, unique_keys) as g(id, job_id, unique_key)
            where g.id is not null and g.unique_key is null
            group by g.id;
        end if;
        if calls then
            insert into flyball.webhook_job (job_id)
            select g.id from unnest(ids, unique_keys, extras) as g(id, unique_key, options)
            where g.unique_key is null and g.options ?| array['on_complete', 'on_dead'];
        end if;
        insert into flyball.ready (lane_id, priority, job_id, cost, holds_unique)
        select g.lane, g.priority, g.id, g.cost, false
        from (
            select unnest(target_lanes) as lane, unnest(priorities) as priority, unnest(ids) as id, unnest(costs) as cost,
                unnest(run_ats) as run_at, unnest(unique_keys) as unique_key, unnest(unplanned) as unplanned, unnest(waits) as waits
        ) as g
        where g.unique_key is null and (g.run_at is null or g.run_at <= now()) and g.unplanned is not true
            and g.waits is null;
    end if;

    if not immediate or unplanned is not null or waits is not null then
        insert into flyball.scheduled (job_id, run_at, lane_id, priority, cost, retry, holds_unique, turn)
        select g.id, greatest(g.run_at, now()), g.lane, g.priority, g.cost, false, false, case when g.waits is not null then g.priority - 8
            when g.unplanned then g.priority - 4 else 0 end
        from unnest(ids, run_ats, target_lanes, priorities, costs, unique_keys, unplanned, waits)
            as g(id, run_at, lane, priority, cost, unique_key, unplanned, waits)
        where g.unique_key is null and (g.run_at > now() or g.unplanned or g.waits is not null);
    end if;
    if waits is not null then
        insert into flyball.job_after (job_id, after_id, runs_anyway)
        select g.id, e.id::bigint, coalesce(g.options ->> 'after_failure' = 'run', false)
        from unnest(ids, waits, extras) as g(id, waits, options)
        cross join lateral jsonb_array_elements_text(g.waits) as e(id)
        where g.waits is not null;
    end if;
    if unplanned is not null then
        perform pg_notify('flyball_plan', '');
    end if;

    if not all_behind and coalesce((select d.asleep from flyball.wakeup d), true) then
        -- No lane is named if several got jobs.
        perform pg_notify('flyball', case when min(g.lane) = max(g.lane) then min(g.lane)::text else '' end)
        from unnest(target_lanes, run_ats, unique_keys, unplanned, waits) as g(lane, run_at, unique_key, unplanned, waits)
        where g.unique_key is null and (g.run_at is null or g.run_at <= now()) and g.unplanned is not true and g.waits is null
        having count(*) > 0;
    end if;

    if plain then
        return query select unnest(ids), false, false, unnest(backlogs);
        return;
    end if;

    duplicates := array_fill(false, array[size]);
    replacements := array_fill(false, array[size]);
    backlogs := coalesce(backlogs, array_fill(null::jsonb, array[size]));
    -- Keys are taken in the order of their digests, as everywhere: transactions that want the same
    -- keys wait and never deadlock.
    for one in
        select g.*
        from unnest(kinds, args, throttles, keys, priorities, run_ats, max_attempts, unique_keys, unique_fors, costs, traceparents,
                timeouts, debounces, debounce_maxes, replaces, joins, extras) with ordinality
            as g(kind, args, throttle, key, priority, run_at, max_attempts, unique_key, unique_for, cost, traceparent,
                timeout, debounce, debounce_max, replace, group_id, options, n)
        where g.unique_key is not null
        order by flyball.unique_digest(owner, g.kind, g.unique_key), g.n
    loop
        result := flyball.admit('enqueue_many', one.kind, one.args, one.throttle, one.key, one.priority, one.run_at,
            one.max_attempts, one.unique_key, flyball.span(one.unique_for), one.cost, one.traceparent, flyball.span(one.timeout),
            flyball.span(one.debounce), flyball.span(one.debounce_max), one.replace, owner, sender_module,
            admitted, one.group_id, one.options);
        ids[one.n] := result.job_id;
        duplicates[one.n] := result.duplicate;
        replacements[one.n] := result.replaced;
        backlogs[one.n] := result.backlog;
    end loop;
    if messages then
        perform flyball.record_pending('enqueue_many', owner_tenant, m.ids, m.urgent)
        from (
            select array_agg(g.id) as ids, bool_and(g.priority = 0) as urgent
            from unnest(ids, kinds, priorities, duplicates) as g(id, kind, priority, duplicate)
            where g.kind = 'notification' and not g.duplicate
        ) m
        where m.ids is not null;
    end if;
    return query select * from unnest(ids, duplicates, replacements, backlogs);
end $$;
comment on function flyball.enqueue_rows_as is 'As flyball.enqueue_rows, for an owner of unique keys; needs rights on the tables.';

-- Enqueues many jobs given column by column, all or none; element n of every array belongs to job
-- n. For programs: it avoids JSON on both sides. Durations are in seconds. Returns one row per job,
-- in order. An array of arrays is refused.
create function flyball.enqueue_rows(
    kinds text[], args jsonb[], throttles text[], keys text[], priorities int[], run_ats timestamptz[], max_attempts int[],
    unique_keys text[], unique_fors float8[], costs float8[], traceparents text[], timeouts float8[],
    debounces float8[], debounce_maxes float8[], replaces boolean[], groups bigint[] default null,
    options jsonb[] default null)
returns table (job_id bigint, duplicate boolean, replaced boolean, backlog jsonb)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set standard_conforming_strings = on as $$
#variable_conflict use_column
declare
    ids       bigint[];
    repeats   boolean[];
    replaced  boolean[];
    backlogs  jsonb[];
    wrong     record;
begin
    if 1 < any (array[array_ndims(kinds), array_ndims(args), array_ndims(throttles), array_ndims(keys), array_ndims(priorities),
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
            when a.dimensions > 1 then format('must have one dimension, not %s', a.dimensions)
            when a.size is null then 'must be an array with one element for each job, not null'
            else format('must have one element for each job: kinds has %s, and this %s', cardinality(kinds), a.size) end as problem
        into wrong
        from (values (1, 'kinds', array_ndims(kinds), cardinality(kinds)), (2, 'args', array_ndims(args), cardinality(args)),
            (3, 'throttles', array_ndims(throttles), cardinality(throttles)), (4, 'keys', array_ndims(keys), cardinality(keys)),
            (5, 'priorities', array_ndims(priorities), cardinality(priorities)), (6, 'run_ats', array_ndims(run_ats), cardinality(run_ats)),
            (7, 'max_attempts', array_ndims(max_attempts), cardinality(max_attempts)),
            (8, 'unique_keys', array_ndims(unique_keys), cardinality(unique_keys)),
            (9, 'unique_fors', array_ndims(unique_fors), cardinality(unique_fors)), (10, 'costs', array_ndims(costs), cardinality(costs)),
            (11, 'traceparents', array_ndims(traceparents), cardinality(traceparents)),
            (12, 'timeouts', array_ndims(timeouts), cardinality(timeouts)),
            (13, 'debounces', array_ndims(debounces), cardinality(debounces)),
            (14, 'debounce_maxes', array_ndims(debounce_maxes), cardinality(debounce_maxes)),
            (15, 'replaces', array_ndims(replaces), cardinality(replaces)),
            (16, 'groups', array_ndims(groups), coalesce(cardinality(groups), cardinality(kinds))),
            (17, 'options', array_ndims(options), coalesce(cardinality(options), cardinality(kinds)))
        ) as a(place, name, dimensions, size)
        where a.dimensions > 1 or a.size is distinct from cardinality(kinds) or a.size is null
        order by a.place limit 1;
        raise exception using errcode = '22023', column = wrong.name, hint = 'Nothing was enqueued.',
            message = format('enqueue_rows: %s: %s', wrong.name, wrong.problem);
    end if;
    if kinds is null or 'notification' <> all (kinds) then
        return query select * from flyball.enqueue_rows_as(flyball.unique_owner(), flyball.is_operator(), kinds, args, throttles, keys,
            priorities, run_ats, max_attempts, unique_keys, unique_fors, costs, traceparents, timeouts, debounces, debounce_maxes, replaces,
            flyball.caller_module(), false, groups, options);
        return;
    end if;
    select array_agg(e.job_id order by e.n), array_agg(e.duplicate order by e.n), array_agg(e.replaced order by e.n),
        array_agg(e.backlog order by e.n)
    into ids, repeats, replaced, backlogs
    from flyball.enqueue_rows_as(flyball.unique_owner(), flyball.is_operator(), kinds, args, throttles, keys, priorities,
        run_ats, max_attempts, unique_keys, unique_fors, costs, traceparents, timeouts, debounces, debounce_maxes, replaces,
        flyball.caller_module(), false, groups, options) with ordinality as e(job_id, duplicate, replaced, backlog, n);
    perform flyball.refuse_capped(flyball.caller_tenant(), ids, kinds, args, run_ats, repeats);
    return query select * from unnest(ids, repeats, replaced, backlogs);
end $$;
comment on function flyball.enqueue_rows is 'Enqueues up to 10,000 jobs given column by column, all or none; durations are in seconds.';

-- Enqueues many jobs, all or none, in the caller's own transaction; returns one row per job, in
-- order.
create function flyball.enqueue_many(jobs jsonb)
returns table (job_id bigint, duplicate boolean, replaced boolean, backlog jsonb)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set standard_conforming_strings = on as $$
#variable_conflict use_column
declare
    allowed           constant text[] := array['kind', 'args', 'throttle', 'key', 'priority', 'run_at', 'max_attempts', 'unique_key',
        'unique_for', 'cost', 'traceparent', 'timeout', 'debounce', 'debounce_max', 'replace', 'group',
        'tags', 'after', 'after_failure', 'on_complete', 'on_dead', 'webhook_secret', 'retry'];
    -- The fields with a column of their own; the others are the options of the job.
    plain_fields      constant text[] := allowed[:16];
    extra_fields      constant text[] := allowed[17:];
    duration_fields   constant text[] := array['unique_for', 'timeout', 'debounce', 'debounce_max'];
    -- Most jobs have only these, which are read in half of the time.
    common_fields     constant text[] := allowed[:5];
    size              int;
    is_valid          boolean := false;
    c                 record;
    j                 jsonb;
    at                int := -1;
    name              text;
    value             jsonb;
    type              text;
    expected_type     text;
    -- Timestamps as JSON writes a timestamptz, as Postgres prints it, and as RFC 3339 says;
    -- "yesterday" and "now" are not accepted.
    timestamp_pattern constant text := '^\d{4,6}-\d\d-\d\d[Tt ]\d\d:\d\d(:\d\d(\.\d+)?)? ?([Zz]|[+-]\d\d(:?\d\d)?)?$';
    out_of_range      text;
    problem           text;
begin
    if jobs is null or jsonb_typeof(jobs) <> 'array' then
        raise exception using errcode = '22023', column = '',
            message = 'enqueue_many: jobs: must be a JSON array of jobs', hint = 'Nothing was enqueued.';
    elsif jsonb_array_length(jobs) > 10000 then
        raise exception using errcode = '22023', column = '',
            message = format('enqueue_many: jobs: has %s elements; at most 10000 are allowed', jsonb_array_length(jobs)),
            hint = 'Nothing was enqueued.';
    elsif jsonb_array_length(jobs) = 0 then
        return;
    end if;

    -- All elements at once. Type errors are not reported yet at this point.
    if jsonb_typeof(jobs -> 0) = 'object' and (jobs -> 0) - common_fields = '{}' then
        begin
            select bool_and(
                    a.j - common_fields = '{}'
                    and coalesce(jsonb_typeof(a.j -> 'kind') = 'string', false)
                    and coalesce(jsonb_typeof(a.j -> 'throttle') = 'string', true)
                    and coalesce(jsonb_typeof(a.j -> 'key') = 'string', true)
                    and coalesce(jsonb_typeof(a.j -> 'priority') = 'number'
                        and (a.j -> 'priority')::numeric = trunc((a.j -> 'priority')::numeric), true)
                ) as is_valid,
                array_agg(a.j ->> 'kind') as kinds, array_agg(coalesce(a.j -> 'args', '{}')) as args,
                array_agg(coalesce(a.j ->> 'throttle', 'default')) as throttles, array_agg(coalesce(a.j ->> 'key', '')) as keys,
                array_agg(coalesce((a.j -> 'priority')::int, 1)) as priorities
            into c
            from jsonb_array_elements(jobs) as a(j);
            is_valid := c.is_valid;
        exception when data_exception or feature_not_supported then
            is_valid := false;
        end;
        if is_valid then
            size := cardinality(c.kinds);
            return query select * from flyball.enqueue_rows(c.kinds, c.args, c.throttles, c.keys, c.priorities,
                array_fill(null::timestamptz, array[size]), array_fill(10, array[size]), array_fill(null::text, array[size]),
                array_fill(null::float8, array[size]), array_fill(1::float8, array[size]), array_fill(null::text, array[size]),
                array_fill(null::float8, array[size]), array_fill(null::float8, array[size]), array_fill(null::float8, array[size]),
                array_fill(false, array[size]));
            return;
        end if;
    end if;

    begin
        select bool_and(
                a.j - allowed = '{}'
                and coalesce(jsonb_typeof(a.j -> 'kind') = 'string', false)
                and coalesce(jsonb_typeof(a.j -> 'throttle') = 'string', true)
                and coalesce(jsonb_typeof(a.j -> 'key') = 'string', true)
                and coalesce(jsonb_typeof(a.j -> 'priority') = 'number' and f.priority = trunc(f.priority), true)
                and coalesce(jsonb_typeof(a.j -> 'max_attempts') = 'number' and f.max_attempts = trunc(f.max_attempts), true)
                and coalesce(jsonb_typeof(a.j -> 'cost') = 'number', true)
                and coalesce(jsonb_typeof(a.j -> 'replace') = 'boolean', true)
                and coalesce(jsonb_typeof(a.j -> 'run_at') = 'null' or a.j ->> 'run_at' ~ timestamp_pattern, true)
                and coalesce(jsonb_typeof(a.j -> 'unique_key') in ('string', 'null'), true)
                and coalesce(jsonb_typeof(a.j -> 'traceparent') in ('string', 'null'), true)
                and coalesce(jsonb_typeof(a.j -> 'group') = 'null'
                    or jsonb_typeof(a.j -> 'group') = 'number' and f."group" = trunc(f."group") and f."group" between 1 and 1e15, true)
            ) as is_valid,
            array_agg(f.kind) as kinds, array_agg(coalesce(a.j -> 'args', '{}')) as args,
            array_agg(coalesce(f.throttle, 'default')) as throttles, array_agg(coalesce(f.key, '')) as keys,
            array_agg(coalesce(f.priority::int, 1)) as priorities, array_agg(f.run_at) as run_ats,
            array_agg(coalesce(f.max_attempts::int, 10)) as max_attempts, array_agg(f.unique_key) as unique_keys,
            array_agg(flyball.seconds_of(f.unique_for)) as unique_fors, array_agg(coalesce(f.cost, 1)) as costs,
            array_agg(f.traceparent) as traceparents, array_agg(flyball.seconds_of(f.timeout)) as timeouts,
            array_agg(flyball.seconds_of(f.debounce)) as debounces, array_agg(flyball.seconds_of(f.debounce_max)) as debounce_maxes,
            array_agg(coalesce(f.replace, false)) as replaces, array_agg(f."group"::bigint) as groups,
            array_agg(case when a.j ?| extra_fields then a.j - plain_fields end) as options
        into c
        from jsonb_array_elements(jobs) as a(j)
        cross join lateral jsonb_to_record(a.j) as f(kind text, throttle text, key text, priority numeric,
            run_at timestamptz, max_attempts numeric, unique_key text, unique_for jsonb, cost float8, traceparent text,
            timeout jsonb, debounce jsonb, debounce_max jsonb, replace boolean, "group" numeric);
        is_valid := c.is_valid and 1e9 >= all (array_remove(c.unique_fors || c.timeouts || c.debounces || c.debounce_maxes, null))
            and -1e9 <= all (array_remove(c.unique_fors || c.timeouts || c.debounces || c.debounce_maxes, null));
    exception when data_exception or feature_not_supported then
        is_valid := false;
    end;

    if not is_valid then
        for j in select e from jsonb_array_elements(jobs) as e loop
            at := at + 1;
            problem := null;
            name := '';
            if jsonb_typeof(j) <> 'object' then
                problem := 'must be an object';
            else
                for name, value in select e.key, e.value from jsonb_each(j) as e loop
                    type := jsonb_typeof(value);
                    out_of_range := format('is out of range; allowed is more than 0 and at most %s',
                        case name when 'debounce_max' then '3660 days (316224000 seconds)' else '366 days (31622400 seconds)' end);
                    expected_type := case
                        when name in ('kind', 'throttle', 'key', 'unique_key', 'run_at', 'traceparent') then 'string'
                        when name in ('priority', 'max_attempts', 'cost', 'group') then 'number'
                        when name = 'replace' then 'boolean'
                        else null end;
                    if not name = any(allowed) then
                        problem := format('is not a field of a job; allowed are %s', array_to_string(allowed, ', '));
                    elsif type = 'null' and (name in ('run_at', 'unique_key', 'traceparent', 'group') or name = any(duration_fields)) then
                        continue;
                    elsif expected_type is not null and type <> expected_type then
                        problem := format('must be a %s, not %s', expected_type, type);
                    elsif name in ('priority', 'max_attempts')
                        and (value::numeric <> trunc(value::numeric) or abs(value::numeric) > 1e9)
                    then
                        problem := format('must be a whole number, not %s', left(value::text, 40));
                    elsif name = 'group' and (value::numeric <> trunc(value::numeric) or value::numeric not between 1 and 1e15) then
                        problem := format('must be the number of a group, not %s', left(value::text, 40));
                    elsif name = 'cost' and value::numeric <> 0 and abs(value::numeric) not between 1e-300 and 1e300 then
                        problem := 'is out of range; allowed is more than 0 and at most 1e9 tokens';
                    elsif name = any(duration_fields) and type = 'number' and value::numeric <> 0
                        and abs(value::numeric) not between 1e-300 and 1e9
                    then
                        problem := out_of_range;
                    elsif name = any(duration_fields) and type not in ('number', 'string') then
                        problem := format('must be seconds or an interval text, not %s', type);
                    elsif name = 'run_at' or name = any(duration_fields) then
                        begin
                            if name = 'run_at' then
                                problem := case when (j ->> name)::timestamptz is null or j ->> name !~ timestamp_pattern
                                    then format('"%s" is not a time; write it like 2026-11-20T14:00:00Z', left(j ->> name, 64)) end;
                            elsif abs(flyball.seconds_of(value)) > 1e9 then
                                problem := out_of_range;
                            end if;
                        exception when data_exception then
                            problem := case name
                                when 'run_at' then format('"%s" is not a time; write it like 2026-11-20T14:00:00Z', left(j ->> name, 64))
                                else format('"%s" is not a span; write seconds as a number, or a text like "10 minutes"', j ->> name) end;
                        end;
                    end if;
                    exit when problem is not null;
                end loop;
            end if;
            if problem is null and j -> 'kind' is null then
                name := 'kind';
                problem := 'must name what runs the job, for instance ''http''';
            end if;
            if problem is not null then
                perform flyball.refuse_element(at, name, problem);
            end if;
        end loop;
        raise exception using errcode = '22023', column = '', message = 'enqueue_many: jobs: cannot be read',
            hint = 'Nothing was enqueued.';
    end if;

    return query select * from flyball.enqueue_rows(c.kinds, c.args, c.throttles, c.keys, c.priorities, c.run_ats, c.max_attempts,
        c.unique_keys, c.unique_fors, c.costs, c.traceparents, c.timeouts, c.debounces, c.debounce_maxes, c.replaces,
        case when array_remove(c.groups, null) <> '{}' then c.groups end, c.options);
end $$;
comment on function flyball.enqueue_many is 'Enqueues up to 10,000 jobs, all or none; elements have the same field names as flyball.enqueue.';

-- Enqueues jobs of a JSON array whose fields have been checked, for an owner of unique keys.
create function flyball.enqueue_json_as(owner text, module text, jobs jsonb, group_id bigint default null)
returns table (job_id bigint, duplicate boolean, replaced boolean)
language sql volatile as $$
    select e.job_id, e.duplicate, e.replaced
    from (
        select array_agg(f.kind order by a.n) as kinds, array_agg(coalesce(a.j -> 'args', '{}') order by a.n) as args,
            array_agg(coalesce(f.throttle, 'default') order by a.n) as throttles, array_agg(coalesce(f.key, '') order by a.n) as keys,
            array_agg(coalesce(f.priority::int, 1) order by a.n) as priorities, array_agg(f.run_at order by a.n) as run_ats,
            array_agg(coalesce(f.max_attempts::int, 10) order by a.n) as max_attempts, array_agg(f.unique_key order by a.n) as unique_keys,
            array_agg(flyball.seconds_of(f.unique_for) order by a.n) as unique_fors, array_agg(coalesce(f.cost, 1) order by a.n) as costs,
            array_agg(f.traceparent order by a.n) as traceparents, array_agg(flyball.seconds_of(f.timeout) order by a.n) as timeouts,
            array_agg(flyball.seconds_of(f.debounce) order by a.n) as debounces,
            array_agg(flyball.seconds_of(f.debounce_max) order by a.n) as debounce_maxes,
            array_agg(coalesce(f.replace, false) order by a.n) as replaces, array_agg(enqueue_json_as.group_id) as groups,
            array_agg(flyball.options_of(a.j) order by a.n) as options
        from jsonb_array_elements(enqueue_json_as.jobs) with ordinality as a(j, n)
        cross join lateral jsonb_to_record(a.j) as f(kind text, throttle text, key text, priority numeric,
            run_at timestamptz, max_attempts numeric, unique_key text, unique_for jsonb, cost float8, traceparent text,
            timeout jsonb, debounce jsonb, debounce_max jsonb, replace boolean)
        having count(*) > 0
    ) c
    cross join lateral flyball.enqueue_rows_as(enqueue_json_as.owner, true, c.kinds, c.args, c.throttles, c.keys, c.priorities, c.run_ats,
        c.max_attempts, c.unique_keys, c.unique_fors, c.costs, c.traceparents, c.timeouts, c.debounces, c.debounce_maxes, c.replaces,
        enqueue_json_as.module, false, c.groups, c.options) e
$$;

-- === Permissions =================================================================================

revoke execute on function flyball.message_key, flyball.check_webhooks, flyball.is_local_time, flyball.enqueue_json_as
from public;
