-- Chapter 23: planners take messages out of the queue without a lock before.

-- Takes messages out of the queue whose plan is due, at most `most`, the most urgent first, but none
-- that anybody has touched since it was scheduled: its row is locked or was, or its deletion is under
-- way. The caller puts each where its plan says, in the same transaction.
--
-- To lock the row first would write a record of the log for each message. Instead a planner has all
-- messages of a few runs of ids, as long as its transaction lasts: two of them that found the same row
-- would wait for each other. Should somebody else touch a row after it was found, this waits for 50 ms
-- and then fails, and the caller takes rows by locks.
create function flyball.take_unplanned(most bigint) returns setof flyball.scheduled
language plpgsql volatile set enable_seqscan = off set lock_timeout = '50ms' as $$
begin
    return query
    delete from flyball.scheduled s
    where s.ctid = any(array(
            select d.tid
            from (values (-4::smallint), (-3::smallint), (-2::smallint), (-1::smallint)) as p(turn)
            cross join lateral (
                select q.ctid as tid from flyball.scheduled q
                where (q.turn, q.run_at) >= (p.turn, '-infinity') and (q.turn, q.run_at) <= (p.turn, now())
                    and case when q.xmax = 0 then pg_try_advisory_xact_lock(hashtext('flyball.plan'), (q.job_id >> 9 & 255)::int) else false end
                order by q.turn, q.run_at
                limit most
            ) d
            limit most
        ))
        -- Again, for a row that was moved meanwhile.
        and s.turn between -4 and -1 and s.run_at <= now()
    returning s.*;
end $$;

-- Lets held messages of recipients be planned anew; returns their number. A planner that has taken
-- such a message out of the queue puts it back in a new row, which the second round sees.
create or replace function flyball.replan(recipients uuid[]) returns bigint
language plpgsql volatile as $$
declare
    moved bigint := 0;
    more  bigint;
begin
    for round in 1..2 loop
        update flyball.scheduled s
        set turn = s.priority - 4, run_at = least(s.run_at, now())
        from flyball.message_plan p
        where p.recipient = any (recipients) and p.state = 'held' and s.job_id = p.job_id and (s.turn >= 0 or s.run_at > now());
        get diagnostics more = row_count;
        moved := moved + more;
    end loop;
    if moved > 0 then
        perform pg_notify('flyball_plan', '');
    end if;
    return moved;
end $$;

-- === Permissions =================================================================================

revoke execute on function flyball.take_unplanned from public;

comment on function flyball.take_unplanned is 'Takes messages whose plan is due out of the queue.';
