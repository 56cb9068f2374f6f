-- More ways in which an attempt can end. A new word of an enum cannot be used in the transaction that adds it, so what uses
-- these stands in the next migration.

-- The work was handed over and no answer came: nobody knows whether it was done.
alter type flyball.outcome add value if not exists 'ambiguous';

-- The job was over the limit of a throttle that drops, and ended without having run.
alter type flyball.outcome add value if not exists 'dropped';

-- Another job with the same unique key took the place of this one while it waited.
alter type flyball.outcome add value if not exists 'merged';
