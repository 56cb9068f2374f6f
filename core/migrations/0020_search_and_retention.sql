-- Chapter 20: search of jobs, indexes that make it fast, and retention by kind.

-- === Filters =====================================================================================

-- The filters of all doors besides the place, the state and the time of a job. Nulls match all.
create type flyball.job_search as (
    "group"    bigint,
    error_like text,
    -- The trace id of `traceparent`.
    trace      text,
    unique_key text,
    -- The owners of the unique key that are meant, for jobs of no tenant.
    key_owners text[],
    args       jsonb,
    args_path  jsonpath,
    -- All of them.
    tags       text[]
);

create type flyball.job_filter as (
    states         text[],
    kind           text,
    throttle       text,
    key            text,
    tenant         text,
    created_after  timestamptz,
    created_before timestamptz,
    search         flyball.job_search
);

-- A job of a list.
create type flyball.listed_job as (
    id           bigint,
    kind         text,
    throttle     text,
    key          text,
    tenant       text,
    group_id     bigint,
    priority     smallint,
    max_attempts smallint,
    cost         float8,
    created_at   timestamptz,
    due_at       timestamptz,
    attempt      smallint,
    last_error   text,
    state        text,
    tags         text[],
    ended_at     timestamptz
);

-- A value without the secrets that are marked in it, at any depth.
create function flyball.without_secrets(value jsonb) returns jsonb
language plpgsql immutable parallel safe as $$
begin
    -- Most values have none, and LIKE knows it sooner than a regular expression.
    if value::text not like all (array['%"$secret"%', '%"$encrypted"%']) then
        return value;
    elsif jsonb_typeof(value) = 'object' then
        return case when value ?| array['$secret', '$encrypted'] then '"[secret]"'::jsonb else (
            select jsonb_object_agg(f.key, flyball.without_secrets(f.value)) from jsonb_each(value) f) end;
    elsif jsonb_typeof(value) = 'array' then
        return (
            select jsonb_agg(flyball.without_secrets(e.value) order by e.n)
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

-- The arguments that a filter looks at: without what readers see masked, because a filter would tell
-- it letter by letter. A URL is the one that they see.
create function flyball.searched_args(kind text, args jsonb) returns jsonb
language sql immutable parallel safe
return (
    select case
        when jsonb_typeof(s.args) <> 'object' then s.args
        when kind = 'notification' then s.args - array['to', 'subject', 'body', 'html', 'template', 'data', 'extra']
        when kind = 'http' then s.args - 'headers'
            || case when jsonb_typeof(s.args -> 'url') = 'string' then jsonb_build_object('url', flyball.shown_url(s.args ->> 'url')) else '{}' end
        else s.args end
    from (select flyball.without_secrets(searched_args.args) as args) s
);

-- Returns true if a job holds or held a unique key, of which only the digest is known.
create function flyball.has_unique_key(digest bytea, kind text, tenant text, owners text[], key text) returns boolean
language sql immutable parallel safe
return digest = any(array(
    select flyball.unique_digest(o.owner, has_unique_key.kind, has_unique_key.key)
    from unnest(case when has_unique_key.tenant <> '' then array['tenant:' || has_unique_key.tenant] else has_unique_key.owners end) as o(owner)
));

-- Returns true if a job's row fits a search; its error is in other tables. Written so that the planner can
-- inline it, and so that arguments are read only where a filter asks for them.
create function flyball.fits_search(
    search flyball.job_search, kind text, tenant text, group_id bigint, traceparent text, unique_key bytea, args jsonb, tags text[]
) returns boolean
language sql immutable parallel safe
return ((search)."group" is null or group_id = (search)."group")
    and ((search).tags is null or tags @> (search).tags)
    and ((search).trace is null or substr(traceparent, 4, 32) = (search).trace)
    and ((search).unique_key is null or unique_key is not null
        and flyball.has_unique_key(unique_key, kind, tenant, (search).key_owners, (search).unique_key))
    -- The whole arguments come first, because few contain the object. A path with != or || may fit them
    -- by a secret, so it looks at nothing but what is searched.
    and ((search).args is null or args @> (search).args and flyball.searched_args(kind, args) @> (search).args)
    and ((search).args_path is null or jsonb_path_match(flyball.searched_args(kind, args), (search).args_path, '{}', true));

-- Returns true if a look at one job may take long: at up to 256 KiB of arguments, or at the digests of a
-- key with up to 1100 owners.
create function flyball.is_dear(search flyball.job_search) returns boolean
language sql immutable parallel safe
return (search).args is not null or (search).args_path is not null or (search).unique_key is not null;

create function flyball.fits_filter(
    filter flyball.job_filter, lane bigint, kind text, throttle text, key text, admission_lane bigint, tenant text,
    created_at timestamptz, group_id bigint, traceparent text, unique_key bytea, args jsonb, tags text[]
) returns boolean
language sql immutable parallel safe
return ((filter).kind is null or kind = (filter).kind)
    and (((filter).throttle is null or throttle = (filter).throttle) and ((filter).key is null or key = (filter).key)
        or admission_lane = lane)
    and ((filter).tenant is null or tenant = (filter).tenant)
    and ((filter).created_after is null or created_at >= (filter).created_after)
    and ((filter).created_before is null or created_at < (filter).created_before)
    and flyball.fits_search((filter).search, kind, tenant, group_id, traceparent, unique_key, args, tags);

-- A path of a filter: comparisons of one path with one value, joined by && and ||. Nothing else,
-- because a comparison of two paths can take hours over one job, as can a regular expression.
create function flyball.read_args_path(what text, args_path text) returns jsonpath
language plpgsql immutable as $$
#variable_conflict use_variable
declare
    quoted  constant text := '"[^"\\\u0001-\u001f]*"';
    path    constant text := format('\$(\.([A-Za-z_][A-Za-z0-9_]*|%s)|\[(\*|0|[1-9][0-9]{0,5})\])*', quoted);
    value   constant text := format('(-?(0|[1-9][0-9]{0,17})(\.[0-9]{1,9})?|%s|true|false|null)', quoted);
    term    constant text := format('(%1$s *(==|!=|<>|<=|<|>=|>) *%2$s|%1$s starts with %3$s|exists *\(%1$s\))', path, value, quoted);
begin
    if args_path is null then
        return null;
    elsif octet_length(args_path) not between 1 and 500 then
        perform flyball.refuse(what, 'args_path', format('is %s bytes long; allowed are 1 to 500', octet_length(args_path)));
    elsif args_path !~ format('^%1$s( *(&&|\|\|) *%1$s)*$', term) then
        perform flyball.refuse(what, 'args_path', format('%s is not allowed; allowed are comparisons of a path with a value, joined by && and ||, '
            'such as $.customer.id == 17, $.items[*].sku starts with "A" and exists($.coupon)', to_json(left(args_path, 100))));
    end if;
    return args_path::jsonpath;
end $$;

-- The owners of the unique keys of jobs of no tenant: operators, schedules and roles.
create function flyball.usual_key_owners() returns text[]
language sql stable
return array['', 'cron'] || array(select 'role:' || p.role from flyball.producer p where p.tenant is null order by p.role limit 100);

-- Checks the values of a search.
create function flyball.read_search(
    what text, "group" bigint, error_like text, trace text, unique_key text, key_owners text[], args jsonb, args_path text,
    tags text[]
) returns flyball.job_search
language plpgsql stable as $$
#variable_conflict use_variable
declare
    search flyball.job_search;
begin
    if "group" < 1 then
        perform flyball.refuse(what, 'group', format('%s is not the number of a group; allowed are whole numbers from 1', "group"));
    elsif octet_length(error_like) > 500 or length(error_like) - length(replace(error_like, '%', '')) > 5 then
        perform flyball.refuse(what, 'error_like', 'is too long or has more than five %; allowed are patterns of LIKE up to 500 bytes with up to five %');
    elsif error_like ~ '(^|[^\\])(\\\\)*\\$' then
        perform flyball.refuse(what, 'error_like', 'ends with a lone backslash; write \\ for a backslash itself');
    elsif trace !~ '^([0-9a-f]{32}|[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2})$' then
        perform flyball.refuse(what, 'trace', format('%s is not the id of a trace; allowed are 32 hexadecimal digits, or a whole traceparent',
            to_json(left(trace, 64))));
    elsif octet_length(unique_key) not between 1 and 512 then
        perform flyball.refuse(what, 'unique_key', format('is %s bytes long; allowed are 1 to 512', octet_length(unique_key)));
    elsif cardinality(key_owners) > 1000 then
        perform flyball.refuse(what, 'key_owners', format('are %s; at most 1000 are allowed', cardinality(key_owners)));
    elsif jsonb_typeof(args) <> 'object' or args = '{}' then
        perform flyball.refuse(what, 'args', format('is %s; allowed is a JSON object with what the arguments must contain, such as {"customer": {"id": 17}}',
            case when args = '{}' then 'empty' else jsonb_typeof(args) end));
    elsif octet_length(args::text) > 2000 then
        perform flyball.refuse(what, 'args', format('is %s bytes long; at most 2000 are allowed', octet_length(args::text)));
    elsif cardinality(tags) not between 1 and 16 or array_position(tags, null) is not null then
        perform flyball.refuse(what, 'tags', format('has %s elements, or nulls; allowed are 1 to 16 texts', cardinality(tags)));
    end if;
    search."group" := "group";
    search.error_like := error_like;
    search.trace := case when length(trace) = 32 then trace else substr(trace, 4, 32) end;
    search.unique_key := unique_key;
    if unique_key is not null then
        search.key_owners := flyball.usual_key_owners() || coalesce(key_owners, '{}');
    end if;
    search.args := args;
    search.args_path := flyball.read_args_path(what, args_path);
    search.tags := tags;
    return search;
end $$;

-- Reads a filter from JSON.
create function flyball.read_filter(what text, filter jsonb, tenant text) returns flyball.job_filter
language plpgsql stable as $$
#variable_conflict use_variable
declare
    known   constant text[] := array['state', 'kind', 'throttle', 'key', 'tenant', 'group', 'error_like', 'trace', 'unique_key',
        'key_owners', 'args', 'args_path', 'tags', 'created_after', 'created_before'];
    words   constant text[] := array['scheduled', 'ready', 'running', 'retryable', 'completed', 'cancelled', 'dead', 'ended'];
    other   text;
    result  flyball.job_filter;
    field   text;
begin
    if filter is null or jsonb_typeof(filter) <> 'object' then
        perform flyball.refuse(what, 'filter', format('must be a JSON object such as {"state": "dead"}, not %s', coalesce(jsonb_typeof(filter), 'null')));
    end if;
    select o.key into other from jsonb_object_keys(filter) as o(key) where o.key <> all(known) order by o.key limit 1;
    if other is not null then
        perform flyball.refuse(what, left(other, 60), format('is not a known filter; allowed are %s', array_to_string(known, ', ')));
    end if;
    foreach field in array array['state', 'kind', 'throttle', 'key', 'tenant', 'error_like', 'trace', 'unique_key',
        'args_path', 'created_after', 'created_before'] loop
        if jsonb_typeof(filter -> field) not in ('string', 'null') then
            perform flyball.refuse(what, field, format('must be a text, not %s', jsonb_typeof(filter -> field)));
        end if;
    end loop;
    if filter ->> 'state' <> all(words) then
        perform flyball.refuse(what, 'state', format('%s is not a state; allowed are %s', to_json(left(filter ->> 'state', 40)),
            array_to_string(words, ', ')));
    elsif jsonb_typeof(filter -> 'group') not in ('number', 'null') or filter ->> 'group' !~ '^[0-9]{1,16}$' then
        perform flyball.refuse(what, 'group', 'is not the number of a group; allowed are whole numbers from 1');
    elsif jsonb_typeof(filter -> 'key_owners') not in ('array', 'null') then
        perform flyball.refuse(what, 'key_owners', format('must be an array of texts, not %s', jsonb_typeof(filter -> 'key_owners')));
    elsif jsonb_typeof(filter -> 'tags') not in ('array', 'null') then
        perform flyball.refuse(what, 'tags', format('must be an array of texts, not %s', jsonb_typeof(filter -> 'tags')));
    elsif octet_length(filter ->> 'kind') > 128 then
        perform flyball.refuse(what, 'kind', format('is %s bytes long; at most 128 are allowed', octet_length(filter ->> 'kind')));
    elsif octet_length(filter ->> 'key') > 512 then
        perform flyball.refuse(what, 'key', format('is %s bytes long; at most 512 are allowed', octet_length(filter ->> 'key')));
    elsif octet_length(filter ->> 'throttle') > 128 then
        perform flyball.refuse(what, 'throttle', format('is %s bytes long; at most 128 are allowed', octet_length(filter ->> 'throttle')));
    end if;
    foreach field in array array['created_after', 'created_before'] loop
        begin
            if field = 'created_after' then
                result.created_after := (filter ->> field)::timestamptz;
            else
                result.created_before := (filter ->> field)::timestamptz;
            end if;
        exception when data_exception then
            perform flyball.refuse(what, field, format('%s is not a time; write it like 2026-11-20T14:00:00Z', to_json(left(filter ->> field, 60))));
        end;
    end loop;
    if result.created_after >= result.created_before then
        perform flyball.refuse(what, 'created_after', format('is %s, which is not before created_before, %s', result.created_after, result.created_before));
    end if;
    result.states := case filter ->> 'state' when 'ended' then array['completed', 'cancelled', 'dead'] else array[filter ->> 'state'] end;
    if filter ->> 'state' is null then
        result.states := null;
    end if;
    result.kind := filter ->> 'kind';
    result.throttle := filter ->> 'throttle';
    result.key := filter ->> 'key';
    result.tenant := coalesce(tenant, filter ->> 'tenant');
    result.search := flyball.read_search(what, (filter ->> 'group')::bigint, filter ->> 'error_like', filter ->> 'trace',
        filter ->> 'unique_key',
        case when jsonb_typeof(filter -> 'key_owners') = 'array' then array(select jsonb_array_elements_text(filter -> 'key_owners')) end, nullif(filter -> 'args', 'null'), filter ->> 'args_path',
        case when jsonb_typeof(filter -> 'tags') = 'array' then array(select jsonb_array_elements_text(filter -> 'tags')) end);
    return result;
end $$;

-- === Indexes =====================================================================================

-- Indexes over jobs that an operator has added: by the value at a path of the arguments, or by the
-- trace id where `path` is null. Made by `flyball index create`, without a lock that stops the queue.
create table flyball.job_index (
    name       text        primary key,
    path       text[]      unique,
    created_at timestamptz not null default now(),
    check (cardinality(path) between 1 and 8)
);

-- The index that finds jobs with a value of the filter, if there is one that is complete.
create function flyball.index_for(search flyball.job_search) returns flyball.job_index
language sql stable
begin atomic
    select i
    from flyball.job_index i
    join pg_catalog.pg_class c on c.relname = i.name and c.relnamespace = 'flyball'::regnamespace
    join pg_catalog.pg_index x on x.indexrelid = c.oid and x.indisvalid
    where case when i.path is null then (search).trace is not null
        else jsonb_typeof((search).args #> i.path) in ('string', 'number', 'boolean', 'null') end
    order by i.path is null desc, i.created_at
    limit 1;
end;

-- === Search ======================================================================================

-- The first id whose job may have been enqueued at `after`, and an id behind the last that was
-- enqueued before `before`. An id begins with the day of the enqueueing transaction, and within a day
-- ids ascend with the time at which they were drawn, which may be later than the beginning of the
-- transaction: the range leaves an hour for that.
create function flyball.id_range(after timestamptz, before timestamptz, out low bigint, out high bigint)
language sql stable
return (
    case when after is null or after < timestamptz '2020-01-02 00:00:00Z' then 0
        when after > timestamptz '2100-01-01 00:00:00Z' then 9007199254740992
        else greatest(flyball.day_of(after) << 38, flyball.id_at(after - interval '1 hour')) end,
    case when before is null or before > timestamptz '2100-01-01 00:00:00Z' then 9223372036854775807
        when before < timestamptz '2020-01-02 00:00:00Z' then 0
        else least((flyball.day_of(before) + 1) << 38, flyball.id_at(before + interval '1 hour')) end
);

-- Returns true if so few jobs of a day have all these tags that reading all of them takes little: by the
-- statistics, in which a frequent tag has its share; a day without any, or without its part of the index
-- of tags, is as large as its file.
create function flyball.are_rare(tags text[], day bigint) returns boolean
language sql stable
begin atomic
    select case
        when s.most_common_elems is null or not exists (
            select from pg_catalog.pg_index x join pg_catalog.pg_inherits h on h.inhrelid = x.indexrelid
            where x.indrelid = c.oid and h.inhparent = 'flyball.job_tags'::regclass
        ) then pg_catalog.pg_relation_size(c.oid) < 16 * 1024 * 1024
        else coalesce((
            select min(coalesce(s.most_common_elem_freqs[array_position(s.most_common_elems::text::text[], t.tag)], 0))
            from unnest(are_rare.tags) as t(tag)
        ), 0) * (1 - s.null_frac) * c.reltuples < 10000 end
    from pg_catalog.pg_class c
    left join pg_catalog.pg_stats s on s.schemaname = 'flyball' and s.tablename = c.relname and s.attname = 'tags'
    where c.relnamespace = 'flyball'::regnamespace and c.relname = 'job_' || are_rare.day;
end;

-- The newest jobs of a range of ids that have tags, by the index of tags, of which only a bitmap can be
-- made: all with the tags are read.
create function flyball.tagged(filter flyball.job_filter, lane bigint, low bigint, high bigint, most int) returns bigint[]
language plpgsql stable
set enable_seqscan = off set enable_indexscan = off set enable_bitmapscan = on set jit = off set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_variable
declare
    tags constant text[] := (filter.search).tags;
begin
    return array(
        select j.id
        from flyball.job j
        where j.tags @> tags and j.tags is not null and j.id >= low and j.id < high
            and flyball.fits_filter(filter, lane, j.kind, j.throttle, j.key, j.admission_lane, j.tenant, j.created_at,
                j.group_id, j.traceparent, j.unique_key, j.args, j.tags)
        order by j.id desc
        limit most
    );
end $$;

-- A page of jobs, newest first: a walk from the newest to the oldest that reads a bounded number of
-- rows at a time.
--
-- No index serves every filter, and one that did would not be worth its cost on the path of enqueue.
-- A page is therefore found by walking back over the rows that can hold it: the small table of a rare
-- state, the index prefix of a lane, the jobs of a tenant or a group, those with the value of an added
-- index, or the jobs themselves. A walk ends when the page is full or after 25 ms; then the page may be
-- short, or empty, and `next` says where to go on. Null means that no older job matches.
--
-- Steps over arguments begin small and grow while they are fast, because one job may have 256 KiB of
-- them; so do those over unique keys, of which each job may take a thousand digests.
create function flyball.find_jobs(filter flyball.job_filter, before bigint, max_jobs int, out jobs flyball.listed_job[], out next bigint)
language plpgsql volatile
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_variable
declare
    probes_max constant int := 1000;
    walk_time  constant interval := '25 ms';
    search     constant flyball.job_search := filter.search;
    state      constant text := case when cardinality(filter.states) = 1 then filter.states[1] end;
    lane       constant bigint := flyball.lane_of(filter.throttle, filter.key);
    is_dear    constant boolean := flyball.is_dear(search);
    error_like constant text := search.error_like;
    begun      constant timestamptz := clock_timestamp();
    source     text;
    added      flyball.job_index;
    lookup     text;
    wanted     bigint;
    low        bigint;
    high       bigint;
    rows_max   int := 10000;
    rows       int;
    step_begun timestamptz;
    walked     bigint;
    walked_to  bigint;
    hits       bigint[];
    listed     flyball.listed_job[];
    is_first   boolean := true;
    day_low    bigint;
    first_day  bigint;
begin
    jobs := '{}';
    select r.low, least(r.high, coalesce(before, 9223372036854775807)) into low, high
    from flyball.id_range(filter.created_after, filter.created_before) r;
    -- An added index has the jobs of all tenants side by side, and its positions would reveal them.
    if filter.tenant is null and (search.args is not null or search.trace is not null) then
        added := flyball.index_for(search);
    end if;
    if filter.tenant is not null and search."group" is not null
        and exists (select from flyball.job_group g where g.id = search."group" and g.tenant <> filter.tenant)
    then
        return;
    end if;
    source := case
        when added.name is not null then 'index'
        when search."group" is not null then 'group'
        when filter.tenant <> '' then 'tenant'
        when state = 'ready' and lane is not null then 'lane'
        when state in ('running', 'dead') then state
        when state in ('scheduled', 'retryable') then 'scheduled'
        else 'job' end;
    if source in ('lane', 'running', 'dead', 'scheduled') then
        rows_max := probes_max;
    end if;
    if source = 'index' then
        -- The expressions are those of the index, so they are part of the text. A range instead of an
        -- equality leaves the planner no other index that has the order.
        wanted := case when added.path is null then 0 else jsonb_hash_extended(search.args #> added.path, 0) end;
        lookup := case when added.path is null
            then $q$select j.id, j as job from flyball.job j
                where substr(j.traceparent, 4, 32) >= $1 and (substr(j.traceparent, 4, 32), j.id) < ($1, $3) and j.id >= $4
                order by substr(j.traceparent, 4, 32) desc, j.id desc limit $5$q$
            else format($q$select j.id, j as job from flyball.job j
                where jsonb_hash_extended(j.args #> %1$L::text[], 0) >= $2
                    and (jsonb_hash_extended(j.args #> %1$L::text[], 0), j.id) < ($2, $3) and j.id >= $4
                order by jsonb_hash_extended(j.args #> %1$L::text[], 0) desc, j.id desc limit $5$q$, added.path) end;
        lookup := format('
            select count(*), min(w.id), array_agg(w.id order by w.id desc) filter (where
                flyball.fits_filter($6, $7, (w.job).kind, (w.job).throttle, (w.job).key, (w.job).admission_lane, (w.job).tenant,
                    (w.job).created_at, (w.job).group_id, (w.job).traceparent, (w.job).unique_key, (w.job).args, (w.job).tags))
            from (%s) w', lookup);
    end if;
    -- Small steps come first, because most pages are full after one of them.
    rows := case when is_dear then 50 else least(greatest(max_jobs * 4, 400), rows_max) end;
    if search is null and coalesce(filter.kind, filter.throttle, filter.key, filter.states::text, filter.created_after::text,
        filter.created_before::text) is null
    then
        rows := max_jobs;
    end if;
    loop
        step_begun := clock_timestamp();
        -- A tag that the newest jobs do not have is looked up, a day at a time.
        if source in ('job', 'tenant') and search.tags is not null and not is_first and flyball.are_rare(search.tags, (high - 1) >> 38) then
            first_day := coalesce(first_day, (
                select min(substr(c.relname, 5)::bigint) from pg_catalog.pg_inherits i join pg_catalog.pg_class c on c.oid = i.inhrelid
                where i.inhparent = 'flyball.job'::regclass));
            day_low := greatest(low, ((high - 1) >> 38) << 38);
            hits := flyball.tagged(filter, lane, day_low, high, probes_max + 1);
            walked := case when day_low > greatest(low, first_day << 38) then rows else 0 end;
            walked_to := day_low;
        elsif source = 'job' then
            select count(*), min(w.id), array_agg(w.id order by w.id desc) filter (where w.hit) into walked, walked_to, hits
            from (
                select j.id, flyball.fits_filter(filter, lane, j.kind, j.throttle, j.key, j.admission_lane, j.tenant, j.created_at,
                    j.group_id, j.traceparent, j.unique_key, j.args, j.tags) as hit
                from flyball.job j
                where j.id < high and j.id >= low
                order by j.id desc
                limit rows
            ) w;
        elsif source = 'tenant' then
            -- The positions are jobs of the tenant, so they reveal nothing about those of others.
            select count(*), min(w.id), array_agg(w.id order by w.id desc) filter (where w.hit) into walked, walked_to, hits
            from (
                select j.id, flyball.fits_filter(filter, lane, j.kind, j.throttle, j.key, j.admission_lane, j.tenant, j.created_at,
                    j.group_id, j.traceparent, j.unique_key, j.args, j.tags) as hit
                from flyball.job j
                where j.tenant = filter.tenant and j.tenant <> '' and j.id < high and j.id >= low
                order by j.id desc
                limit rows
            ) w;
        elsif source = 'group' then
            select count(*), min(w.id), array_agg(w.id order by w.id desc) filter (where w.hit) into walked, walked_to, hits
            from (
                select j.id, flyball.fits_filter(filter, lane, j.kind, j.throttle, j.key, j.admission_lane, j.tenant, j.created_at,
                    j.group_id, j.traceparent, j.unique_key, j.args, j.tags) as hit
                from flyball.job j
                where j.group_id = search."group" and j.id < high and j.id >= low
                order by j.id desc
                limit rows
            ) w;
        elsif source = 'index' then
            execute lookup into walked, walked_to, hits using search.trace, wanted, high, low, rows, filter, lane;
        else
            -- The rows of a state's own table, each with its job.
            select count(*), min(w.job_id), array_agg(w.job_id order by w.job_id desc) filter (where w.hit) into walked, walked_to, hits
            from (
                select h.job_id, flyball.fits_filter(filter, lane, j.kind, j.throttle, j.key, j.admission_lane, j.tenant, j.created_at,
                    j.group_id, j.traceparent, j.unique_key, j.args, j.tags) as hit
                from (
                    (select l.job_id from flyball.lease l
                     where source = 'running' and l.job_id < high and l.job_id >= low order by l.job_id desc limit rows)
                    union all
                    (select s.job_id from flyball.scheduled s
                     where source = 'scheduled' and s.job_id < high and s.job_id >= low order by s.job_id desc limit rows)
                    union all
                    (select d.job_id from flyball.dead d
                     where source = 'dead' and d.job_id < high and d.job_id >= low order by d.job_id desc limit rows)
                    union all
                    (select r.job_id
                     from generate_series(0, 3) p
                     cross join lateral (
                         select q.job_id
                         from flyball.ready q
                         where source = 'lane' and q.lane_id = lane and q.priority = p::smallint and q.job_id < high and q.job_id >= low
                         order by q.lane_id desc, q.priority desc, q.job_id desc
                         limit rows
                     ) r
                     order by r.job_id desc
                     limit rows)
                ) h
                left join lateral (select * from flyball.job where id = h.job_id limit 1) j on true
            ) w;
        end if;
        hits := coalesce(hits, '{}');
        next := case when cardinality(hits) > probes_max then hits[probes_max] when walked >= rows then walked_to end;

        -- Laterals with a limit are run once per row and in order, so that the look at the states stops
        -- as soon as the page is full; the planner can neither hash a whole table for them nor sort.
        listed := array(
            select row(m.id, m.kind, m.throttle, m.key, m.tenant, m.group_id, m.priority, m.max_attempts, m.cost, m.created_at, s.run_at,
                coalesce(l.attempt, r.attempt, s.attempt, d.attempt, a.attempt, 0::smallint), coalesce(d.error, a.error),
                t.state, m.tags, case when t.state in ('completed', 'cancelled', 'dead') then coalesce(d.died_at, a.finished_at) end)::flyball.listed_job
            from unnest(hits[1:probes_max]) with ordinality as w(id, n)
            cross join lateral (
                select j.id, j.kind, j.throttle, j.key, j.tenant, j.group_id, j.priority, j.max_attempts, j.cost, j.created_at, j.lane_id,
                    j.admission_lane, j.tags
                from flyball.job j where j.id = w.id limit 1
            ) m
            left join lateral (
                select h.attempt from flyball.lease h where h.job_id = m.id limit 1
            ) l on true
            left join lateral (
                select h.attempt from flyball.ready h
                where h.lane_id in (m.lane_id, m.admission_lane) and h.priority = m.priority and h.job_id = m.id
                limit 1
            ) r on true
            left join lateral (
                select h.attempt, case when h.turn >= -4 or h.run_at > now() then h.run_at end as run_at, h.retry
                from flyball.scheduled h where h.job_id = m.id limit 1
            ) s on true
            left join lateral (
                select h.attempt, h.error, h.died_at from flyball.dead h where h.job_id = m.id limit 1
            ) d on true
            left join lateral (
                select h.attempt, h.outcome, h.error, h.finished_at from flyball.attempt h where h.job_id = m.id order by h.finished_at desc limit 1
            ) a on true
            cross join lateral (
                select case when l.attempt is not null then 'running'
                    when r.attempt is not null then 'ready'
                    when s.attempt is not null then case when s.retry then 'retryable' else 'scheduled' end
                    when d.attempt is not null then 'dead'
                    when a.outcome in ('cancelled', 'dropped') then 'cancelled'
                    else 'completed' end as state
            ) t
            where (filter.states is null or t.state = any(filter.states))
                and (error_like is null or case when d.attempt is not null then coalesce(d.error, '') else a.error end like error_like)
            limit max_jobs - cardinality(jobs)
        );
        jobs := jobs || listed;
        if cardinality(jobs) >= max_jobs then
            next := jobs[max_jobs].id;
            return;
        elsif next is null or clock_timestamp() > begun + walk_time then
            return;
        end if;
        high := next;
        is_first := false;
        -- Grows while a step is fast, so that one step takes a few milliseconds.
        rows := case
            when not is_dear then least(rows * 5, rows_max)
            when clock_timestamp() < step_begun + interval '4 ms' then least(rows * 4, rows_max)
            when clock_timestamp() > step_begun + interval '12 ms' then greatest(rows / 4, 10)
            else rows end;
    end loop;
end $$;

-- === Many jobs by a search =======================================================================

-- A search as the audit log tells it: without values of arguments and keys, which may be addresses.
create function flyball.search_text(search flyball.job_search) returns jsonb
language sql stable
return jsonb_strip_nulls(jsonb_build_object('group', (search)."group", 'error_like', (search).error_like, 'trace', (search).trace,
    'unique_key', case when (search).unique_key is not null then '***' end, 'args', case when (search).args is not null then '***' end,
    'args_path', case when (search).args_path is not null then '***' end, 'tags', to_jsonb((search).tags)));

alter function flyball.cancel_walk rename to cancel_walk_before_20;
alter function flyball.cancel_jobs rename to cancel_jobs_before_20;
alter function flyball.dead_walk rename to dead_walk_before_20;
alter function flyball.requeue_dead rename to requeue_dead_before_20;
alter function flyball.discard_dead rename to discard_dead_before_20;

-- The walk of cancel_jobs and purge_lane: ready jobs in the order of their lanes, then scheduled
-- ones, then running ones. The walked rows are materialized in the order of an index, and a lateral
-- with a limit runs once per row in that order: so `matched` stops at its limit without sorting,
-- and its last row is where the next call continues.
create function flyball.cancel_walk(
    what text, action text, subject text, kind text, throttle text, key text, states text[],
    created_after timestamptz, created_before timestamptz, max_jobs int, dry_run boolean, start text, by text, why text, tenant text,
    search flyball.job_search default null,
    out cancelled bigint, out requested bigint, out next text)
language plpgsql volatile set enable_seqscan = off set jit = off as $$
#variable_conflict use_column
declare
    -- Rows read per call, so that a call ends within a fraction of a second with any filter.
    walk_rows   constant bigint := case when flyball.is_dear(search) then 1000 else 10000 end;
    shape       constant text := case when cancel_walk.tenant is not null then '^(jobs/[0-9]{1,18})(#[0-9]{1,18})?$' else
        '^((ready/-?[0-9]{1,19}/[0-9]/[0-9]{1,18})|(scheduled/-?[0-9]{1,19}/[0-9]{1,18})|(running/[0-9]{1,18}))(#[0-9]{1,18})?$' end;
    lane_low    bigint := -9223372036854775808;
    lane_high   bigint := 9223372036854775807;
    id_low      bigint := 0;
    id_high     bigint := 9007199254740992;
    filter      constant flyball.job_filter := row(null, kind, throttle, key, tenant, created_after, created_before, search);
    lane        constant bigint := flyball.lane_of(throttle, key);
    -- False if the rows of the states' own tables tell all.
    by_job      constant boolean := kind is not null or created_after is not null or created_before is not null
        or (throttle is null) <> (key is null) or not (search is null);
    error_like  constant text := search.error_like;
    phase       text := 'ready';
    part        text[];
    at_lane     bigint;
    at_priority smallint := -1;
    at_id       bigint := 0;
    operation   bigint;
    rows_left   bigint := walk_rows;
    jobs_left   bigint := max_jobs;
    result      record;
begin
    perform flyball.check_walk(what, max_jobs, start, shape, created_after, created_before, 'created_after', 'created_before');
    cancelled := 0;
    requested := 0;
    if lane is not null then
        lane_low := lane;
        lane_high := lane;
    end if;
    -- An id begins with its day.
    if created_after > timestamptz '2020-01-01 00:00:00Z' then
        id_low := least(flyball.day_of(least(created_after, timestamptz '2100-01-01 00:00:00Z')), 32000) << 38;
    end if;
    if created_before < timestamptz '2100-01-01 00:00:00Z' then
        id_high := (greatest(flyball.day_of(greatest(created_before, timestamptz '2020-01-01 00:00:00Z')), 0) + 1) << 38;
    end if;
    at_lane := lane_low;
    if start is not null then
        operation := nullif(split_part(start, '#', 2), '')::bigint;
        part := string_to_array(split_part(start, '#', 1), '/');
        phase := part[1];
        at_id := part[array_length(part, 1)]::bigint;
        if phase in ('ready', 'scheduled') then
            at_lane := part[2]::bigint;
        end if;
        if phase = 'ready' then
            at_priority := part[3]::smallint;
        end if;
        -- The position may come from another walk: if it is before the named lane, the walk begins
        -- at that lane.
        if at_lane < lane_low then
            at_lane := lane_low;
            at_priority := -1;
            at_id := 0;
        end if;
    end if;

    if cancel_walk.tenant is not null then
        phase := 'jobs';
    end if;

    loop
        exit when phase is null or rows_left <= 0 or jobs_left <= 0;
        if phase = 'jobs' then
            -- A tenant's jobs in any state by their ids: the position tells nothing about the jobs
            -- of others.
            with walk as materialized (
                select j.id, j.lane_id, j.admission_lane, j.priority,
                    flyball.fits_filter(filter, lane, j.kind, j.throttle, j.key, j.admission_lane, j.tenant, j.created_at,
                        j.group_id, j.traceparent, j.unique_key, j.args, j.tags) as fits
                from flyball.job j
                where j.tenant = cancel_walk.tenant and j.tenant <> '' and j.id > at_id and j.id >= id_low and j.id < id_high
                order by j.id
                limit rows_left
            ),
            matched as materialized (
                select w.id, r.tid as ready_at, s.job_id as scheduled, l.job_id as running
                from walk w
                left join lateral (
                    select q.ctid as tid from flyball.ready q
                    where q.lane_id in (w.lane_id, w.admission_lane) and q.priority = w.priority and q.job_id = w.id limit 1
                ) r on true
                left join lateral (select h.job_id, h.retry from flyball.scheduled h where h.job_id = w.id limit 1) s on true
                left join lateral (select h.job_id from flyball.lease h where h.job_id = w.id limit 1) l on true
                left join lateral (
                    select a.error from flyball.attempt a where error_like is not null and a.job_id = w.id
                    order by a.finished_at desc limit 1
                ) e on true
                where w.fits and (error_like is null or e.error like error_like)
                    and (r.tid is not null and 'ready' = any(states)
                        or s.job_id is not null and case when s.retry then 'retryable' else 'scheduled' end = any(states)
                        or l.job_id is not null and 'running' = any(states))
                limit jobs_left
            ),
            was_ready as (
                delete from flyball.ready r
                where not dry_run and r.ctid = any(array(select m.ready_at from matched m where m.ready_at is not null))
                returning r.job_id, r.attempt, r.holds_unique
            ),
            was_scheduled as (
                delete from flyball.scheduled s
                where not dry_run and s.job_id = any(array(select m.scheduled from matched m))
                returning s.job_id, s.attempt, s.holds_unique
            ),
            removed as (
                select * from was_ready union all select * from was_scheduled
            ),
            history as (
                insert into flyball.attempt (job_id, attempt, outcome)
                select t.job_id, t.attempt, 'cancelled' from removed t
            ),
            released_keys as (
                delete from flyball.unique_holder
                where digest = any(array(
                    select u.digest from flyball.unique_holder u
                    where u.job_id = any(array(select t.job_id from removed t where t.holds_unique)) and u.expires_at is null
                    for update skip locked
                ))
            ),
            cancel_requests as (
                insert into flyball.cancel (job_id)
                select m.running from matched m where not dry_run and m.running is not null
                on conflict on constraint cancel_pkey do nothing
            )
            select (select count(*) from walk) as walked, (select count(*) from matched) as matched, (select count(*) from removed) as removed,
                (select count(*) from matched m where m.running is not null) as requested,
                case when (select count(*) from matched) = jobs_left then (select max(m.id) from matched m)
                    else (select max(w.id) from walk w) end as job_id
            into result;
            cancelled := cancelled + case when dry_run then result.matched - result.requested else result.removed end;
            requested := requested + result.requested;
        elsif phase = 'ready' and 'ready' = any(states) then
            with walk as materialized (
                select r.ctid as tid, r.lane_id, r.priority, r.job_id, row_number() over () as place
                from (
                    select q.ctid, q.lane_id, q.priority, q.job_id
                    from flyball.ready q
                    where (q.lane_id, q.priority, q.job_id) > (at_lane, at_priority, at_id)
                        and q.lane_id >= lane_low and q.lane_id <= lane_high
                    order by q.lane_id, q.priority, q.job_id
                    limit rows_left
                ) r
            ),
            matched as materialized (
                select w.*
                from walk w
                left join lateral (
                    select flyball.fits_filter(filter, lane, j.kind, j.throttle, j.key, j.admission_lane, j.tenant, j.created_at,
                        j.group_id, j.traceparent, j.unique_key, j.args, j.tags) as fits
                    from flyball.job j where by_job and j.id = w.job_id limit 1
                ) j on true
                left join lateral (
                    select a.error from flyball.attempt a where error_like is not null and a.job_id = w.job_id
                    order by a.finished_at desc limit 1
                ) e on true
                where w.job_id >= id_low and w.job_id < id_high
                    and (error_like is null or e.error like error_like)
                    and (not by_job or j.fits)
                limit jobs_left
            ),
            removed as (
                delete from flyball.ready r
                where not dry_run and r.ctid = any(array(select m.tid from matched m))
                returning r.job_id, r.attempt, r.holds_unique
            ),
            history as (
                insert into flyball.attempt (job_id, attempt, outcome)
                select t.job_id, t.attempt, 'cancelled' from removed t
            ),
            released_keys as (
                delete from flyball.unique_holder
                where digest = any(array(
                    select u.digest from flyball.unique_holder u
                    where u.job_id = any(array(select t.job_id from removed t where t.holds_unique)) and u.expires_at is null
                    for update skip locked
                ))
            )
            select (select count(*) from walk) as walked, (select count(*) from matched) as matched, (select count(*) from removed) as removed,
                last.lane_id, last.priority, last.job_id
            from (select 1) one
            left join lateral (
                select w.lane_id, w.priority, w.job_id from walk w
                where w.place <= case when (select count(*) from matched) = jobs_left then (select max(m.place) from matched m) else rows_left end
                order by w.place desc limit 1
            ) last on true
            into result;
            cancelled := cancelled + case when dry_run then result.matched else result.removed end;
            at_lane := result.lane_id;
            at_priority := result.priority;
        elsif phase = 'scheduled' and states && array['scheduled', 'retryable'] then
            with walk as materialized (
                select s.lane_id, s.job_id, s.retry, row_number() over () as place
                from (
                    select q.lane_id, q.job_id, q.retry
                    from flyball.scheduled q
                    where (q.lane_id, q.job_id) > (at_lane, at_id)
                        and q.lane_id >= lane_low and q.lane_id <= lane_high
                    order by q.lane_id, q.job_id
                    limit rows_left
                ) s
            ),
            matched as materialized (
                select w.*
                from walk w
                left join lateral (
                    select flyball.fits_filter(filter, lane, j.kind, j.throttle, j.key, j.admission_lane, j.tenant, j.created_at,
                        j.group_id, j.traceparent, j.unique_key, j.args, j.tags) as fits
                    from flyball.job j where by_job and j.id = w.job_id limit 1
                ) j on true
                left join lateral (
                    select a.error from flyball.attempt a where error_like is not null and a.job_id = w.job_id
                    order by a.finished_at desc limit 1
                ) e on true
                where w.job_id >= id_low and w.job_id < id_high and case when w.retry then 'retryable' else 'scheduled' end = any(states)
                    and (error_like is null or e.error like error_like)
                    and (not by_job or j.fits)
                limit jobs_left
            ),
            removed as (
                delete from flyball.scheduled s
                where not dry_run and s.job_id = any(array(select m.job_id from matched m))
                returning s.job_id, s.attempt, s.holds_unique
            ),
            history as (
                insert into flyball.attempt (job_id, attempt, outcome)
                select t.job_id, t.attempt, 'cancelled' from removed t
            ),
            released_keys as (
                delete from flyball.unique_holder
                where digest = any(array(
                    select u.digest from flyball.unique_holder u
                    where u.job_id = any(array(select t.job_id from removed t where t.holds_unique)) and u.expires_at is null
                    for update skip locked
                ))
            )
            select (select count(*) from walk) as walked, (select count(*) from matched) as matched, (select count(*) from removed) as removed,
                last.lane_id, 0::smallint as priority, last.job_id
            from (select 1) one
            left join lateral (
                select w.lane_id, w.job_id from walk w
                where w.place <= case when (select count(*) from matched) = jobs_left then (select max(m.place) from matched m) else rows_left end
                order by w.place desc limit 1
            ) last on true
            into result;
            cancelled := cancelled + case when dry_run then result.matched else result.removed end;
            at_lane := result.lane_id;
        elsif phase = 'running' and 'running' = any(states) then
            with walk as materialized (
                select l.job_id, l.lane_id
                from flyball.lease l
                where l.job_id > at_id
                order by l.job_id
                limit rows_left
            ),
            matched as materialized (
                select w.*
                from walk w
                left join lateral (
                    select flyball.fits_filter(filter, lane, j.kind, j.throttle, j.key, j.admission_lane, j.tenant, j.created_at,
                        j.group_id, j.traceparent, j.unique_key, j.args, j.tags) as fits
                    from flyball.job j where by_job and j.id = w.job_id limit 1
                ) j on true
                left join lateral (
                    select a.error from flyball.attempt a where error_like is not null and a.job_id = w.job_id
                    order by a.finished_at desc limit 1
                ) e on true
                where w.job_id >= id_low and w.job_id < id_high and w.lane_id between lane_low and lane_high
                    and (error_like is null or e.error like error_like)
                    and (not by_job or j.fits)
                limit jobs_left
            ),
            cancel_requests as (
                insert into flyball.cancel (job_id)
                select m.job_id from matched m where not dry_run
                on conflict on constraint cancel_pkey do nothing
            )
            select (select count(*) from walk) as walked, (select count(*) from matched) as matched, 0::bigint as removed,
                0::bigint as lane_id, 0::smallint as priority,
                case when (select count(*) from matched) = jobs_left then (select max(m.job_id) from matched m)
                    else (select max(w.job_id) from walk w) end as job_id
            into result;
            requested := requested + result.matched;
        else
            select 0::bigint as walked, 0::bigint as matched, 0::bigint as removed, null::bigint as lane_id, null::smallint as priority,
                null::bigint as job_id into result;
        end if;

        if result.walked < rows_left and result.matched < jobs_left then
            phase := case phase when 'ready' then 'scheduled' when 'scheduled' then 'running' end;
            at_lane := lane_low;
            at_id := 0;
        else
            at_id := result.job_id;
        end if;
        rows_left := rows_left - result.walked;
        jobs_left := jobs_left - result.matched;
    end loop;

    if not dry_run and cancelled + requested > 0 then
        operation := flyball.write_audit(operation, flyball.audit_actor(by), action, subject, null,
            jsonb_build_object('cancelled', cancelled, 'requested', requested, 'filter', jsonb_strip_nulls(jsonb_build_object(
                'kind', kind, 'throttle', throttle, 'key', key, 'states', to_jsonb(states), 'created_after', created_after,
                'created_before', created_before)) || flyball.search_text(search)), why);
    end if;
    next := case phase
        when 'ready' then format('ready/%s/%s/%s', at_lane, at_priority, at_id)
        when 'scheduled' then format('scheduled/%s/%s', at_lane, at_id)
        when 'running' then format('running/%s', at_id)
        when 'jobs' then format('jobs/%s', at_id) end || coalesce('#' || operation, '');
end $$;

-- Cancels up to max_jobs jobs that match the filter: waiting ones at once, running ones are asked
-- to stop. While `next` is not null there may be more: call again with `start` set to it. With
-- dry_run nothing changes and the numbers say what would change.
create function flyball.cancel_jobs(
    kind text default null, throttle text default null, key text default null, state text default null,
    created_after timestamptz default null, created_before timestamptz default null,
    max_jobs int default 1000, dry_run boolean default false, start text default null, by text default null, why text default '',
    tenant text default null,
    "group" bigint default null, error_like text default null, trace text default null, unique_key text default null,
    key_owners text[] default null, args jsonb default null, args_path text default null, tags text[] default null,
    out cancelled bigint, out requested bigint, out next text)
language plpgsql volatile as $$
declare
    known  constant text[] := array['ready', 'scheduled', 'retryable', 'running'];
    search flyball.job_search;
begin
    if coalesce(kind, throttle, key, state, created_after::text, created_before::text, "group"::text, error_like, trace, unique_key, args::text,
        args_path, tags::text) is null then
        perform flyball.refuse('cancel_jobs', 'state',
            'is missing, as is every other filter; name at least one of kind, throttle, key, state, created_after, created_before, '
            'group, error_like, trace, unique_key, args, args_path, tags');
    elsif state <> all(known) then
        perform flyball.refuse('cancel_jobs', 'state', format('%s is not a state that can be cancelled; allowed are %s',
            to_json(left(state, 40)), array_to_string(known, ', ')));
    end if;
    search := flyball.read_search('cancel_jobs', "group", error_like, trace, unique_key, key_owners, args, args_path, tags);
    select w.cancelled, w.requested, w.next into cancel_jobs.cancelled, cancel_jobs.requested, cancel_jobs.next
    from flyball.cancel_walk('cancel_jobs', 'jobs.cancel', coalesce(throttle || coalesce('/' || nullif(key, ''), ''), kind, 'jobs'), kind, throttle, key,
        case when state is null then known else array[state] end, created_after, created_before, max_jobs, coalesce(dry_run, false),
        start, by, why, cancel_jobs.tenant, search) w;
end $$;

-- The walk of requeue_dead and discard_dead, the oldest job first.
create function flyball.dead_walk(
    what text, action text, discard boolean, kind text, throttle text, key text, error_like text,
    died_after timestamptz, died_before timestamptz, keep_attempts boolean, max_jobs int, dry_run boolean, start text, by text, why text,
    tenant text,
    search flyball.job_search default null,
    out jobs bigint, out next text)
language plpgsql volatile set enable_seqscan = off set jit = off as $$
#variable_conflict use_column
declare
    filter    constant flyball.job_filter := row(null, kind, throttle, key, tenant, null, null, search);
    lane      constant bigint := flyball.lane_of(throttle, key);
    -- False if the rows of dead letters tell all.
    by_job    constant boolean := kind is not null or (throttle is null) <> (key is null) or not (search is null);
    walk_rows constant bigint := case when flyball.is_dear(search) then 1000 else 10000 end;
    at_id     bigint := 0;
    operation bigint;
    result    record;
begin
    perform flyball.check_walk(what, max_jobs, start, '^dead/[0-9]{1,18}(#[0-9]{1,18})?$', died_after, died_before, 'died_after', 'died_before');
    perform flyball.read_search(what, null, error_like, null, null, null, null, null, null);
    if not by_job and coalesce(throttle, error_like, died_after::text, died_before::text) is null then
        perform flyball.refuse(what, 'error_like', 'is missing, as is every other filter; name at least one of kind, throttle, key, '
            'error_like, died_after, died_before, group, trace, unique_key, args, args_path, tags; ''%'' names every error');
    end if;
    if start is not null then
        operation := nullif(split_part(start, '#', 2), '')::bigint;
        at_id := split_part(split_part(start, '#', 1), '/', 2)::bigint;
    end if;

    -- All dead jobs, or those of a tenant among its jobs: the position tells nothing about the jobs
    -- of others.
    with walk as materialized (
        (select d.job_id, d.lane_id, d.died_at, d.error
         from flyball.dead d
         where dead_walk.tenant is null and d.job_id > at_id
         order by d.job_id
         limit walk_rows)
        union all
        (select j.id, d.lane_id, d.died_at, d.error
         from (
             select o.id from flyball.job o
             where o.tenant = dead_walk.tenant and o.tenant <> '' and o.id > at_id
             order by o.id
             limit walk_rows
         ) j
         left join lateral (select h.lane_id, h.died_at, h.error from flyball.dead h where h.job_id = j.id limit 1) d on true)
    ),
    matched as materialized (
        select w.job_id
        from walk w
        left join lateral (
            select flyball.fits_filter(filter, lane, j.kind, j.throttle, j.key, j.admission_lane, j.tenant, j.created_at,
                j.group_id, j.traceparent, j.unique_key, j.args, j.tags) as fits
            from flyball.job j where by_job and j.id = w.job_id limit 1
        ) j on true
        where w.lane_id is not null and (lane is null or w.lane_id = lane)
            and (died_after is null or w.died_at >= died_after) and (died_before is null or w.died_at < died_before)
            and (error_like is null or coalesce(w.error, '') like error_like)
            and (not by_job or j.fits)
        limit max_jobs
    ),
    removed as (
        delete from flyball.dead d
        where not dry_run and d.job_id = any(array(select m.job_id from matched m))
        returning d.*
    ),
    held as materialized (
        select unnest(flyball.lock_unique_keys(array(select t.job_id from removed t))) as job_id
    ),
    requeued as (
        insert into flyball.ready (lane_id, priority, job_id, attempt, cost, holds_unique)
        select t.lane_id, t.priority, t.job_id, case when keep_attempts then t.attempt else 0 end, t.cost,
            t.job_id in (select h.job_id from held h)
        from removed t
        where not discard
        on conflict do nothing
    ),
    history as (
        insert into flyball.attempt (job_id, attempt, outcome)
        select t.job_id, t.attempt, 'cancelled' from removed t where discard
    )
    select (select count(*) from walk) as walked, (select count(*) from matched) as matched, (select count(*) from removed) as removed,
        (select max(w.job_id) from walk w) as walked_to, (select max(m.job_id) from matched m) as matched_to,
        (select left(string_agg(distinct t.lane_id::text, ','), 7900) from removed t) as lanes
    into result;

    jobs := case when dry_run then result.matched else result.removed end;
    if not dry_run and jobs > 0 then
        operation := flyball.write_audit(operation, flyball.audit_actor(by), action,
            coalesce(throttle || coalesce('/' || nullif(key, ''), ''), kind, 'dead letters'), null,
            jsonb_build_object('jobs', jobs, 'filter', jsonb_strip_nulls(jsonb_build_object('kind', kind, 'throttle', throttle, 'key', key,
                'error_like', error_like, 'died_after', died_after, 'died_before', died_before,
                'keep_attempts', case when not discard then keep_attempts end)) || flyball.search_text(search)), why);
        if not discard then
            -- At most as many lanes as a notification can carry; the next sweep finds the others.
            perform pg_notify('flyball', result.lanes);
        end if;
    end if;
    next := case when result.matched = max_jobs then 'dead/' || result.matched_to
        when result.walked = walk_rows then 'dead/' || result.walked_to end || coalesce('#' || operation, '');
end $$;

-- Makes up to max_jobs dead jobs ready again, each with its unique key if the key is free.
-- error_like is a pattern of LIKE: 'timeout%' begins with, '%timeout%' contains.
create function flyball.requeue_dead(
    kind text default null, throttle text default null, key text default null, error_like text default null,
    max_jobs int default 1000, died_after timestamptz default null, died_before timestamptz default null,
    keep_attempts boolean default false, dry_run boolean default false, start text default null,
    by text default null, why text default '', tenant text default null,
    "group" bigint default null, trace text default null, unique_key text default null, key_owners text[] default null,
    args jsonb default null, args_path text default null, tags text[] default null,
    out jobs bigint, out next text)
language sql volatile as $$
    select w.jobs, w.next
    from flyball.dead_walk('requeue_dead', 'dead.requeue', false, kind, throttle, key, error_like, died_after, died_before,
        coalesce(keep_attempts, false), max_jobs, coalesce(dry_run, false), start, by, why, tenant,
        flyball.read_search('requeue_dead', "group", null, trace, unique_key, key_owners, args, args_path, tags)) w
$$;

-- Discards up to max_jobs dead jobs; they end as cancelled.
create function flyball.discard_dead(
    kind text default null, throttle text default null, key text default null, error_like text default null,
    max_jobs int default 1000, died_after timestamptz default null, died_before timestamptz default null,
    dry_run boolean default false, start text default null, by text default null, why text default '', tenant text default null,
    "group" bigint default null, trace text default null, unique_key text default null, key_owners text[] default null,
    args jsonb default null, args_path text default null, tags text[] default null,
    out jobs bigint, out next text)
language sql volatile as $$
    select w.jobs, w.next
    from flyball.dead_walk('discard_dead', 'dead.discard', true, kind, throttle, key, error_like, died_after, died_before,
        false, max_jobs, coalesce(dry_run, false), start, by, why, tenant,
        flyball.read_search('discard_dead', "group", null, trace, unique_key, key_owners, args, args_path, tags)) w
$$;

-- === Retention by kind ===========================================================================

-- Kinds whose finished jobs or dead letters are kept shorter or longer than all others, and how far
-- housekeeping has come with each. The row '*' is for the dead letters of all other kinds.
create table flyball.kind_retention (
    kind           text        primary key check (octet_length(kind) between 1 and 128),
    -- From the end of a job; null for that of all kinds.
    retention      interval    check (retention between interval '1 hour' and interval '3650 days'),
    -- From the death of a job; null for that of all kinds.
    dead_retention interval    check (dead_retention between interval '1 hour' and interval '3650 days'),
    next_job       bigint      not null default 0,
    next_died_at   timestamptz not null default '-infinity',
    next_dead      bigint      not null default 0
);

-- Jobs of a kind that is kept shorter, which had not expired when housekeeping came by, and the time of
-- the next look: the earliest at which they can expire.
create table flyball.unexpired (
    job_id  bigint      primary key,
    kind    text        not null,
    look_at timestamptz not null
);
create index unexpired_look on flyball.unexpired (kind, look_at);

-- Sets how long finished jobs and dead letters of a kind are kept; null means as long as those of all
-- kinds. True if that is a change.
create function flyball.set_retention(kind text, retention interval default null, dead_retention interval default null) returns boolean
language plpgsql volatile as $$
#variable_conflict use_variable
declare
    allowed constant text := 'allowed are 1 hour to 3650 days, or null for as long as those of all kinds';
    changed int;
begin
    if kind is null or octet_length(kind) not between 1 and 128 or kind = '*' then
        perform flyball.refuse('set_retention', 'kind', format('%s is not the name of a kind; allowed are 1 to 128 bytes other than "*"',
            coalesce(to_json(left(kind, 64))::text, 'null')));
    elsif retention not between interval '1 hour' and interval '3650 days' then
        perform flyball.refuse('set_retention', 'retention', format('is %s; %s', retention, allowed));
    elsif dead_retention not between interval '1 hour' and interval '3650 days' then
        perform flyball.refuse('set_retention', 'dead_retention', format('is %s; %s', dead_retention, allowed));
    end if;
    if retention is null and dead_retention is null then
        delete from flyball.kind_retention k where k.kind = set_retention.kind;
    else
        insert into flyball.kind_retention as k (kind, retention, dead_retention) values (kind, retention, dead_retention)
        on conflict on constraint kind_retention_pkey do update
        set retention = excluded.retention, dead_retention = excluded.dead_retention, next_job = 0, next_died_at = '-infinity', next_dead = 0
        where k.retention is distinct from excluded.retention or k.dead_retention is distinct from excluded.dead_retention;
    end if;
    get diagnostics changed = row_count;
    if changed > 0 then
        -- Jobs left to the kind's own retention are looked at again.
        update flyball.kind_retention k set next_died_at = '-infinity', next_dead = 0 where k.kind = '*';
        delete from flyball.unexpired u where u.kind = set_retention.kind;
    end if;
    return changed > 0;
end $$;

-- Empties one day with one TRUNCATE, as chapter 8 describes it; jobs of kinds that are kept longer
-- than `since` survive too.
create or replace function flyball.prune_day(day bigint, since timestamptz default 'infinity', max_jobs bigint default 20000) returns bigint
language plpgsql set lock_timeout = '100ms' set enable_hashjoin = off set enable_mergejoin = off as $$
#variable_conflict use_column
declare
    live          bigint;
    added         bigint := 0;
    recent        bigint;
    lock_attempts int := 0;
    long_kinds    text[];
    retentions    interval[];
    low           bigint := prune_day.day << 38;
    high          bigint := (prune_day.day + 1) << 38;
begin
    if not pg_try_advisory_xact_lock(hashtext('flyball.prune_day')) then
        return null;
    end if;
    if to_regclass(format('flyball.job_%s', prune_day.day)) is null then
        delete from flyball.day d where d.day = prune_day.day;
        return 0;
    end if;
    create temporary table flyball_live on commit drop as
        select job_id from (
            select job_id from flyball.ready where job_id >= low and job_id < high
            union all select job_id from flyball.lease where job_id >= low and job_id < high
            union all select job_id from flyball.scheduled where job_id >= low and job_id < high
            union all select job_id from flyball.dead where job_id >= low and job_id < high
        ) l
        limit max_jobs + 1;
    get diagnostics live = row_count;
    create index on flyball_live (job_id);
    -- After the look at the living jobs, so that a job that ends in between is seen by one of the
    -- two.
    if live <= max_jobs then
        execute format('
            insert into flyball_live
            select a.job_id from (select distinct job_id from flyball.attempt_%s where finished_at >= $1) a
            where not exists (select 1 from flyball_live l where l.job_id = a.job_id)
            limit $2', prune_day.day)
        using since, max_jobs + 1 - live;
        get diagnostics recent = row_count;
        live := live + recent;
    end if;
    -- Kinds that are kept longer than all others: by their jobs' rows, of which only theirs are followed
    -- up.
    select array_agg(k.kind order by k.kind), array_agg(k.retention order by k.kind) into long_kinds, retentions
    from flyball.kind_retention k where now() - k.retention < since;
    if live <= max_jobs and long_kinds is not null then
        execute format('
            insert into flyball_live
            select j.id from flyball.job_%1$s j
            where j.kind = any($2) and not exists (select 1 from flyball_live l where l.job_id = j.id)
                and exists (select 1 from flyball.attempt_%1$s a
                    where a.job_id = j.id and a.finished_at >= now() - ($3)[array_position($2, j.kind)])
            limit $1', prune_day.day)
        using max_jobs + 1 - live, long_kinds, retentions;
        get diagnostics recent = row_count;
        live := live + recent;
    end if;
    if live > max_jobs then
        drop table flyball_live;
        insert into flyball.day as d (day, remaining, next) values (prune_day.day, -1, low)
        on conflict on constraint day_pkey do update set remaining = -1, next = coalesce(d.next, excluded.next);
        return -1;
    end if;
    analyze flyball_live;
    execute format('create temporary table flyball_versions on commit drop as select j.id, j.xmin as version from flyball_live l join flyball.job_%s j on j.id = l.job_id', prune_day.day);
    execute format('create temporary table flyball_jobs on commit drop as select j.* from flyball_live l join flyball.job_%s j on j.id = l.job_id', prune_day.day);
    create index on flyball_jobs (id);
    create temporary table flyball_added (job_id bigint) on commit drop;
    loop
        begin
            -- When this lock is granted, all transactions that enqueued into this day have ended,
            -- and no new one can; claims continue.
            execute format('lock table flyball.job_%s in share row exclusive mode', prune_day.day);
            insert into flyball_added
            select l.job_id from (
                select job_id from flyball.ready where job_id >= low and job_id < high
                union all select job_id from flyball.lease where job_id >= low and job_id < high
                union all select job_id from flyball.scheduled where job_id >= low and job_id < high
                union all select job_id from flyball.dead where job_id >= low and job_id < high
            ) l
            where not exists (select 1 from flyball_live k where k.job_id = l.job_id)
            limit max_jobs + 1;
            get diagnostics added = row_count;
            exit when live + added > max_jobs;
            execute format('lock table flyball.job_%1$s, flyball.attempt_%1$s in access exclusive mode', prune_day.day);
            exit;
        exception when lock_not_available then
            -- The locks are released and what was collected is dropped.
            lock_attempts := lock_attempts + 1;
            if lock_attempts >= 20 then
                raise;
            end if;
            -- Transactions that waited behind this go first.
            perform pg_sleep(0.2 + random() * 0.2);
        end;
    end loop;
    if live + added > max_jobs then
        drop table flyball_live, flyball_versions, flyball_jobs, flyball_added;
        insert into flyball.day as d (day, remaining, next) values (prune_day.day, -1, low)
        on conflict on constraint day_pkey do update set remaining = -1, next = coalesce(d.next, excluded.next);
        return -1;
    end if;
    insert into flyball_live select job_id from flyball_added;
    insert into flyball_versions select job_id, null from flyball_added;
    -- Jobs may have been replaced, and attempts added, until now.
    execute format('create temporary table flyball_replaced on commit drop as select j.* from flyball_versions v join flyball.job_%s j on j.id = v.id where j.xmin is distinct from v.version', prune_day.day);
    delete from flyball_jobs j using flyball_replaced r where j.id = r.id;
    execute format('create temporary table flyball_attempts on commit drop as select a.* from flyball_live l join flyball.attempt_%s a on a.job_id = l.job_id', prune_day.day);
    execute format('truncate flyball.job_%1$s, flyball.attempt_%1$s', prune_day.day);
    execute format('insert into flyball.job_%s select * from flyball_jobs union all select * from flyball_replaced', prune_day.day);
    get diagnostics live = row_count;
    execute format('insert into flyball.attempt_%s select * from flyball_attempts', prune_day.day);
    delete from flyball.checkpoint c where c.job_id >= low and c.job_id < high
        and not exists (select 1 from flyball_live l where l.job_id = c.job_id);
    insert into flyball.day as d (day, remaining) values (prune_day.day, live)
    on conflict on constraint day_pkey do update set pruned_at = now(), remaining = excluded.remaining, next = null;
    if live = 0 then
        -- No living job is left: the empty tables are dropped too, so that the list of partitions
        -- does not grow without end. This locks the parents for a moment; if they are busy, the
        -- empty tables stay for another day.
        begin
            execute format('drop table flyball.job_%1$s, flyball.attempt_%1$s', prune_day.day);
            delete from flyball.day d where d.day = prune_day.day;
        exception when lock_not_available then
            null;
        end;
    end if;
    drop table flyball_live, flyball_versions, flyball_jobs, flyball_replaced, flyball_attempts, flyball_added;
    return live;
end $$;

-- One step through a day that prune_day left alone, as chapter 8 describes it; jobs of kinds that are
-- kept longer than `since` stay too.
create or replace function flyball.thin_day(day bigint, since timestamptz, rows int, out deleted bigint, out next bigint)
language plpgsql as $$
declare
    start      bigint;
    long_kinds text[];
    retentions interval[];
begin
    deleted := 0;
    select d.next into start from flyball.day d where d.day = thin_day.day and d.next is not null for update skip locked;
    if not found then
        return;
    elsif to_regclass(format('flyball.job_%s', thin_day.day)) is null then
        delete from flyball.day d where d.day = thin_day.day;
        return;
    end if;
    select array_agg(k.kind order by k.kind), array_agg(k.retention order by k.kind) into long_kinds, retentions
    from flyball.kind_retention k where now() - k.retention < since;
    -- One probe per job and table: as a join, the planner might read all waiting jobs in each step.
    execute format('
        with page as materialized (
            select id, lane_id, admission_lane, priority, case when kind = any($4) then now() - ($5)[array_position($4, kind)] else $3 end as since
            from flyball.job_%1$s where id > $1 order by id limit $2
        ),
        expired as materialized (
            select p.id from page p
            where (select 1 from flyball.ready r
                    where r.lane_id in (p.lane_id, p.admission_lane) and r.priority = p.priority and r.job_id = p.id limit 1) is null
                and (select 1 from flyball.lease l where l.job_id = p.id limit 1) is null
                and (select 1 from flyball.scheduled s where s.job_id = p.id limit 1) is null
                and (select 1 from flyball.dead d where d.job_id = p.id limit 1) is null
                and (select 1 from flyball.attempt_%1$s a where a.job_id = p.id and a.finished_at >= p.since limit 1) is null
        ),
        attempts as (delete from flyball.attempt_%1$s a using expired g where a.job_id = g.id),
        cursors as (delete from flyball.checkpoint c using expired g where c.job_id = g.id),
        jobs as (delete from flyball.job_%1$s j using expired g where j.id = g.id returning 1)
        select (select count(*) from jobs), case when count(*) >= $2 then max(p.id) end from page p', thin_day.day)
    into deleted, next
    using start, thin_day.rows, thin_day.since, long_kinds, retentions;
    update flyball.day d set next = thin_day.next, pruned_at = now() where d.day = thin_day.day;
end $$;

-- One step over the jobs of a kind that is kept shorter than all others: looks at up to `rows` jobs of
-- any kind from where the previous step ended, and at those of the kind that could not go before.
-- Deletes those of the kind that have ended long enough ago, with their attempts, results and failures.
-- Locks only the rows that it deletes. `more` says whether another step is due at once.
create function flyball.expire_jobs(kind text, rows int default 5000, out deleted bigint, out more boolean)
language plpgsql volatile
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off as $$
#variable_conflict use_variable
declare
    r         flyball.kind_retention;
    front     bigint;
    again     bigint[];
    found_ids bigint[];
    walked    bigint;
    walked_to bigint;
    low       bigint;
    high      bigint;
    failed    bigint[];
begin
    deleted := 0;
    more := false;
    select * into r from flyball.kind_retention k where k.kind = expire_jobs.kind and k.retention is not null for update skip locked;
    if not found then
        return;
    end if;
    front := flyball.id_at(now() - r.retention);
    -- A day without jobs may still get some.
    if front = (flyball.day_of(now() - r.retention) + 1) << 38 then
        front := flyball.day_of(now() - r.retention) << 38;
    end if;
    again := array(
        select u.job_id from flyball.unexpired u where u.kind = r.kind and u.look_at <= now() order by u.look_at limit rows
    );
    select count(*), max(w.id), array_agg(w.id) filter (where w.kind = r.kind) into walked, walked_to, found_ids
    from (select j.id, j.kind from flyball.job j where j.id > r.next_job and j.id < front order by j.id limit rows) w;
    -- Only the days between these are read: for an array alone, each day of the history would be.
    select min(u.id), max(u.id) into low, high from unnest(again || found_ids) as u(id);
    -- One probe per job and table: as a join, the planner might read all waiting jobs in each step.
    with looked as materialized (
        select c.id, j.id is null as gone, j.created_at,
            (select 1 from flyball.ready q
                where q.lane_id in (j.lane_id, j.admission_lane) and q.priority = j.priority and q.job_id = c.id limit 1) is not null
            or (select 1 from flyball.lease l where l.job_id = c.id limit 1) is not null
            or (select 1 from flyball.scheduled s where s.job_id = c.id limit 1) is not null
            or (select 1 from flyball.dead d where d.job_id = c.id limit 1) is not null as lives,
            (select max(a.finished_at) from flyball.attempt a where a.job_id = c.id) as ended_at
        from (select distinct u.id from unnest(again || found_ids) as u(id)) c
        left join lateral (select o.* from flyball.job o where o.id = c.id limit 1) j on true
    ),
    judged as materialized (
        select l.id, l.gone, case when l.gone then null when l.lives then now() + r.retention
            else coalesce(l.ended_at, l.created_at) + r.retention end as due
        from looked l
    ),
    expired as materialized (
        select g.id from judged g where g.gone or g.due <= now()
    ),
    attempts as (
        delete from flyball.attempt a
        where a.job_id >= low and a.job_id <= high and a.job_id = any(array(select e.id from expired e))
        returning a.job_id, a.outcome
    ),
    cursors as (
        delete from flyball.checkpoint c where c.job_id = any(array(select e.id from expired e))
    ),
    results as (
        delete from flyball.result o where o.job_id = any(array(select e.id from expired e))
    ),
    deleted_jobs as (
        delete from flyball.job j where j.id >= low and j.id <= high and j.id = any(array(select e.id from expired e)) returning 1
    ),
    looked_again as (
        delete from flyball.unexpired u where u.job_id = any(array(select e.id from expired e))
    ),
    kept as (
        insert into flyball.unexpired as u (job_id, kind, look_at)
        select g.id, r.kind, g.due from judged g where not g.gone and g.due > now()
        on conflict on constraint unexpired_pkey do update set look_at = excluded.look_at
    )
    select (select count(*) from deleted_jobs), array(select distinct a.job_id from attempts a where a.outcome <> 'completed')
    into deleted, failed;
    if cardinality(failed) > 0 then
        -- The newest ten thousand of all jobs, without an index by job.
        delete from flyball.failure f where f.job_id = any(failed);
    end if;
    update flyball.kind_retention k
    set next_job = case when walked = rows then walked_to else greatest(front - 1, r.next_job) end
    where k.kind = r.kind;
    more := walked = rows or cardinality(again) = rows;
end $$;

-- One step over the dead letters of a kind with a retention of its own, or, with '*', of all kinds
-- without one: discards those that died longer ago than `retention`.
create function flyball.expire_dead(kind text, retention interval, rows int default 5000, out deleted bigint, out more boolean)
language plpgsql volatile
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off as $$
#variable_conflict use_variable
declare
    r      flyball.kind_retention;
    others text[];
    result record;
begin
    deleted := 0;
    more := false;
    insert into flyball.kind_retention as k (kind) select '*' where expire_dead.kind = '*' on conflict do nothing;
    select * into r from flyball.kind_retention k where k.kind = expire_dead.kind for update skip locked;
    if not found then
        return;
    end if;
    others := array(select k.kind from flyball.kind_retention k where k.dead_retention is not null and r.kind = '*');
    with walk as materialized (
        select d.job_id, d.died_at
        from flyball.dead d
        where d.died_at >= r.next_died_at and (d.died_at, d.job_id) > (r.next_died_at, r.next_dead) and d.died_at < now() - retention
        order by d.died_at, d.job_id
        limit rows
    ),
    old as materialized (
        select w.job_id
        from walk w
        cross join lateral (select j.kind from flyball.job j where j.id = w.job_id limit 1) j
        where case when r.kind = '*' then j.kind <> all(others) else j.kind = r.kind end
    ),
    removed as (
        delete from flyball.dead d where d.job_id = any(array(select o.job_id from old o)) returning d.job_id, d.attempt
    ),
    history as (
        insert into flyball.attempt (job_id, attempt, outcome, error)
        select x.job_id, x.attempt, 'cancelled', format('this dead letter expired after %s', justify_interval(retention)) from removed x
    )
    select (select count(*) from removed) as removed, (select count(*) from walk) as walked,
        (select w.died_at from walk w order by w.died_at desc, w.job_id desc limit 1) as died_at,
        (select w.job_id from walk w order by w.died_at desc, w.job_id desc limit 1) as job_id
    into result;
    deleted := result.removed;
    more := result.walked = rows;
    if result.walked > 0 then
        update flyball.kind_retention k set next_died_at = result.died_at, next_dead = result.job_id where k.kind = r.kind;
    end if;
end $$;

-- === Permissions =================================================================================

revoke execute on function flyball.shown_url, flyball.searched_args, flyball.without_secrets, flyball.has_unique_key, flyball.fits_search, flyball.is_dear, flyball.fits_filter, flyball.read_args_path,
    flyball.read_search, flyball.usual_key_owners, flyball.read_filter, flyball.index_for, flyball.id_range, flyball.are_rare, flyball.tagged, flyball.find_jobs, flyball.search_text,
    flyball.set_retention, flyball.expire_jobs, flyball.expire_dead
from public;

select flyball.replace_functions(20);

comment on function flyball.cancel_jobs is 'Cancels up to max_jobs jobs that match a filter; call again with start => next for more.';
comment on function flyball.requeue_dead is 'Makes up to max_jobs dead jobs that match a filter ready again; call again with start => next for more.';
comment on function flyball.discard_dead is 'Discards up to max_jobs dead jobs that match a filter.';
comment on function flyball.set_retention is 'Sets how long finished jobs and dead letters of a kind are kept; null for as long as those of all kinds.';
