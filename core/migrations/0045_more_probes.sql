-- Chapter 45: the same for other functions that run often or for somebody who waits.

-- A plan that is made while a table is empty finds two indexes equally good for the same row: that of its key, and
-- one that has the key behind another column and is then read from end to end. Postgres uses these indexes only if a
-- condition names their first column; the others leave them alone, also those of programs.
drop index flyball.scheduled_lane;
create index scheduled_lane on flyball.scheduled (lane_id, job_id) where lane_id is not null;
drop index flyball.message_plan_recipient;
create index message_plan_recipient on flyball.message_plan (recipient, job_id) where recipient is not null;
drop index flyball.job_after_after;
create index job_after_after on flyball.job_after (after_id, job_id) where after_id is not null;
drop index flyball.group_member_group;
create index group_member_group on flyball.group_member (group_id, job_id) where group_id is not null;
drop index flyball.batch_message_batch;
create index batch_message_batch on flyball.batch_message (batch_id, job_id) where batch_id is not null;
drop index flyball.batch_tenant;
create index batch_tenant on flyball.batch (tenant, id) where tenant is not null;

-- Each statement finds each of its rows by a probe. `offset 0` keeps a question a question about one row, `coalesce`
-- hides a condition from an index that it alone cannot bound, and an order by the key is that of one index.
do $migration$
declare
    change record;
    body   text;
begin
    for change in
        select v.name::regproc as name, v.was, v.becomes
        from (values
        -- The place of a message.
        ('flyball.admission_place',
            $t$and r.priority = j.priority and r.job_id = j.id);$t$,
            $t$and r.priority = j.priority and r.job_id = j.id offset 0);$t$),

        -- Messages that are to be admitted again.
        ('flyball.await_admission',
            $t$j.kind = 'notification' and j.tenant <> '' and j.admission_lane is null;$t$,
            $t$j.kind = 'notification' and coalesce(j.tenant, '') <> '' and j.admission_lane is null;$t$),
        ('flyball.await_admission',
            $t$select c.ctid from flyball.pending_count c where c.tenant in (select m.tenant from miscounted m) for update skip locked$t$,
            $t$select c.tid from miscounted m
        cross join lateral (select p.ctid as tid from flyball.pending_count p where p.tenant = m.tenant limit 1 for update skip locked) c$t$),

        -- Unique keys of jobs that come back.
        ('flyball.lock_unique_keys',
            $t$u.digest = any(digests) and u.expires_at <= now() for update skip locked$t$,
            $t$u.digest = any(digests) and coalesce(u.expires_at <= now(), false) for update skip locked$t$),

        -- Jobs that waited for others.
        ('flyball.release_waiting',
            $t$where s.job_id = a.job_id and s.turn < -4 for update skip locked$t$,
            $t$where s.job_id = a.job_id and coalesce(s.turn < -4, false) limit 1 for update skip locked$t$),
        ('flyball.release_waiting',
            $t$where a.job_id = any(held) and a.after_id = any(failed) and not a.runs_anyway$t$,
            $t$where a.job_id = any(held) and coalesce(a.after_id = any(failed), false) and not a.runs_anyway$t$),
        ('flyball.release_waiting',
            $t$delete from flyball.scheduled s using doomed d where s.job_id = d.job_id returning s.job_id, s.attempt, d.after_id$t$,
            $t$delete from flyball.scheduled s where s.job_id = any(array(select d.job_id from doomed d)) returning s.job_id, s.attempt$t$),
        ('flyball.release_waiting',
            $t$did not complete', g.after_id) from gone g$t$,
            $t$did not complete', d.after_id) from gone g join doomed d on d.job_id = g.job_id$t$),
        ('flyball.release_waiting',
            $t$where a.job_id = any(held) and (a.after_id = any(completed || failed) or a.after_id = any(dead) and a.runs_anyway);$t$,
            $t$where a.job_id = any(held) and coalesce(a.after_id = any(completed || failed) or a.after_id = any(dead) and a.runs_anyway, false);$t$),
        ('flyball.release_waiting',
            $t$where s.job_id = any(free) and s.run_at <= now() and not$t$,
            $t$where s.job_id = any(free) and coalesce(s.run_at <= now(), false) and not$t$),
        ('flyball.release_waiting',
            $t$    set turn = case when flyball.needs_plan(j.kind, j.args) then s.priority - 4 else flyball.turn_of(j.throttle, s.priority, false) end
    from unnest(free) as f(id)
    cross join lateral (select o.kind, o.args, o.throttle from flyball.job o where o.id = f.id limit 1) j
    where s.job_id = f.id and f.id <> all (due);$t$,
            $t$    set turn = coalesce((
        select case when flyball.needs_plan(j.kind, j.args) then s.priority - 4 else flyball.turn_of(j.throttle, s.priority, false) end
        from flyball.job j where j.id = s.job_id limit 1), s.turn)
    where s.job_id = any(array(select f.id from unnest(free) as f(id) where f.id <> all (due)));$t$),

        -- Messages that planners take.
        ('flyball.take_unplanned',
            $t$and s.turn between -4 and -1 and s.run_at <= now()$t$,
            $t$and coalesce(s.turn between -4 and -1 and s.run_at <= now(), false)$t$),

        -- Messages that waited for too long.
        ('flyball.expire_waiting',
            $t$where s.lane_id = lane.lane_id and s.turn >= 0
             order by$t$,
            $t$where s.lane_id between lane.lane_id and lane.lane_id and coalesce(s.turn >= 0, false)
             order by$t$),
        ('flyball.expire_notifications',
            $t$where q.lane_id = lane.lane_id and q.job_id > at_id$t$,
            $t$where q.lane_id <= lane.lane_id and (q.lane_id, q.job_id) > (lane.lane_id, at_id)$t$),

        -- Messages whose recipients have changed.
        ('flyball.replan',
            $t$    from flyball.message_plan p
        where p.recipient = any (recipients) and p.state = 'held' and s.job_id = p.job_id and (s.turn >= 0 or s.run_at > now());$t$,
            $t$    where s.job_id = any(array(
                select p.job_id from (select distinct unnest(recipients) as recipient) r
                cross join lateral (
                    select h.job_id from flyball.message_plan h where h.recipient = r.recipient and h.state = 'held' offset 0
                ) p))
            and (s.turn >= 0 or s.run_at > now());$t$),
        ('flyball.replan',
            $t$        select d.id
        from types t
        join flyball.digest d on d.type = t.type and d.recipient = any (recipients)
        where d.gate <> '' and d.closes_at > now()
        for no key update of d skip locked
    )
    update flyball.digest d set closes_at = now() from kept k where d.id = k.id;$t$,
            $t$        select k.tid
        from types t
        cross join (select distinct unnest(recipients) as recipient) r
        cross join lateral (
            select d.ctid as tid from flyball.digest d
            where d.type = t.type and d.recipient = r.recipient and d.gate <> '' and coalesce(d.closes_at > now(), false)
            for no key update skip locked
        ) k
    )
    update flyball.digest d set closes_at = now() where d.ctid = any(array(select k.tid from kept k));$t$),

        -- Items that leave their digests.
        ('flyball.withdraw_items',
            $t$:= array(select i.job_id from flyball.digest_item i where i.job_id = any (jobs));$t$,
            $t$:= array(
        select i.job_id from unnest(jobs) as a(id)
        cross join lateral (select o.job_id from flyball.digest_item o where o.job_id between a.id and a.id order by o.job_id) i);$t$),
        ('flyball.withdraw_items',
            $t$    perform from flyball.message_plan p
    join flyball.dedup d on d.recipient = p.recipient and d.job_id = p.job_id
    where p.job_id = any (items)
    order by d.recipient, d.content
    for update of d;$t$,
            $t$    perform from (
        select d.recipient, d.content, d.job_id
        from unnest(items) as a(id)
        cross join lateral (select h.recipient, h.job_id from flyball.message_plan h where h.job_id = a.id limit 1) p
        cross join lateral (
            select c.recipient, c.content, c.job_id from flyball.dedup c where c.recipient = p.recipient and c.job_id = p.job_id offset 0
        ) d
        order by d.recipient, d.content
    ) k
    cross join lateral (
        select from flyball.dedup d where d.recipient = k.recipient and d.content = k.content and d.job_id = k.job_id for update
    ) l;$t$),
        ('flyball.withdraw_items',
            $t$    perform from flyball.digest d
    where d.id = any (array(select i.digest_id from flyball.digest_item i where i.job_id = any (items)))
    order by d.type, d.recipient, d.key
    for no key update;$t$,
            $t$    perform from (
        select d.type, d.recipient, d.key
        from unnest(items) as a(id)
        cross join lateral (select o.digest_id from flyball.digest_item o where o.job_id between a.id and a.id order by o.job_id) i
        cross join lateral (
            select g.type, g.recipient, g.key from flyball.digest g where g.id between i.digest_id and i.digest_id order by g.id
        ) d
        group by d.type, d.recipient, d.key
        order by d.type, d.recipient, d.key
    ) k
    cross join lateral (
        select from flyball.digest d where d.type = k.type and d.recipient = k.recipient and d.key = k.key for no key update
    ) l;$t$),
        ('flyball.withdraw_items',
            $t$delete from flyball.digest_item i where i.job_id = any (items) returning$t$,
            $t$delete from flyball.digest_item i
        where i.ctid = any(array(
            select o.tid from unnest(items) as a(id)
            cross join lateral (
                select d.ctid as tid from flyball.digest_item d where d.job_id between a.id and a.id order by d.job_id
            ) o))
        returning$t$),
        ('flyball.withdraw_items',
            $t$where d.id = any (array(select r.digest_id from removed r))$t$,
            $t$where d.ctid = any(array(
            select g.tid from (select distinct r.digest_id from removed r) r
            cross join lateral (
                select h.ctid as tid from flyball.digest h where h.id between r.digest_id and r.digest_id order by h.id
            ) g))$t$),
        ('flyball.withdraw_items',
            $t$delete from flyball.dedup d using planned p where d.recipient = p.recipient and d.job_id = p.job_id$t$,
            $t$delete from flyball.dedup d
        where d.recipient = any(array(select p.recipient from planned p)) and d.job_id = any(array(select p.job_id from planned p))$t$),

        -- Messages that come into an inbox.
        ('flyball.deliver_inboxes',
            $t$        update flyball.inbox_count c set unseen = c.unseen + m.messages, unread = c.unread + m.messages
        from (select h.tenant, h.recipient, count(*) as messages from flyball.inbox_message h where h.job_id = any (written) group by 1, 2) m
        where c.tenant = m.tenant and c.recipient = m.recipient;$t$,
            $t$        -- Each has its row, which is locked.
        insert into flyball.inbox_count as c (tenant, recipient, unseen, unread)
        select m.tenant, m.recipient, count(*), count(*)
        from unnest(written) as w(job_id)
        cross join lateral (select h.tenant, h.recipient from flyball.inbox_message h where h.job_id = w.job_id limit 1) m
        group by m.tenant, m.recipient
        on conflict on constraint inbox_count_pkey do update set unseen = c.unseen + excluded.unseen, unread = c.unread + excluded.unread;$t$),
        ('flyball.deliver_inboxes',
            $t$        select m.tenant, '$inbox/' || m.recipient,
            jsonb_build_object('type', 'message', 'message', flyball.inbox_entry(m), 'unseen', c.unseen, 'unread', c.unread)
        from flyball.inbox_message m
        join flyball.inbox_count c on c.tenant = m.tenant and c.recipient = m.recipient
        where m.job_id = any (written)
        order by m.id;$t$,
            $t$        select (f.m).tenant, '$inbox/' || (f.m).recipient,
            jsonb_build_object('type', 'message', 'message', flyball.inbox_entry(f.m), 'unseen', c.unseen, 'unread', c.unread)
        from unnest(written) as w(job_id)
        cross join lateral (select h from flyball.inbox_message h where h.job_id = w.job_id limit 1) as f(m)
        cross join lateral (
            select k.unseen, k.unread from flyball.inbox_count k
            where k.tenant = (f.m).tenant and k.recipient = (f.m).recipient limit 1
        ) c
        order by (f.m).id;$t$),

        -- Marks of an inbox.
        ('flyball.mark_inbox_within',
            $t$select p.id, p.channel from flyball.publication p$t$,
            $t$select p.ctid as tid, p.channel from flyball.publication p$t$),
        ('flyball.mark_inbox_within',
            $t$select p.id, p.data from flyball.publication p
            where p.id = any (array(select n.id from newest n where n.channel = own_channel)) and$t$,
            $t$select p.ctid as tid, p.id, p.data from flyball.publication p
            where p.ctid = any (array(select n.tid from newest n where n.channel = own_channel)) and$t$),
        ('flyball.mark_inbox_within',
            $t$delete from flyball.publication p using waiting w where p.id = w.id$t$,
            $t$delete from flyball.publication p where p.ctid = any (array(select w.tid from waiting w))$t$),

        -- Dead letters that come back.
        ('flyball.record_requeued',
            $t$r.priority = g.priority and r.job_id = g.job_id)$t$,
            $t$r.priority = g.priority and r.job_id = g.job_id offset 0)$t$),
        ('flyball.record_requeued',
            $t$h.priority = g.priority and h.job_id = g.job_id)$t$,
            $t$h.priority = g.priority and h.job_id = g.job_id offset 0)$t$),
        ('flyball.record_requeued',
            $t$    set args = jsonb_set(j.args, '{template}', p.template)
    from present p
    where j.id = p.id and j.args -> 'template' <> p.template;$t$,
            $t$    set args = jsonb_set(j.args, '{template}', (select jsonb_object_agg(p.id, p.template) from present p) -> j.id::text)
    where j.id = any(array(select p.id from present p))
        and j.args -> 'template' <> (select jsonb_object_agg(p.id, p.template) from present p) -> j.id::text;$t$),
        ('flyball.requeue_unsent',
            $t$d.job_id <> all (busy) and d.unsent and d.updated_at <$t$,
            $t$d.job_id <> all (busy) and coalesce(d.unsent, false) and d.updated_at <$t$),

        -- Messages beyond a cap, which are refused.
        ('flyball.refuse_capped',
            $t$(exists (select from flyball.scheduled s where s.job_id = r.job_id)$t$,
            $t$(exists (select from flyball.scheduled s where s.job_id = r.job_id offset 0)$t$),
        ('flyball.refuse_capped',
            $t$                            select from flyball.job j
                            join flyball.ready h on h.lane_id in (j.lane_id, j.admission_lane) and h.priority = j.priority and h.job_id = j.id
                            where j.id = r.job_id)$t$,
            $t$                            select from (select o.* from flyball.job o where o.id = r.job_id limit 1) j
                            cross join lateral (
                                select from flyball.ready h
                                where h.lane_id in (j.lane_id, j.admission_lane) and h.priority = j.priority and h.job_id = j.id limit 1
                            ) h
                            offset 0)$t$),
        ('flyball.refuse_capped',
            $t$or exists (select from flyball.lease l where l.job_id = r.job_id))$t$,
            $t$or exists (select from flyball.lease l where l.job_id = r.job_id offset 0))$t$),

        -- Batches.
        ('flyball.free_places',
            $t$    where p.tenant = batch.tenant
        and p.job_id = any(array(select flyball.place_in_queue(batch.id, n) from generate_series(1, batch.recipients) n))$t$,
            $t$    where p.ctid = any(array(
        select q.tid from generate_series(1, batch.recipients) n
        cross join lateral (
            select o.ctid as tid from flyball.pending o
            where o.tenant = batch.tenant and o.job_id = flyball.place_in_queue(batch.id, n) limit 1
        ) q))$t$),
        ('flyball.expand_batch',
            $t$    delete from flyball.pending p
    where p.tenant = batch.tenant
        and p.job_id = any(array(select flyball.place_in_queue(batch_id, n) from generate_series(1, batch.recipients) n));$t$,
            $t$    perform flyball.free_places(batch);$t$),
        ('flyball.pause_batch',
            $t$update flyball.batch_message m set resumes_at = t.run_at, resumes_turn = t.turn from removed t where m.job_id = t.job_id$t$,
            $t$-- Each has its row.
        insert into flyball.batch_message (job_id, batch_id, resumes_at, resumes_turn)
        select t.job_id, batch_id, t.run_at, t.turn from removed t
        on conflict on constraint batch_message_pkey do update set resumes_at = excluded.resumes_at, resumes_turn = excluded.resumes_turn$t$),
        ('flyball.resume_batch',
            $t$    update flyball.scheduled s set run_at = greatest(m.resumes_at, now()), turn = coalesce(m.resumes_turn, s.turn)
    from flyball.batch_message m
    where m.batch_id = resume_batch.batch_id and m.resumes_at is not null and s.job_id = m.job_id
        and s.run_at > now() + interval '3000 days';$t$,
            $t$    update flyball.scheduled s
    set (run_at, turn) = (
        select greatest(m.resumes_at, now()), coalesce(m.resumes_turn, s.turn)
        from flyball.batch_message m where m.job_id = s.job_id limit 1)
    where s.job_id = any(array(
            select m.job_id from flyball.batch_message m where m.batch_id = resume_batch.batch_id and m.resumes_at is not null))
        and coalesce(s.run_at > now() + interval '3000 days', false);$t$),
        ('flyball.cancel_batch',
            $t$                    exists (select from flyball.lease l where l.job_id = j.job_id)
                    or exists (select from flyball.scheduled s where s.job_id = j.job_id)
                    or exists (
                        select from flyball.ready r
                        where r.lane_id in (j.lane_id, j.admission_lane) and r.priority = j.priority and r.job_id = j.job_id)) then 'too_late'$t$,
            $t$                    exists (select from flyball.lease l where l.job_id = j.job_id offset 0)
                    or exists (select from flyball.scheduled s where s.job_id = j.job_id offset 0)
                    or exists (
                        select from flyball.ready r
                        where r.lane_id in (j.lane_id, j.admission_lane) and r.priority = j.priority and r.job_id = j.job_id offset 0)) then 'too_late'$t$),

        ('flyball.batch_pause',
            $t$    from flyball.batch_message m
    join flyball.batch b on b.id = m.batch_id
    where m.job_id = batch_pause.job_id and b.state = 'paused'$t$,
            $t$    from flyball.batch b
    where b.id = (select m.batch_id from flyball.batch_message m where m.job_id = batch_pause.job_id limit 1)
        and coalesce(b.state = 'paused', false)$t$),
        ('flyball.batch_state',
            $t$select b.state from flyball.batch_message m join flyball.batch b on b.id = m.batch_id where m.job_id = batch_state.job_id$t$,
            $t$select b.state from flyball.batch b
    where b.id = (select m.batch_id from flyball.batch_message m where m.job_id = batch_state.job_id limit 1)$t$),

        -- One job.
        ('flyball.show_job',
            $t$exists (select from flyball.cancel x where x.job_id = j.id),$t$,
            $t$exists (select from flyball.cancel x where x.job_id = j.id offset 0),$t$),
        ('flyball.show_job',
            $t$    left join flyball.lease l on l.job_id = j.id
    left join flyball.ready r on r.lane_id in (j.lane_id, j.admission_lane) and r.priority = j.priority and r.job_id = j.id
    left join flyball.scheduled s on s.job_id = j.id
    left join flyball.dead d on d.job_id = j.id$t$,
            $t$    left join lateral (select * from flyball.lease h where h.job_id = j.id limit 1) l on true
    left join lateral (
        select * from flyball.ready h where h.lane_id in (j.lane_id, j.admission_lane) and h.priority = j.priority and h.job_id = j.id limit 1
    ) r on true
    left join lateral (select * from flyball.scheduled h where h.job_id = j.id limit 1) s on true
    left join lateral (select * from flyball.dead h where h.job_id = j.id limit 1) d on true$t$)
        ) as v(name, was, becomes)
    loop
        body := pg_get_functiondef(change.name);
        if length(body) - length(replace(body, change.was, '')) <> length(change.was) then
            raise exception '% does not contain once: %', change.name, change.was;
        end if;
        execute replace(body, change.was, change.becomes);
    end loop;
end $migration$;
