-- Chapter 23: what was accepted is kept, and whoever runs jobs says what it can run.

-- As before, but for what a transaction of that very day had enqueued and commits while its day is being emptied: its jobs came to
-- live after the look at what lives. So there is a second look behind a lock that keeps writers out and lets claims pass; only
-- when it is done are readers kept out, for as long as the TRUNCATE takes. Whoever holds that second lock and cannot get the
-- last one lets both go: a producer may wait for the one while it holds the other.
create or replace function flyball.prune_day(day bigint, since timestamptz default 'infinity', most bigint default 20000) returns bigint
language plpgsql set lock_timeout = '100ms' set enable_hashjoin = off set enable_mergejoin = off as $$
#variable_conflict use_column
declare
    live  bigint;
    late  bigint := 0;
    young bigint;
    tries int := 0;
    low   bigint := prune_day.day << 38;
    high  bigint := (prune_day.day + 1) << 38;
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
        limit most + 1;
    get diagnostics live = row_count;
    create index on flyball_live (job_id);
    -- After the look at what lives, so that whatever ends in between is seen by one of both.
    if live <= most then
        execute format('
            insert into flyball_live
            select a.job_id from (select distinct job_id from flyball.attempt_%s where finished_at >= $1) a
            where not exists (select 1 from flyball_live l where l.job_id = a.job_id)
            limit $2', prune_day.day)
        using since, most + 1 - live;
        get diagnostics young = row_count;
        live := live + young;
    end if;
    if live > most then
        drop table flyball_live;
        insert into flyball.day as d (day, kept, next) values (prune_day.day, -1, low)
        on conflict on constraint day_pkey do update set kept = -1, next = coalesce(d.next, excluded.next);
        return -1;
    end if;
    analyze flyball_live;
    execute format('create temporary table flyball_versions on commit drop as select j.id, j.xmin as version from flyball_live l join flyball.job_%s j on j.id = l.job_id', prune_day.day);
    execute format('create temporary table flyball_jobs on commit drop as select j.* from flyball_live l join flyball.job_%s j on j.id = l.job_id', prune_day.day);
    create index on flyball_jobs (id);
    create temporary table flyball_late (job_id bigint) on commit drop;
    loop
        begin
            -- Whoever has enqueued into this day has ended when this is granted, and nobody else can; claims go on.
            execute format('lock table flyball.job_%s in share row exclusive mode', prune_day.day);
            insert into flyball_late
            select l.job_id from (
                select job_id from flyball.ready where job_id >= low and job_id < high
                union all select job_id from flyball.lease where job_id >= low and job_id < high
                union all select job_id from flyball.scheduled where job_id >= low and job_id < high
                union all select job_id from flyball.dead where job_id >= low and job_id < high
            ) l
            where not exists (select 1 from flyball_live k where k.job_id = l.job_id)
            limit most + 1;
            get diagnostics late = row_count;
            exit when live + late > most;
            execute format('lock table flyball.job_%1$s, flyball.attempt_%1$s in access exclusive mode', prune_day.day);
            exit;
        exception when lock_not_available then
            -- What was locked is free again, and what was found is forgotten.
            tries := tries + 1;
            if tries >= 20 then
                raise;
            end if;
            -- Whoever waited behind this goes first.
            perform pg_sleep(0.2 + random() * 0.2);
        end;
    end loop;
    if live + late > most then
        drop table flyball_live, flyball_versions, flyball_jobs, flyball_late;
        insert into flyball.day as d (day, kept, next) values (prune_day.day, -1, low)
        on conflict on constraint day_pkey do update set kept = -1, next = coalesce(d.next, excluded.next);
        return -1;
    end if;
    insert into flyball_live select job_id from flyball_late;
    insert into flyball_versions select job_id, null from flyball_late;
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
    insert into flyball.day as d (day, kept) values (prune_day.day, live)
    on conflict on constraint day_pkey do update set pruned_at = now(), kept = excluded.kept, next = null;
    if live = 0 then
        -- Nothing lives here any more: the empty tables go too, so that the list of partitions does not grow for ever. That
        -- needs the parents for a moment; if they are busy, the empty tables wait for another day.
        begin
            execute format('drop table flyball.job_%1$s, flyball.attempt_%1$s', prune_day.day);
            delete from flyball.day d where d.day = prune_day.day;
        exception when lock_not_available then
            null;
        end;
    end if;
    drop table flyball_live, flyball_versions, flyball_jobs, flyball_replaced, flyball_attempts, flyball_late;
    return live;
end $$;

-- What a worker can run besides its kinds, each with a digest of the settings behind it: {"pool alerts": "1f0c...", "channel sms": ""}.
alter table flyball.worker add column offers jsonb not null default '{}';
