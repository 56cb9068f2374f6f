-- Chapter 22: a crowd that is due at once stands in nobody's way. Whatever waits for its time belongs to a turn: its throttle (one of
-- 4095 groups), whether it is a retry, and its priority. Where more is due than one step moves, turns are served side by side.

-- Turns below 8 are of jobs whose throttle is not known: those that were scheduled before this, all of one group.
alter table flyball.scheduled add column turn smallint not null default 0;

-- Two throttles may share a group; they then share a turn, and nothing worse.
create function flyball.turn_of(throttle text, priority smallint, retry boolean) returns smallint
language sql immutable parallel safe
return (coalesce(1 + (hashtext(throttle) & 2147483647) % 4095, 0) << 3 | case when retry then 0 else 4 end | priority)::smallint;

-- The throttle stands in the job's own row, which is written before it is scheduled.
create function flyball.take_turn() returns trigger
language plpgsql as $$
begin
    if tg_op = 'INSERT' then
        new.turn := flyball.turn_of((select j.throttle from flyball.job j where j.id = new.job_id), new.priority, new.retry);
    else
        new.turn := (new.turn & ~4) | case when new.retry then 0 else 4 end;
    end if;
    return new;
end $$;

create trigger scheduled_takes_turn before insert on flyball.scheduled
    for each row when (new.turn = 0) execute function flyball.take_turn();
create trigger scheduled_changes_turn before update of retry on flyball.scheduled
    for each row when (new.retry <> old.retry) execute function flyball.take_turn();

create index scheduled_turn on flyball.scheduled (turn, run_at);
