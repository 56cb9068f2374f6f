-- Chapter 25: a throttle whose jobs all fail. Each worker's row of a throttle says when one of its attempts last succeeded and last failed,
-- and how many had failed by its last success; so whoever reads all rows knows how many have failed since.

alter table flyball.feedback
    add column succeeded_at  timestamptz,
    add column failed_at     timestamptz,
    add column failed_before bigint not null default 0;
