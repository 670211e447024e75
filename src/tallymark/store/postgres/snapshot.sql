-- name: there
-- Which of these tables this database has: a producer's, a consumer's, or both.
select c.relname from pg_class c join pg_namespace n on n.oid = c.relnamespace
 where n.nspname = '{schema}' and c.relname = any(%(names)s) and c.relkind in ('r', 'p')

-- name: hold
-- Before the point is taken: retention must not drop a partition that a task has not read yet. Writers are not held up.
lock table {table} in access share mode

-- name: begin
-- The one point that everything is read at. Sessions that are given the snapshot's name see what this one sees.
select pg_export_snapshot(), pg_current_snapshot()::text, clock_timestamp(), pg_current_wal_lsn()::text,
       current_database()

-- name: outbox_id
select outbox_id::text from {schema}.outbox_identity

-- name: positions
select consumer, topic, partition, next_offset, topic_id from {schema}.positions order by consumer, topic, partition

-- name: size
-- In bytes of the heap, all partitions together.
select coalesce((select sum(pg_relation_size(p.relid)) from pg_partition_tree(%(table)s::regclass) p where p.isleaf),
                pg_relation_size(%(table)s::regclass))::bigint

-- name: ends_outbox
select min(position), max(position) from {schema}.outbox

-- name: ends_batches
select min(covered), max(covered) from {schema}.batches

-- name: ends_dead_letters
select min(number), max(number) from {schema}.dead_letters

-- name: some_inbox
-- Whole pages, so that it is quick at any size; their ids tell where to cut.
select id::text from {schema}.inbox tablesample system (%(percent)s::real) repeatable (7) order by id

-- name: some_applications
select id::text from {schema}.applications tablesample system (%(percent)s::real) repeatable (7) order by id
