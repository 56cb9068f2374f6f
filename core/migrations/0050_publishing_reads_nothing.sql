-- Chapter 50: a transaction that publishes reads no publications of others.
--
-- In a transaction SERIALIZABLE Postgres remembers every read. Those that published at the same time had read where
-- the others wrote, and of eight at a time more than half failed with 40001. The size of the table tells without a read
-- that so many cannot wait, because no row takes less than 48 bytes; only a table of that size is read.

do $migration$
declare
    change record;
    body   text := pg_get_functiondef('flyball.append_publication'::regproc);
begin
    for change in
        select v.was, v.becomes
        from (values
        ($t$    numbers := (select p.id from flyball.publication p where p.tenant = append_publication.tenant order by p.tenant desc, p.id desc limit 1)
        - (select p.id from flyball.publication p where p.tenant = append_publication.tenant order by p.tenant, p.id limit 1) + 1;
$t$,
            $t$    if pg_relation_size('flyball.publication') >= queue_max * 48 then
        numbers := (select p.id from flyball.publication p where p.tenant = append_publication.tenant order by p.tenant desc, p.id desc limit 1)
            - (select p.id from flyball.publication p where p.tenant = append_publication.tenant order by p.tenant, p.id limit 1) + 1;
    end if;
$t$),
        -- Beside a null the count would be asked for.
        ($t$if numbers >= queue_max and exists ($t$,
            $t$if coalesce(numbers, 0) >= queue_max and exists ($t$)
        ) as v(was, becomes)
    loop
        if length(body) - length(replace(body, change.was, '')) <> length(change.was) then
            raise exception 'flyball.append_publication does not contain once: %', change.was;
        end if;
        body := replace(body, change.was, change.becomes);
    end loop;
    execute body;
end $migration$;
