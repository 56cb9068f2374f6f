-- Chapter 2: what a queue of a hundred thousand lanes needs. Every column has a default, so that workers of the release
-- before can go on beside it.

-- Most jobs hold no unique key until they end; for those, finishing need not look for one. What does not say so is looked at.
alter table flyball.ready add column holds_unique boolean not null default true;
alter table flyball.scheduled add column holds_unique boolean not null default true;
alter table flyball.lease add column holds_unique boolean not null default true;

-- The caller's trace, handed on to the handler, and a time-out of this job alone, in seconds.
alter table flyball.job add column traceparent text;
alter table flyball.job add column timeout_s real check (timeout_s > 0);

-- A lane's share beside the other lanes of its throttle.
alter table flyball.lane add column weight real not null default 1 check (weight > 0 and weight <= 1000);

-- Who looks after which lanes: the top six bits of a lane's id name its shard, so a shard is a range of the index. Ownership
-- only spares workers from looking at the same lanes; claims stay correct whoever makes them.
create table flyball.shard (
    shard      smallint    primary key check (shard between 0 and 63),
    worker_id  int,
    expires_at timestamptz not null default '-infinity'
) with (fillfactor = 50);
insert into flyball.shard (shard) select generate_series(0, 63);

-- A row means that a person has stopped everything: no worker claims until it is gone.
create table flyball.pause (
    one   boolean     primary key default true check (one),
    since timestamptz not null default now(),
    by    text        not null default '',
    why   text        not null default ''
);

-- Leases of a dead worker are looked for once, when it is found dead, so finding them needs no index that every claim would
-- have to feed. A worker whose leases were given back is marked.
drop index flyball.lease_worker;
alter table flyball.worker add column swept boolean not null default false;

-- A worker whose permits are all in use looks after no lanes, and has no part in sharing them out.
alter table flyball.worker add column serves boolean not null default true;

-- Lanes with a weight of their own are few; everybody else has 1.
create index lane_weighted on flyball.lane (lane_id) where weight <> 1;
