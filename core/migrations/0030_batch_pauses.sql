-- Chapter 30: a batch that operators have paused is resumed by them alone.

-- True while the batch is paused by operators. Of a batch that was paused before this column came it is
-- not known who did that, so its tenant may resume it.
alter table flyball.batch add column paused_by_operators boolean not null default false;

-- As in 0009, and a pause by operators takes the place of one by the tenant.
create or replace function flyball.pause_batch(tenant text, batch_id bigint, by text default null, why text default '') returns text
language plpgsql volatile set enable_seqscan = off as $$
#variable_conflict use_variable
declare
    found_state text;
begin
    select b.state into found_state from flyball.batch b
    where b.id = batch_id and (pause_batch.tenant is null or b.tenant = pause_batch.tenant) for update;
    if found_state = 'paused' and pause_batch.tenant is null then
        update flyball.batch b set paused_by_operators = true where b.id = batch_id and not b.paused_by_operators;
        if found then
            perform flyball.write_audit(null, flyball.audit_actor(pause_batch.by), 'batch.pause', batch_id::text,
                jsonb_build_object('state', found_state), jsonb_build_object('state', found_state), pause_batch.why);
        end if;
    end if;
    if found_state is null or found_state not in ('expanding', 'running') then
        return found_state;
    end if;
    update flyball.batch b
    set state = 'paused', paused_by_operators = pause_batch.tenant is null, updated_at = now()
    where b.id = batch_id;
    with removed as (
        delete from flyball.ready
        where ctid = any(array(
            select r.tid
            from flyball.batch_jobs(batch_id) j
            cross join lateral (
                select q.ctid as tid from flyball.ready q
                where q.lane_id in (j.lane_id, j.admission_lane) and q.priority = j.priority and q.job_id = j.job_id
                limit 1 for update skip locked
            ) r
        ))
        returning *
    )
    insert into flyball.scheduled (job_id, run_at, lane_id, priority, attempt, cost, retry, holds_unique)
    select t.job_id, now() + interval '3650 days', t.lane_id, t.priority, t.attempt, t.cost, false, t.holds_unique from removed t;
    perform flyball.write_audit(null, flyball.audit_actor(pause_batch.by), 'batch.pause', batch_id::text,
        jsonb_build_object('state', found_state), jsonb_build_object('state', 'paused'), pause_batch.why);
    return 'paused';
end $$;

-- As in 0009, but for a tenant a batch that operators have paused stays paused.
create or replace function flyball.resume_batch(tenant text, batch_id bigint, by text default null, why text default '') returns text
language plpgsql volatile set enable_seqscan = off as $$
#variable_conflict use_variable
declare
    found_state  text;
    remaining    int;
    by_operators boolean;
begin
    select b.state, jsonb_array_length(b.messages), b.paused_by_operators into found_state, remaining, by_operators
    from flyball.batch b
    where b.id = batch_id and (resume_batch.tenant is null or b.tenant = resume_batch.tenant) for update;
    if found_state is distinct from 'paused' or by_operators and resume_batch.tenant is not null then
        return found_state;
    end if;
    found_state := case when remaining > 0 then 'expanding' else 'running' end;
    update flyball.batch b set state = found_state, paused_by_operators = false, updated_at = now() where b.id = batch_id;
    update flyball.scheduled s set run_at = now()
    where s.job_id = any(array(select m.job_id from flyball.batch_message m where m.batch_id = resume_batch.batch_id))
        and s.run_at > now() + interval '3000 days';
    if remaining > 0 then
        perform flyball.enqueue_expansion(batch_id);
    end if;
    perform flyball.write_audit(null, flyball.audit_actor(resume_batch.by), 'batch.resume', batch_id::text,
        jsonb_build_object('state', 'paused'), jsonb_build_object('state', found_state), resume_batch.why);
    return found_state;
end $$;
