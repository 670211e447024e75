-- name: keeper
-- One at a time keeps house; the lock goes with the session, at the latest.
select pg_try_advisory_lock(hashtextextended('{schema} inbox retention', 0))

-- name: done
-- A session that was closed ends a moment later: whoever comes next should not find its lock.
select pg_advisory_unlock(hashtextextended('{schema} inbox retention', 0))

-- name: make_ahead
select {schema}.make_inbox_partitions(now() + %(ahead)s * partition_width) from {schema}.inbox_identity

-- name: topics
select distinct unnest(topics) from {schema}.consumers

-- name: places
-- Also of consumers and topics that were retired: what was kept for them lies among what the others keep.
select distinct topic, partition from {schema}.positions

-- name: partitions
-- Of one table, oldest first, with their bounds, and whether a drop of them was begun and not ended. Without the one for
-- ids that carry no time: it is never dropped.
select c.relname, b.low, b.high, i.inhdetachpending, {schema}.id_time(b.high::uuid) < now() - %(keep)s::interval
  from pg_inherits i join pg_class c on c.oid = i.inhrelid
 cross join lateral (
       select substring(pg_get_expr(c.relpartbound, c.oid) from 'FROM \(''([0-9a-f-]+)''\)') as low,
              substring(pg_get_expr(c.relpartbound, c.oid) from 'TO \(''([0-9a-f-]+)''\)') as high) b
 where i.inhparent = %(table)s::regclass and b.low is not null
 order by b.low

-- name: orphans
-- Partitions that were detached and not dropped: a crash came in between. PostgreSQL left their bounds as a check.
select c.relname, min(u.id), max(u.id)
  from pg_class c join pg_namespace n on n.oid = c.relnamespace
  left join pg_constraint k on k.conrelid = c.oid and k.contype = 'c'
  left join lateral (
       select (regexp_matches(pg_get_constraintdef(k.oid), '''([0-9a-f]{8}-[0-9a-f-]{27})''', 'g'))[1] as id) u on true
 where n.nspname = %(schema)s and c.relkind = 'r' and c.relname ~ '^(inbox|applications)_([0-9]+|past)$'
   and not exists (select from pg_inherits i where i.inhrelid = c.oid)
 group by c.relname order by c.relname

-- name: queued_within
-- How many are unfinished, how many of them are dead letters that hold their key, and one of those that wait longest.
select count(*), count(*) filter (where state = 'dead'),
       (array_agg(consumer || ' ' || id order by state = 'dead' desc, seq))[1]
  from {schema}.queue where id >= %(low)s::uuid and id < %(high)s::uuid

-- name: raise_kept_from
-- Before anything goes, and committed by itself: from now on an id of that time is one that nobody can know.
update {schema}.inbox_identity set kept_from = greatest(kept_from, {schema}.id_time(%(high)s::uuid)) returning kept_from

-- name: prune_named
-- By rows, and by the same rule: old, passed by the log's start, and finished; so must be every copy that came later. With
-- them goes what we know of their part of the log, and that is written down in the same statement.
with gone as (
    delete from {schema}.inbox_named where ctid = any (array(
        select n.ctid from {schema}.inbox_named n
          left join unnest(%(topics)s::text[], %(partitions)s::integer[], %(starts)s::bigint[]) s(topic, partition, start)
            on s.topic = n.topic and s.partition = n.partition
         where n.kept_at < now() - %(keep)s::interval and (n."offset" is null or s.start > n."offset")
           and not exists (
               select from {schema}.queue q
                where q.consumer = n.consumer and q.id = n.id and q.source = n.source)
           and not exists (
               select from {schema}.named_again a
                 left join unnest(%(topics)s::text[], %(partitions)s::integer[], %(starts)s::bigint[])
                           b(topic, partition, start) on b.topic = a.topic and b.partition = a.partition
                where a.consumer = n.consumer and a.id = n.id and a.source = n.source
                  and (a.seen_at < now() - %(keep)s::interval and b.start > a."offset") is not true)
         limit %(limit)s))
    returning consumer, id, source, topic, partition, "offset"
), stood as (
    select g.consumer, g.topic, g.partition, g."offset" from gone g
    union all
    select a.consumer, a.topic, a.partition, a."offset"
      from gone g join {schema}.named_again a on a.consumer = g.consumer and a.id = g.id and a.source = g.source
), noted as (
    -- What was repaired without Kafka stood somewhere in the log, if it was there at all: before its start by now.
    insert into {schema}.named_pruned as p (consumer, topic, partition, next_offset)
    select g.consumer, g.topic, g.partition, max(coalesce(g."offset" + 1, s.start))
      from stood g
      left join unnest(%(topics)s::text[], %(partitions)s::integer[], %(starts)s::bigint[]) s(topic, partition, start)
        on s.topic = g.topic and s.partition = g.partition
     where coalesce(g."offset" + 1, s.start) is not null
     group by g.consumer, g.topic, g.partition
    on conflict (consumer, topic, partition) do update set next_offset = greatest(p.next_offset, excluded.next_offset)
)
select count(*) from gone

-- name: prune_named_again
-- Where copies stood goes with what they are copies of.
with gone as (
    delete from {schema}.named_again where ctid = any (array(
        select a.ctid from {schema}.named_again a
         where not exists (
               select from {schema}.inbox_named n
                where n.id = a.id and n.source = a.source and n.consumer = a.consumer)
         limit %(limit)s))
    returning 1
)
select count(*) from gone

-- name: prune_named_applications
with gone as (
    delete from {schema}.applications_named where ctid = any (array(
        select a.ctid from {schema}.applications_named a
         where a.applied_at < now() - %(keep)s::interval
           and not exists (
               select from {schema}.inbox_named n
                where n.id = a.id and n.source = a.source and n.consumer = a.consumer)
         limit %(limit)s))
    returning 1
)
select count(*) from gone

-- name: prune_dead_letters
-- Those that are done with; what waits for an operator stays.
with gone as (
    delete from {schema}.dead_letters where ctid = any (array(
        select ctid from {schema}.dead_letters
         where state in ('applied', 'discarded') and changed_at < now() - %(keep)s::interval limit %(limit)s))
    returning 1
)
select count(*) from gone
