-- Chapter 51: a refusal names the function that was called, and serializable transactions that send messages or mark
-- them do not fail each other.
--
-- flyball.notify sends by flyball.enqueue_many, which its caller has not called. The name is looked up when something is
-- refused, so that a message that is accepted costs what it did.
--
-- In a transaction SERIALIZABLE Postgres remembers every look. Those that sent at the same time had looked at what waits
-- of their tenant, where the others wrote. As in 0050, the size of the table tells where it cannot be too much.

do $migration$
declare
    change record;
    body   text;
begin
    for change in
        select v.name::regproc as name, v.was, v.becomes
        from (values
        ('flyball.record_pending', $t$    after         int;
begin
$t$,
            $t$    after         int;
    context       text;
begin
$t$),
        ('flyball.record_pending', $t$        raise exception using
            errcode = '53400',
            message = format('%s: the queue of tenant %s is full: %s of its messages are pending%s; the limit is %s', entry_point,
$t$,
            $t$        get diagnostics context = pg_context;
        raise exception using
            errcode = '53400',
            message = format('%s: the queue of tenant %s is full: %s of its messages are pending%s; the limit is %s',
                case when context ~ '\mflyball\.notify\(' then 'notify' when context ~ '\mflyball\.notify_many\(' then 'notify_many' else entry_point end,
$t$),
        -- No row takes less than 44 bytes. Sixteen additions at once have room, because none of them sees the others.
        ('flyball.record_pending', $t$    cap := case when urgent then cap + cap / 10 else cap end;
$t$,
            $t$    cap := case when urgent then cap + cap / 10 else cap end;
    if current_setting('transaction_isolation') = 'serializable' and pg_relation_size('flyball.pending') < (cap - 16 * adding) * 44::bigint then
        insert into flyball.pending (tenant, job_id) select record_pending.tenant, unnest(ids);
        return;
    end if;
$t$),
        ('flyball.check_backlog', $t$    overflow_mode text;
begin
$t$,
            $t$    overflow_mode text;
    context       text;
begin
$t$),
        ('flyball.check_backlog', $t$        raise exception using
            errcode = '53400',
            message = format('%s: throttle %s, key %s: %s jobs of this lane are ready%s; its knob max_backlog allows %s',
                entry_point, to_json(throttle)$t$,
            $t$        get diagnostics context = pg_context;
        raise exception using
            errcode = '53400',
            message = format('%s: throttle %s, key %s: %s jobs of this lane are ready%s; its knob max_backlog allows %s',
                case when context ~ '\mflyball\.notify\(' then 'notify' when context ~ '\mflyball\.notify_many\(' then 'notify_many' else entry_point end,
                to_json(throttle)$t$),
        ('flyball.is_publication_full', $t$    select exists (select from flyball.publication p where p.tenant = is_publication_full.tenant offset greatest(l.max_pending, 1) - 1 limit 1)
$t$,
            $t$    select case when pg_relation_size('flyball.publication') < l.max_pending * 48 then false
        else exists (select from flyball.publication p where p.tenant = is_publication_full.tenant offset greatest(l.max_pending, 1) - 1 limit 1) end
$t$)
        ) as v(name, was, becomes)
    loop
        body := pg_get_functiondef(change.name);
        if length(body) - length(replace(body, change.was, '')) <> length(change.was) then
            raise exception '% does not contain once: %', change.name, change.was;
        end if;
        execute replace(body, change.was, change.becomes);
    end loop;
end $migration$;
