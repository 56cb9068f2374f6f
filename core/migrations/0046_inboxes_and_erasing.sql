-- Chapter 46: an inbox has no caps of actors, and erasing locks in the order of planners.

do $migration$
declare
    digests constant text := $t$        -- The digests first, one probe of the index for each type: an item that is being put into one is
        -- committed when the lock of its digest is granted, so the next statement sees it.
        closed := '{}';
        current_type := null;
        loop
            select d.type into current_type from flyball.digest d where current_type is null or d.type > current_type order by d.type limit 1;
            exit when not found;
            with gone as (delete from flyball.digest d where d.type = current_type and d.recipient = any (all_keys) returning d.id)
            select coalesce(array_agg(g.id), '{}') into more from gone g;
            closed := closed || more;
        end loop;
        digests_closed := digests_closed + cardinality(closed);
        with gone as (delete from flyball.digest_item i where i.digest_id = any (closed) returning i.job_id)
        select coalesce(array_agg(g.job_id), '{}') into more from gone g;
        all_items := all_items || more;

$t$;
    change  record;
    body    text;
begin
    for change in
        select v.name::regproc as name, v.was, v.becomes
        from (values
        -- An inbox interrupts nobody; `cap_lists` in core/src/recipient/gates.rs has the same.
        ('flyball.refuse_capped',
            $t$if one.args ->> 'actor' is not null then$t$,
            $t$if one.args ->> 'actor' is not null and channel <> 'inapp' then$t$),

        -- A planner takes messages, then claims, lists and digests. Erasing took the digests first, so that each could
        -- wait for the other. A digest that closes meanwhile leaves messages, which the next look finds.
        ('flyball.erase_recipient', digests, ''),
        -- The records are changed at the end, with those of the messages: a planner writes that of a message that was
        -- requeued, and a closer those of its items, after they have locked all else.
        ('flyball.erase_recipient',
            $t$                with gone as (
                    update flyball.delivery d
                    set recipient = '', recipient_digest = null, reason = '', attempts = flyball.without_reasons(d.attempts)
                    where d.tenant = '' and d.recipient_digest = any (all_digests) returning d.job_id
                )
                select coalesce(array_agg(g.job_id), '{}') into of_records from gone g;
$t$,
            $t$                of_records := array(
                    select d.job_id from flyball.delivery d where d.tenant = '' and d.recipient_digest = any (all_digests));
$t$),
        ('flyball.erase_recipient',
            $t$                with gone as (
                    update flyball.delivery d
                    set recipient = '', recipient_digest = null, reason = '', attempts = flyball.without_reasons(d.attempts)
                    where d.tenant = erase_recipient.tenant and d.tenant <> '' and d.recipient_digest = any (all_digests) returning d.job_id
                )
                select coalesce(array_agg(g.job_id), '{}') into of_records from gone g;
$t$,
            $t$                of_records := array(
                    select d.job_id from flyball.delivery d
                    where d.tenant = erase_recipient.tenant and d.tenant <> '' and d.recipient_digest = any (all_digests));
$t$),
        ('flyball.erase_recipient',
            $t$        cancelled := cancelled + flyball.erase_messages(fresh);
$t$,
            $t$        cancelled := cancelled + flyball.erase_messages(fresh);
        perform from flyball.dedup d where d.recipient = any (all_keys) order by d.recipient, d.content for update;
        with gone as (delete from flyball.dedup d where d.recipient = any (all_keys) returning 1) select claims + count(*) into claims from gone;
        perform from flyball.cap c where c.recipient = any (all_keys) order by c.recipient, c.list for update;
        with gone as (delete from flyball.cap c where c.recipient = any (all_keys) returning 1) select caps + count(*) into caps from gone;
$t$ || replace(rtrim(digests, E'\n') || E'\n', 'The digests first, one probe', 'One probe')),
        ('flyball.erase_recipient',
            $t$    digests_closed := 0;
$t$,
            $t$    digests_closed := 0;
    claims := 0;
    caps := 0;
    closed := '{}';
$t$),
        -- What came since then.
        ('flyball.erase_recipient',
            $t$where c.recipient = any (all_keys) returning 1) select count(*) into caps from gone;$t$,
            $t$where c.recipient = any (all_keys) returning 1) select caps + count(*) into caps from gone;$t$),
        ('flyball.erase_recipient',
            $t$where d.recipient = any (all_keys) returning 1) select count(*) into claims from gone;$t$,
            $t$where d.recipient = any (all_keys) returning 1) select claims + count(*) into claims from gone;$t$)
        ) as v(name, was, becomes)
    loop
        body := pg_get_functiondef(change.name);
        if length(body) - length(replace(body, change.was, '')) <> length(change.was) then
            raise exception '% does not contain once: %', change.name, change.was;
        end if;
        execute replace(body, change.was, change.becomes);
    end loop;
end $migration$;
