-- name: memory
-- Of ids from when on it knows, and what time it is.
select kept_from, clock_timestamp() from {schema}.inbox_identity

-- name: make_ahead
-- Partitions stand ready well before a message needs them; widths, not days, so that a narrow cut is not made thousands.
select {schema}.make_inbox_partitions(now() + %(ahead)s * partition_width) from {schema}.inbox_identity

-- name: enlist_consumer
-- Locks the consumer's row: of two that enlist at once, the second sees the first.
insert into {schema}.consumers as c (name, topics, mode, unordered, versioned, positions)
values (%(consumer)s, %(topics)s, %(mode)s, %(unordered)s, %(versioned)s, %(positions)s)
on conflict (name) do update set topics = excluded.topics, mode = excluded.mode, positions = excluded.positions,
       unordered = coalesce(excluded.unordered, c.unordered), versioned = coalesce(excluded.versioned, c.versioned),
       retired_at = null

-- name: other_topics
-- A live instance of this name that reads something else: two programs under one name, or half of a roll-out.
select owner, topics from {schema}.instances
 where consumer = %(consumer)s and owner <> %(owner)s and seen_until > clock_timestamp()
   and topics <> %(topics)s::text[]
 order by started_at desc limit 1

-- name: enlist_instance
insert into {schema}.instances (owner, consumer, host, pid, version, mode, topics, seen_until)
values (%(owner)s, %(consumer)s, %(host)s, %(pid)s, %(version)s, %(mode)s, %(topics)s,
        clock_timestamp() + make_interval(secs => %(lease_s)s))
on conflict (owner) do update
   set consumer = excluded.consumer, host = excluded.host, pid = excluded.pid, version = excluded.version,
       mode = excluded.mode, topics = excluded.topics, started_at = clock_timestamp(),
       seen_until = excluded.seen_until

-- name: forget_instances
-- Those that were killed never left.
delete from {schema}.instances where seen_until < clock_timestamp() - interval '1 day'

-- name: heartbeat
-- Renews what the caller names, and nothing that only bears its name: a place that it took and lost sight of must run
-- out. A position that is locked is being moved by us, or taken by another: never wait for it; the next beat renews it.
with seen as (
    update {schema}.instances set seen_until = clock_timestamp() + make_interval(secs => %(lease_s)s)
     where owner = %(owner)s
    returning owner
), renewed as (
    update {schema}.positions set lease_until = clock_timestamp() + make_interval(secs => %(lease_s)s)
     where (consumer, topic, partition) in (
           select p.consumer, p.topic, p.partition from {schema}.positions p
             join unnest(%(topics)s::text[], %(partitions)s::integer[], %(epochs)s::bigint[]) m(topic, partition, epoch)
               on p.topic = m.topic and p.partition = m.partition and p.epoch = m.epoch
            where p.consumer = %(consumer)s and p.owner = %(owner)s for update of p skip locked)
)
select coalesce((select paused from {schema}.consumers where name = %(consumer)s), false), exists (select from seen),
       p.topic, p.partition, p.epoch
  from (select) one left join {schema}.positions p on p.consumer = %(consumer)s and p.owner = %(owner)s

-- name: leave
with given as (
    update {schema}.positions
       set owner = null, owner_kind = null, lease_until = null, epoch = epoch + 1, changed_at = clock_timestamp()
     where consumer = %(consumer)s and owner = %(owner)s
)
delete from {schema}.instances where owner = %(owner)s

-- name: positions
select topic, partition, next_offset, epoch, owner, owner_kind, leader_epoch, topic_id, halted, logged_at,
       coalesce(lease_until > clock_timestamp(), false)
  from {schema}.positions where consumer = %(consumer)s

-- name: unknown_topics
select distinct w.topic from unnest(%(topics)s::text[]) w(topic)
 where not exists (select from {schema}.positions p where p.consumer = %(consumer)s and p.topic = w.topic)
 order by w.topic

-- name: lock_topic
-- In a statement of its own: what was founded while we waited is seen by the next one.
select pg_advisory_xact_lock(hashtextextended('{schema} topic ' || %(topic)s, hashtextextended(%(consumer)s, 0)))

-- name: found_topic
-- All partitions of a topic at once, and only the first time: from then on, one without a position was added later.
insert into {schema}.positions (consumer, topic, partition, next_offset, start_offset, topic_id)
select %(consumer)s, w.topic, w.partition, w.start, w.start, w.topic_id
  from unnest(%(topics)s::text[], %(partitions)s::integer[], %(starts)s::bigint[], %(topic_ids)s::text[])
       w(topic, partition, start, topic_id)
 where not exists (select from {schema}.positions p where p.consumer = %(consumer)s and p.topic = w.topic)
 order by w.topic, w.partition
on conflict (consumer, topic, partition) do nothing

-- name: take
-- A new epoch at every taking: whatever the owner before us still does is refused from now on. A service does not wait
-- for another service's lease: Kafka tells those whose turn it is. A service and a Spark job, or two jobs, would take
-- from each other for ever. In the order of the key, so that two who take the same do not block each other.
insert into {schema}.positions as p
       (consumer, topic, partition, next_offset, start_offset, epoch, owner, owner_kind, lease_until, topic_id)
select %(consumer)s, w.topic, w.partition, w.start, w.start, 1, %(owner)s, %(kind)s,
       clock_timestamp() + make_interval(secs => %(lease_s)s), w.topic_id
  from unnest(%(topics)s::text[], %(partitions)s::integer[], %(starts)s::bigint[], %(topic_ids)s::text[])
       w(topic, partition, start, topic_id)
 order by w.topic, w.partition
on conflict (consumer, topic, partition) do update
   set epoch = p.epoch + 1, owner = excluded.owner, owner_kind = excluded.owner_kind,
       lease_until = excluded.lease_until, changed_at = clock_timestamp(), retired_at = null,
       topic_id = case when p.topic_id = '' then excluded.topic_id else p.topic_id end
 where p.owner is null or p.owner = excluded.owner or p.lease_until <= clock_timestamp()
    or (p.owner_kind = 'service' and excluded.owner_kind = 'service')
returning topic, partition, next_offset, epoch, owner, owner_kind, leader_epoch, topic_id, halted, logged_at, true

-- name: end_sessions
-- Whatever a process that is gone, cut off or stopped has begun: its locks would keep its successor waiting.
select count(pg_terminate_backend(pid)) from pg_stat_activity
 where datname = current_database() and xact_start is not null
   and application_name like any (%(applications)s::text[])

-- name: end_lapsed
-- The same of processes of this consumer that say nothing any more, whether or not they hold a place: a worker that stands
-- still has keys, and rows of the business. What was begun after that is left alone: whoever begins it is alive. Named as
-- application_of names them.
select count(pg_terminate_backend(a.pid))
  from {schema}.instances i join pg_stat_activity a
    on starts_with(a.application_name, 'tallymark inbox ' || regexp_replace(i.owner, '^.*:', '') || ',')
 where i.consumer = %(consumer)s and i.owner <> %(owner)s and i.seen_until < clock_timestamp()
   and a.datname = current_database() and a.xact_start < i.seen_until

-- name: release
-- With a new epoch: what was begun before is not to move it afterwards.
update {schema}.positions p
   set owner = null, owner_kind = null, lease_until = null, epoch = p.epoch + 1, changed_at = clock_timestamp()
  from unnest(%(topics)s::text[], %(partitions)s::integer[], %(epochs)s::bigint[]) m(topic, partition, epoch)
 where p.consumer = %(consumer)s and p.topic = m.topic and p.partition = m.partition
   and p.owner = %(owner)s and p.epoch = m.epoch

-- name: keep_few
-- In the order of the log.
insert into {schema}.inbox
       (id, source, named, topic, partition, "offset", position, key, value, headers, logged_at, consumer)
select w.id, w.source, w.named, w.topic, w.partition, w.at, w.position, w.key, w.value, w.headers::json, w.logged_at,
       %(consumer)s
  from unnest(%(ids)s::uuid[], %(sources)s::text[], %(named)s::text[], %(topics)s::text[], %(partitions)s::integer[],
              %(offsets)s::bigint[], %(positions)s::bigint[], %(keys)s::bytea[], %(values)s::bytea[], %(headers)s::text[],
              %(logged_ats)s::timestamptz[])
       w(id, source, named, topic, partition, at, position, key, value, headers, logged_at)

-- name: record_few
insert into {schema}.applications (consumer, source, topic, outcome, id, attempt, partition, "offset")
select %(consumer)s, w.source, w.topic, w.outcome, w.id, w.attempt, w.partition, w.at
  from unnest(%(sources)s::text[], %(topics)s::text[], %(outcomes)s::text[], %(ids)s::uuid[], %(attempts)s::integer[],
              %(partitions)s::integer[], %(offsets)s::bigint[])
       w(source, topic, outcome, id, attempt, partition, at)

-- name: advance
-- One statement for all positions. The epoch alone would not stop a skip: a batch that was dropped after a commit of
-- unknown outcome, and the next one moving on past it. So the start must be where the position stands.
-- An offset stands beside the leader's epoch of what lies before it, or beside none: beside an older one Kafka takes it for
-- an offset of a log that was cut, and nobody can read on.
-- From here on the rows are locked: a process that is stopped before its commit must not keep its successor waiting.
with moved as (
    update {schema}.positions p
       set next_offset = m.upto, leader_epoch = case when m.upto > m.start then m.leader_epoch else p.leader_epoch end,
           logged_at = coalesce(m.logged_at, p.logged_at), kept = p.kept + m.kept,
           lease_until = greatest(p.lease_until, clock_timestamp() + make_interval(secs => %(lease_s)s)),
           changed_at = clock_timestamp()
      from unnest(%(topics)s::text[], %(partitions)s::integer[], %(epochs)s::bigint[], %(starts)s::bigint[],
                  %(uptos)s::bigint[], %(leader_epochs)s::integer[], %(logged_ats)s::timestamptz[], %(kept)s::bigint[])
           m(topic, partition, epoch, start, upto, leader_epoch, logged_at, kept)
     where p.consumer = %(consumer)s and p.topic = m.topic and p.partition = m.partition
       and p.epoch = m.epoch and p.next_offset = m.start and m.upto >= m.start and p.owner is not null and p.halted is null
    returning p.topic, p.partition
)
select topic, partition, set_config('idle_in_transaction_session_timeout', %(idle)s, true) from moved

-- name: halt
update {schema}.positions set halted = %(reason)s, changed_at = clock_timestamp()
 where consumer = %(consumer)s and topic = %(topic)s and partition = %(partition)s and epoch = %(epoch)s

-- name: count_fenced
update {schema}.positions p set fenced = p.fenced + 1
  from unnest(%(topics)s::text[], %(partitions)s::integer[]) m(topic, partition)
 where p.consumer = %(consumer)s and p.topic = m.topic and p.partition = m.partition

-- name: known
-- What was kept before under these ids, told by its contents. A digest: values may be large, and only equality counts.
select w.n, i.key, sha256(i.value)
  from unnest(%(ids)s::uuid[], %(sources)s::text[]) with ordinality w(id, source, n)
 cross join lateral (
       select i.key, i.value from {schema}.inbox i
        where i.id = w.id and i.source = w.source and i.consumer = %(consumer)s limit 1) i

-- name: note_again
-- Copies of what is kept under an id that carries no time, which is not forgotten before the log has dropped all of them.
-- One that stands where the kept one does is no copy: it was only read again. In one order, as others note the same.
-- Each costs one probe of an index, as in `known`: a planner that takes the inbox for empty, as it was a moment ago, reads
-- all of it. Such ids are all in one partition, which the bound names; consumers have no right to it by its own name.
insert into {schema}.named_again as a (id, source, consumer, topic, partition, "offset")
select w.id, w.source, %(consumer)s, w.topic, w.partition, max(w.at)
  from unnest(%(ids)s::uuid[], %(sources)s::text[], %(topics)s::text[], %(partitions)s::integer[], %(offsets)s::bigint[])
       w(id, source, topic, partition, at)
  left join lateral (
       select true as there from {schema}.inbox i
        where i.id = w.id and i.id < '00010000-0000-0000-0000-000000000000' and i.source = w.source and i.consumer = %(consumer)s
          and i.topic = w.topic and i.partition = w.partition and i."offset" = w.at limit 1) k on true
 where k.there is null
 group by w.id, w.source, w.topic, w.partition
 order by w.id, w.source, w.topic, w.partition
on conflict (id, source, consumer, topic, partition) do update
   set "offset" = greatest(a."offset", excluded."offset"), seen_at = excluded.seen_at

-- name: raise_version
insert into {schema}.versions as v (consumer, topic, key, version)
values (%(consumer)s, %(topic)s, %(key)s, %(version)s)
on conflict (consumer, topic, key) do update set version = excluded.version where v.version < excluded.version
returning version

-- name: announce
-- A dead letter's copy, added to the outbox of this same database.
select {schema}.outbox_add(%(topic)s, %(value)s::bytea, %(key)s::bytea, %(headers)s::json)

-- name: note_no_copy
update {schema}.dead_letters set reason = reason || %(said)s
 where consumer = %(consumer)s and source = %(source)s and id = %(id)s and topic = %(topic)s
   and partition = %(partition)s and "offset" is not distinct from %(offset)s
