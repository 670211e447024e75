-- role: consumer
-- Where each consumer began in each partition: what lies behind that is owed to it. Its lowest message says less, for that
-- moves on when the first ones are lost. Null: begun before this was written down.
alter table {schema}.positions add column start_offset bigint check (start_offset >= 0);
