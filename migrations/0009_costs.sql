-- Chapter 10: what jobs really cost. A handler may say what its job cost in tokens; what attempts of a kind cost in the mean is
-- kept here, so that whoever enqueues can be told what to estimate.

-- How many attempts of the kind have ended since this is counted, and what one of the last thousand or so cost in the mean.
alter table flyball.kind add column attempts bigint not null default 0;
alter table flyball.kind add column mean_cost double precision;
