-- role: producer
-- By how many lanes the outbox was cut when a batch was claimed: a message's batch is found by its lane of that time,
-- whatever the number of lanes is today. Null: claimed before this was written down, and taken for today's.
alter table {schema}.batches add column lanes smallint check (lanes between 1 and 256);

-- How often operators have asked something of a lane's parked messages: its owner looks at them when that has changed,
-- and not every second. There may be a million behind one failed message.
alter table {schema}.lanes add column asked bigint not null default 0;

-- Names that callers gave are forgotten by their age, where an operator says so.
create index dedup_keys_added on {schema}.dedup_keys (added_at);
