-- Chapter 18: recipients that could not take a message are left alone, and changes of accounts are forgotten in the end.

-- Until when nothing goes to a recipient, by whatever message, and how many tries in a row it could not take.
create table flyball.recipient_rest (
    channel          text        not null,
    recipient_digest bytea       not null,
    failures         int         not null,
    rests_until      timestamptz not null,
    -- Until then one message finds out whether it is there again.
    first_until      timestamptz not null default '-infinity',
    primary key (channel, recipient_digest)
) with (fillfactor = 75);
create index recipient_rest_until on flyball.recipient_rest (rests_until);
alter table flyball.recipient_rest set (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off);

create index account_event_created on flyball.account_event (created_at);

-- A message that runs again begins anew: how it ended before says nothing of this time.
create or replace function flyball.note_requeued() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
begin
    insert into flyball.delivery as d (job_id, channel, pool, state, recipient_digest, recipient, category, requeued_at)
    select j.id, coalesce(j.args ->> 'channel', ''), j.throttle, 'queued', flyball.recipient_digest(j.args ->> 'channel', j.args ->> 'to'),
        coalesce(flyball.mask_recipient(j.args ->> 'channel', j.args ->> 'to'), ''), coalesce(j.args ->> 'category', ''), now()
    from (select * from gone order by gone.job_id) g
    cross join lateral (select * from flyball.job where job.id = g.job_id limit 1) j
    where j.kind = 'notification'
        and exists (select from flyball.ready r where r.lane_id = g.lane_id and r.priority = g.priority and r.job_id = g.job_id)
    on conflict on constraint delivery_pkey do update
    set state = case when d.state in ('failed', 'suppressed') then 'queued' else d.state end,
        last_outcome = null, unsent = false, requeued_at = excluded.requeued_at, updated_at = clock_timestamp();
    return null;
end $$;

comment on table flyball.recipient_rest is 'Recipients that could not take a message, and until when they are left alone.';
