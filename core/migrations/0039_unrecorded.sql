-- Chapter 39: messages whose outcome could not be recorded.

-- As in 0006, but a message whose job has completed is not `queued` for ever if its record is missing: an
-- attempt is over when the provider has answered, even if Postgres was away for so long, or its worker
-- stopped, that the answer could not be written. Most of these were accepted.
create or replace view flyball.notification as
select j.id as job_id, j.tenant, coalesce(d.channel, j.args ->> 'channel') as channel, coalesce(d.pool, j.throttle) as pool,
    coalesce(d.provider, '') as provider, d.account,
    case when coalesce(d.state, 'queued') <> 'queued' then d.state
        when l.is_running or w.is_waiting then 'queued'
        when x.error is not null or a.outcome in ('cancelled', 'dropped') then 'failed'
        when a.outcome = 'completed' then 'sent'
        else 'queued' end as state,
    d.provider_id, coalesce(d.recipient, flyball.mask_recipient(j.args ->> 'channel', j.args ->> 'to'), '') as recipient,
    coalesce(d.category, j.args ->> 'category', '') as category, coalesce(d.attempts, '[]') as attempts, coalesce(d.attempt_count, 0) as attempt_count,
    case when coalesce(d.state, 'queued') <> 'queued' or l.is_running or w.is_waiting then coalesce(d.reason, '')
        when x.error is not null then x.error
        when a.outcome in ('cancelled', 'dropped') then coalesce(a.error, 'cancelled')
        when a.outcome = 'completed' then 'its attempt ended, but the outcome could not be recorded; the worker logged it'
        else coalesce(d.reason, '') end as reason,
    coalesce(d.complained, false) as complained, d.requeued_at, j.created_at, coalesce(d.updated_at, j.created_at) as updated_at
from flyball.job j
left join lateral (select * from flyball.delivery h where h.job_id = j.id limit 1) d on true
left join lateral (
    select true as is_running from flyball.lease h where coalesce(d.state, 'queued') = 'queued' and h.job_id = j.id limit 1
) l on true
left join lateral (
    (select true as is_waiting from flyball.ready h
     where coalesce(d.state, 'queued') = 'queued' and h.lane_id in (j.lane_id, j.admission_lane) and h.priority = j.priority and h.job_id = j.id limit 1)
    union all
    (select true from flyball.scheduled h where coalesce(d.state, 'queued') = 'queued' and h.job_id = j.id limit 1)
    limit 1
) w on true
left join lateral (
    select coalesce(h.error, 'dead') as error from flyball.dead h
    where coalesce(d.state, 'queued') = 'queued' and h.job_id = j.id limit 1
) x on true
left join lateral (
    select h.outcome, h.error from flyball.attempt h
    where coalesce(d.state, 'queued') = 'queued' and l.is_running is null and w.is_waiting is null and h.job_id = j.id
    order by h.finished_at desc limit 1
) a on true
where j.kind = 'notification'
union all
select d.job_id, d.tenant, d.channel, d.pool, d.provider, d.account, d.state, d.provider_id, d.recipient, d.category, d.attempts, d.attempt_count, d.reason,
    d.complained, d.requeued_at, d.created_at, d.updated_at
from flyball.delivery d
where not exists (select from flyball.job j where j.id = d.job_id);
