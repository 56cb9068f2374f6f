-- Chapter 12: how long the work took, not only in the mean. What a worker tells of a throttle gets a histogram, so that a governor can
-- hold the slowest hundredth where it shall be, and counts apart the attempts whose duration says nothing.

-- `durations` counts attempts that succeeded by how long they took: less than a millisecond first, and each bucket a fifth wider than
-- the one before; buckets at the end that are 0 are left out. `untimed` are those among `completed` that neither `busy_s` nor
-- `durations` knows.
alter table flyball.feedback
    add column untimed   bigint   not null default 0,
    add column durations bigint[] not null default '{}';
