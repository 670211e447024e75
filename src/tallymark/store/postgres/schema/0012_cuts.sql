-- role: producer
-- By how many lanes the outbox was cut when a batch was claimed: a message's batch is found by its lane of that time,
-- whatever the number of lanes is today. Null: claimed before this was written down, and taken for today's.
alter table {schema}.batches add column lanes smallint check (lanes between 1 and 256);
