-- name: consumer
select topics, mode from {schema}.consumers where name = %(consumer)s

-- name: close_gate
-- Alone: whoever looks whether a key is held and then applies beside the queue is done, or has not begun.
select pg_advisory_xact_lock(hashtextextended('{schema} gate ' || %(consumer)s, 0))

-- name: held_keys
select k.key_hash from unnest(%(keys)s::bigint[]) k(key_hash)
 cross join lateral (
       select from {schema}.queue q where q.consumer = %(consumer)s and q.key_hash = k.key_hash limit 1) q
 order by k.key_hash

-- name: lock_key
-- As a worker does, but waiting for it.
select pg_advisory_xact_lock(hashtextextended('{schema} ' || %(consumer)s, %(key_hash)s))

-- name: try_key
select pg_try_advisory_xact_lock(hashtextextended('{schema} ' || %(consumer)s, %(key_hash)s))

-- name: neighbours
-- The rows of its key between which it belongs, by where they stand in the outbox.
select max(q.seq) filter (where at < %(position)s), min(q.seq) filter (where at > %(position)s)
  from {schema}.queue q
  left join {schema}.inbox i on i.id = q.id and i.source = q.source and i.consumer = q.consumer
 cross join lateral {schema}.stands_at(i.position, i.headers) at
 where q.consumer = %(consumer)s and q.key_hash = %(key_hash)s

-- name: put_between
insert into {schema}.queue (consumer, key_hash, seq, source, id, topic, partition, "offset")
values (%(consumer)s, %(key_hash)s, %(seq)s, %(source)s, %(id)s, %(topic)s, %(partition)s, %(offset)s)

-- name: forgotten
-- Which of these, by number, stand in a part of the log that ids without a time are no longer known of. Asked after they
-- were kept: what retention took away until then is seen.
select w.n from unnest(%(topics)s::text[], %(partitions)s::integer[], %(offsets)s::bigint[])
                with ordinality w(topic, partition, "offset", n)
  join {schema}.named_pruned p on p.consumer = %(consumer)s and p.topic = w.topic and p.partition = w.partition
 where w."offset" < p.next_offset

-- name: behind
-- Which of these, by number, come behind a later message of their key that was kept before (not by this very call), and
-- whose handler minds. Later is what stands behind it in the outbox; where that is not said, in its partition of the log.
-- There is no index for this, so that keeping does not pay for it: it reads the inbox from a day before the first of them
-- on. A later one may bear an older id (it was delayed, or its id was given): such a one was applied since, or waits.
with replayed as (
    select * from unnest(%(topics)s::text[], %(partitions)s::integer[], %(offsets)s::bigint[], %(positions)s::bigint[],
                         %(keys)s::bytea[], %(ids)s::uuid[], %(sources)s::text[])
           with ordinality as r (topic, partition, "offset", position, key, id, source, n)
), keys as (
    select distinct topic, key from replayed
), older as materialized (
    select a.id, a.source from {schema}.applications a
     where a.consumer = %(consumer)s and a.applied_at >= {schema}.id_time(%(from_id)s)
       and a.id < %(from_id)s and a.id >= '00010000-0000-0000-0000-000000000000'
    union
    select q.id, q.source from {schema}.queue q
     where q.consumer = %(consumer)s and q.id < %(from_id)s and q.id >= '00010000-0000-0000-0000-000000000000'
), kept as (
    select i.id, i.source, i.topic, i.partition, i."offset", i.key, {schema}.stands_at(i.position, i.headers) as position
      from {schema}.inbox i join keys k on k.topic = i.topic and k.key = i.key
     where i.consumer = %(consumer)s and (i.id >= %(from_id)s or i.id < '00010000-0000-0000-0000-000000000000')
    union all
    select i.id, i.source, i.topic, i.partition, i."offset", i.key, {schema}.stands_at(i.position, i.headers)
      from older o
      join {schema}.inbox i on i.id = o.id and i.source = o.source and i.consumer = %(consumer)s
      join keys k on k.topic = i.topic and k.key = i.key
)
select r.n from replayed r
 where not exists (select from {schema}.consumers c
                    where c.name = %(consumer)s and (r.topic = any(c.unordered) or r.topic = any(c.versioned)))
   and exists (
    select from kept i
     where i.topic = r.topic and i.key = r.key
       and case when i.source = r.source and i.position <> r.position
                then i.position > r.position
                else i.partition = r.partition and i."offset" > r."offset" end
       and not exists (select from replayed o where o.id = i.id and o.source = i.source))
 order by r.n
