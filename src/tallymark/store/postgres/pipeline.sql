-- name: begin_run
insert into {schema}.runs (run, consumer, owner, topics, master, host, pid, version)
values (%(run)s, %(consumer)s, %(owner)s, %(topics)s, %(master)s, %(host)s, %(pid)s, %(version)s)

-- name: make_staging
select {schema}.make_staging(%(run)s, %(suffix)s)

-- name: end_left
-- What is in the way of that: sessions of ours in the tables of such runs, as of a task that stands still in mid-COPY.
select count(pg_terminate_backend(a.pid))
  from {schema}.runs r
  join pg_class c on c.relkind = 'r' and starts_with(c.relname, 'staging_' || r.run)
  join pg_namespace s on s.oid = c.relnamespace and s.nspname = '{schema}'
  join pg_database d on d.datname = current_database()
  join pg_locks l on l.database = d.oid and l.relation = c.oid and l.granted
  join pg_stat_activity a on a.pid = l.pid and a.usename = current_user and a.application_name like 'tallymark %%'
 where r.consumer = %(consumer)s and r.run <> %(run)s and a.pid <> pg_backend_pid()
   and not exists (select from {schema}.positions p
                    where p.consumer = r.consumer and p.owner = r.owner and p.lease_until > clock_timestamp())

-- name: drop_staging
-- Asked by a run that has taken the positions: what others have left goes, unless one of them holds positions.
select {schema}.drop_staging(%(consumer)s, %(run)s)

-- name: drop_ended
-- After end_run: this run's tables, and none of a run that has not ended.
select {schema}.drop_staging(%(consumer)s, '')

-- name: end_run
update {schema}.runs set ended_at = clock_timestamp(), seen_at = clock_timestamp(), trouble = %(trouble)s
 where run = %(run)s and ended_at is null

-- name: seen_run
update {schema}.runs set seen_at = clock_timestamp() where run = %(run)s

-- name: forget_batches
-- The ledger tells of the last weeks; the positions need none of it.
delete from {schema}.ingested where consumer = %(consumer)s and committed_at < now() - interval '30 days'

-- name: forget_runs
-- With them; not one whose staging tables are still there, for they are found by it, nor this one.
delete from {schema}.runs
 where consumer = %(consumer)s and run <> %(run)s and seen_at < now() - interval '30 days'
   and not exists (select from pg_class c
                    where c.relnamespace = '{schema}'::regnamespace and starts_with(c.relname, 'staging_' || run))

-- name: clear_staging
-- After the commit, in a transaction of its own: tokens are random, so that what is left over is never counted. It takes
-- the table alone; a task that was given up and still writes must not keep us.
truncate {table}

-- name: room
-- For the length of the transaction: ids and places of a whole batch are sorted in memory, and not on a disk.
set local work_mem = '64MB'

-- name: staged
select token, count(*) from {table} group by token

-- name: keep_staged
insert into {schema}.inbox (id, source, named, topic, partition, "offset", position, key, value, headers, logged_at, consumer)
select id, source, named, topic, partition, "offset", position, key, value, headers, logged_at, %(consumer)s
  from {table} where token = any(%(tokens)s)

-- name: drop_known
-- What the inbox has already. With the same contents, which may be all of a batch that is read again, it goes, and is told by
-- how many were at which place; under an id that was used for something else it is marked. Both go by one look.
with known as (
    select s.ctid as at, i.key is not distinct from s.key and i.value is not distinct from s.value as same,
           i.topic = s.topic and i.partition = s.partition and i."offset" is not distinct from s."offset" as own
      from {table} s join {schema}.inbox i on i.id = s.id and i.source = s.source and i.consumer = %(consumer)s
     where s.token = any(%(tokens)s)
), marked as (
    update {table} s set n = -1 from known k where s.ctid = k.at and not k.same
), gone as (
    delete from {table} s using known k where s.ctid = k.at and k.same
    returning s.id, s.source, s.named, s.topic, s.partition, s."offset", k.own
), noted as (
    -- As the service notes it: an id without a time is known for as long as the log has any copy.
    insert into {schema}.named_again as a (id, source, consumer, topic, partition, "offset")
    select id, source, %(consumer)s, topic, partition, max("offset") from gone
     where named is not null and not own
     group by id, source, topic, partition order by id, source, topic, partition
    on conflict (id, source, consumer, topic, partition) do update
       set "offset" = greatest(a."offset", excluded."offset"), seen_at = excluded.seen_at
)
select topic, partition, count(*) from gone group by topic, partition

-- name: drop_twice
-- What stands in this batch twice: the first one counts. Told and marked as above.
with firsts as (
    select distinct on (id, source) ctid as at, id, source, key, value from {table}
     where token = any(%(tokens)s) order by id, source, topic, partition, "offset"
), known as (
    select s.ctid as at, f.key is not distinct from s.key and f.value is not distinct from s.value as same, false as own
      from {table} s join firsts f on s.id = f.id and s.source = f.source and s.ctid <> f.at
     where s.token = any(%(tokens)s)
), marked as (
    update {table} s set n = -1 from known k where s.ctid = k.at and not k.same
), gone as (
    delete from {table} s using known k where s.ctid = k.at and k.same
    returning s.id, s.source, s.named, s.topic, s.partition, s."offset", k.own
), noted as (
    -- As the service notes it: an id without a time is known for as long as the log has any copy.
    insert into {schema}.named_again as a (id, source, consumer, topic, partition, "offset")
    select id, source, %(consumer)s, topic, partition, max("offset") from gone
     where named is not null and not own
     group by id, source, topic, partition order by id, source, topic, partition
    on conflict (id, source, consumer, topic, partition) do update
       set "offset" = greatest(a."offset", excluded."offset"), seen_at = excluded.seen_at
)
select topic, partition, count(*) from gone group by topic, partition

-- name: mark_odd
-- Ids that cannot be trusted by the time they claim.
update {table} set n = -1 where token = any(%(tokens)s) and id >= '00010000-0000-0000-0000-000000000000'
   and (id < %(low)s or id >= %(high)s)

-- name: marked
-- What is taken out with its values: a piece at a time, for together they may be as large as the batch.
select id, source, named, topic, partition, "offset", position, key, value, headers::text, logged_at
  from {table} where token = any(%(tokens)s) and n = -1

-- name: drop_marked
delete from {table} where token = any(%(tokens)s) and n = -1

-- name: put_back_odd
-- Those that their handler's own scheme can tell: kept under their name, for their day's partition is gone.
insert into {table} (id, source, named, topic, partition, "offset", position, key, value, headers, logged_at, token)
values (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s::json, %s, %s)

-- name: how_many_wait
-- Up to a bound: a queue may be longer than anybody wants to read.
select count(*) from (select from {schema}.queue where consumer = %(consumer)s limit %(at_most)s) q

-- name: drop_held
-- What has to wait behind the unfinished of its key, where few wait: by the keys themselves. Without values and headers:
-- whoever takes them from the queue reads those in the inbox.
with waiting as (
    select distinct i.topic, i.key from {schema}.queue q
      join {schema}.inbox i on i.id = q.id and i.source = q.source and i.consumer = q.consumer
     where q.consumer = %(consumer)s and i.key is not null
)
delete from {table} s using waiting w
 where s.token = any(%(tokens)s) and s.topic = w.topic and s.key = w.key and s.topic = any(%(ordered)s)
returning s.id, s.source, s.named, s.topic, s.partition, s."offset", s.position, s.key, null::bytea, '', s.logged_at

-- name: keys
-- Those that came, where many wait.
select distinct topic, key from {table}
 where token = any(%(tokens)s) and key is not null and topic = any(%(ordered)s)

-- name: drop_behind
-- What has to wait behind these keys.
delete from {table} s using unnest(%(topics)s::text[], %(keys)s::bytea[]) w(topic, key)
 where s.token = any(%(tokens)s) and s.topic = w.topic and s.key = w.key
returning s.id, s.source, s.named, s.topic, s.partition, s."offset", s.position, s.key, null::bytea, '', s.logged_at

-- name: drop_behind_from
-- The same from the n-th row on. Asked for each piece in which something failed: by an index, for that may be all of them.
delete from {table} s using unnest(%(topics)s::text[], %(keys)s::bytea[]) w(topic, key)
 where hashtextextended(encode(s.key, 'hex'), 0) = hashtextextended(encode(w.key, 'hex'), 0) and s.n >= %(from_n)s
   and s.token = any(%(tokens)s) and s.topic = w.topic and s.key = w.key
returning s.id, s.source, s.named, s.topic, s.partition, s."offset", s.position, s.key, null::bytea, '', s.logged_at

-- name: number
-- The order of the log, within a partition: by it the batch can be cut.
update {table} s set n = r.n
  from (select ctid, row_number() over (order by topic, partition, "offset") - 1 as n
          from {table} where token = any(%(tokens)s)) r
 where s.ctid = r.ctid

-- name: rows
select id, source, named, topic, partition, "offset", position, key, value, headers::text, logged_at
  from {table} where token = any(%(tokens)s) and n >= %(low)s and n < %(high)s
 order by n

-- name: outlines
-- All of them, in order, as a queue needs them.
select s.id, s.source, s.named, s.topic, s.partition, s."offset", s.position, s.key, null::bytea, '', s.logged_at
  from {table} s where s.token = any(%(tokens)s) and (%(from_n)s::bigint is null or s.n >= %(from_n)s)
 order by topic collate "C", partition, "offset"

-- name: record_staged
-- In the order of the log within a partition; which topic comes first is no matter, so bytes are compared.
insert into {schema}.applications (consumer, source, topic, outcome, id, attempt, partition, "offset")
select %(consumer)s, source, topic, 'applied', id, 1, partition, "offset"
  from {table} where token = any(%(tokens)s) and (%(low)s::bigint is null or (n >= %(low)s and n < %(high)s))
 order by topic collate "C", partition, "offset"

-- name: write_ledger
-- Numbered here: Spark begins at 0 again with every query of a run.
insert into {schema}.ingested (run, batch, consumer, ranges, read, kept, applied, queued, dead, load_s, commit_s)
select %(run)s, coalesce(max(batch) + 1, 0), %(consumer)s, %(ranges)s::json, %(read)s, %(kept)s, %(applied)s, %(queued)s,
       %(dead)s, %(load_s)s, %(commit_s)s
  from {schema}.ingested where run = %(run)s

-- name: runs
-- The last run of each consumer, and what it did.
select distinct on (r.consumer) r.consumer, r.run, r.owner, r.topics, r.master, r.started_at, r.seen_at, r.ended_at,
       r.trouble
  from {schema}.runs r where %(consumer)s::text is null or r.consumer = %(consumer)s
 order by r.consumer, r.started_at desc

-- name: batches
select batch, ranges, read, kept, applied, queued, dead, load_s, commit_s, committed_at
  from {schema}.ingested where run = %(run)s order by batch desc limit %(limit)s

-- name: totals
select count(*), coalesce(sum(read), 0)::bigint, coalesce(sum(kept), 0)::bigint, coalesce(sum(applied), 0)::bigint,
       coalesce(sum(queued), 0)::bigint, coalesce(sum(dead), 0)::bigint, min(committed_at), max(committed_at),
       coalesce(sum(load_s), 0), coalesce(sum(commit_s), 0)
  from {schema}.ingested where run = %(run)s
