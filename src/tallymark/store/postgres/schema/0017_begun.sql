-- role: consumer
-- When each consumer began to read a topic: what the log had dropped by then was never there for it. Null: begun before
-- this was written down, when its making counts.
alter table {schema}.positions add column begun_at timestamptz;
alter table {schema}.positions alter column begun_at set default clock_timestamp();
