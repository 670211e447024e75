-- name: failed
-- Dead letters, and what is being tried again by itself; with how many wait behind each (counted up to a thousand).
with failed as (
    select d.number, d.consumer, d.id, d.named, d.source, d.topic, d.partition, d."offset", d.key, d.state, d.reason,
           d.attempts, d.died_at as since, null::timestamptz as due_at, d.key_hash, d.seq
      from {schema}.dead_letters d
     where d.state = any(%(states)s) and (%(consumer)s::text is null or d.consumer = %(consumer)s)
    union all
    select null, q.consumer, q.id, i.named, q.source, q.topic, q.partition, q."offset", i.key, q.state, q.reason,
           q.attempts, i.kept_at, q.due_at, q.key_hash, q.seq
      from {schema}.queue q
      left join {schema}.inbox i on i.id = q.id and i.source = q.source and i.consumer = q.consumer
     where q.state = 'retrying' and 'retrying' = any(%(states)s)
       and (%(consumer)s::text is null or q.consumer = %(consumer)s)
       and not exists (
           select from {schema}.dead_letters d
            where d.consumer = q.consumer and d.key_hash = q.key_hash and d.seq = q.seq and d.state = 'retrying')
)
select f.number, f.consumer, f.id, f.named, f.source, f.topic, f.partition, f."offset", f.key, f.state, f.reason,
       f.attempts, f.since, f.due_at, f.key_hash, f.seq,
       (select count(*) from (select from {schema}.queue b where b.consumer = f.consumer and b.key_hash = f.key_hash
                                 and b.seq > f.seq limit 1000) b)
  from failed f
 where (%(topic)s::text is null or f.topic = %(topic)s)
   and (%(ids)s::text[] is null or f.id::text = any(%(ids)s) or f.named = any(%(ids)s))
 order by f.since, f.number limit %(limit)s

-- name: one
select number, consumer, id, named, source, topic, partition, "offset", position, key, value, headers::text as headers,
       logged_at, state, reason, traceback, attempts, died_at, changed_at, seq is not null as holds_key
  from {schema}.dead_letters
 where (id::text = %(id)s or named = %(id)s) and (%(consumer)s::text is null or consumer = %(consumer)s)
 order by number

-- name: one_queued
select q.consumer, q.id, i.named, q.source, q.topic, q.partition, q."offset", i.position, i.key, i.value,
       i.headers::text as headers, i.logged_at, q.state, q.reason, q.attempts, q.due_at, i.kept_at, true as holds_key
  from {schema}.queue q
  left join {schema}.inbox i on i.id = q.id and i.source = q.source and i.consumer = q.consumer
 where (q.id::text = %(id)s or i.named = %(id)s) and (%(consumer)s::text is null or q.consumer = %(consumer)s)

-- name: close_gate
-- Alone: whoever looks whether a key is held and then applies beside the queue is done, or has not begun.
select pg_advisory_xact_lock(hashtextextended('{schema} gate ' || %(consumer)s, 0))

-- name: reread_dead
-- After the key's lock: what a worker did meanwhile is seen.
select state, key_hash, seq from {schema}.dead_letters where number = %(number)s for update

-- name: died_meanwhile
-- What was still being tried when it was listed, and has a dead letter by now.
select number from {schema}.dead_letters
 where consumer = %(consumer)s and source = %(source)s and id = %(id)s and topic = %(topic)s
   and partition = %(partition)s and "offset" is not distinct from %(offset)s and state in ('dead', 'retrying')

-- name: ready
-- At once, and with all its attempts; its place stays.
update {schema}.queue set state = 'ready', attempts = 0, due_at = null, reason = null
 where consumer = %(consumer)s and key_hash = %(key_hash)s and seq = %(seq)s and state in ('dead', 'retrying')
returning seq

-- name: mark
update {schema}.dead_letters
   set state = %(state)s, key_hash = %(key_hash)s, seq = %(seq)s, changed_at = clock_timestamp()
 where number = %(number)s

-- name: kept
-- Whether this very message is what is kept under its id: same contents, same place in the log.
select i.key is not distinct from d.key and i.value is not distinct from d.value
       and i.topic = d.topic and i.partition = d.partition and i."offset" is not distinct from d."offset"
  from {schema}.dead_letters d
  join {schema}.inbox i on i.id = d.id and i.source = d.source and i.consumer = d.consumer
 where d.number = %(number)s

-- name: read_again
-- What became of one that was kept, and has a dead letter without a place: where it waits in the queue, or nothing where
-- it was applied; no row where it died in the ordinary way. In one statement, for a worker takes it from the one place to
-- the other.
select f.key_hash, f.seq
  from {schema}.dead_letters d
 cross join lateral (
       (select q.key_hash, q.seq from {schema}.queue q
         where q.consumer = d.consumer and q.key_hash = any(%(keys)s) and q.id = d.id and q.source = d.source limit 1)
       union all
       (select null, null from {schema}.applications a
         where a.consumer = d.consumer and a.id = d.id and a.source = d.source limit 1)) f
 where d.number = %(number)s limit 1

-- name: keep
insert into {schema}.inbox (id, source, named, topic, partition, "offset", position, key, value, headers, logged_at,
                            consumer)
select id, source, named, topic, partition, "offset", position, key, value, headers, logged_at, consumer
  from {schema}.dead_letters where number = %(number)s

-- name: give_name
-- From now on it is known as one whose id is no time: such a row has a place, whatever its age.
update {schema}.dead_letters set id = %(id)s, named = %(name)s where number = %(number)s

-- name: later_applied
-- Whether a later message of its key was applied (kept, and neither queued nor dead), and the handler minds. One that was
-- set apart and applied after it was read again has a dead letter, too, which may not say so yet. Later is what
-- stands behind it in the outbox; where that is not said, in its partition of the log. There is no index for this, so that
-- keeping does not pay for it: it reads the inbox from a day before the message on, in parallel, and is rarely asked. A later
-- one may bear an older id (it was delayed, or its id was given): such a one was applied since.
with older as materialized (
    select a.id, a.source from {schema}.applications a
     where a.consumer = %(consumer)s and a.applied_at >= {schema}.id_time(%(from_id)s)
       and a.id < %(from_id)s and a.id >= '00010000-0000-0000-0000-000000000000'
), later as (
    select i.id, i.source, i.topic, i.partition, i."offset", i.key, i.position, i.headers
      from {schema}.dead_letters d
      join {schema}.inbox i on i.topic = d.topic and i.key = d.key
     where d.number = %(number)s and i.consumer = %(consumer)s
       and (i.id >= %(from_id)s or i.id < '00010000-0000-0000-0000-000000000000')
    union all
    select i.id, i.source, i.topic, i.partition, i."offset", i.key, i.position, i.headers
      from older o join {schema}.inbox i on i.id = o.id and i.source = o.source and i.consumer = %(consumer)s
)
select exists (
    select from {schema}.dead_letters d
      join later i on i.topic = d.topic and i.key = d.key and (i.id, i.source) <> (d.id, d.source)
     where d.number = %(number)s
       and case when i.source = d.source
                 and {schema}.stands_at(i.position, i.headers) <> {schema}.stands_at(d.position, d.headers)
                then {schema}.stands_at(i.position, i.headers) > {schema}.stands_at(d.position, d.headers)
                else i.partition = d.partition and (d."offset" is null or i."offset" > d."offset") end
       and not exists (select from {schema}.consumers c
                        where c.name = d.consumer and (d.topic = any(c.unordered) or d.topic = any(c.versioned)))
       and not exists (
           select from {schema}.queue q
            where q.consumer = d.consumer and q.key_hash = %(key_hash)s and q.id = i.id and q.source = i.source)
       and not exists (
           select from {schema}.dead_letters o
            where o.consumer = d.consumer and o.source = i.source and o.id = i.id and o.state <> 'applied'
              and o.partition = i.partition and o."offset" is not distinct from i."offset"
              and not exists (
                  select from {schema}.applications a
                   where a.consumer = o.consumer and a.id = o.id and a.source = o.source offset 0)))

-- name: neighbours
-- The rows of its key between which it belongs: by where they stand in the outbox, or by their place in the log.
select max(q.seq) filter (where earlier), min(q.seq) filter (where not earlier)
  from {schema}.dead_letters d
  join {schema}.queue q on q.consumer = d.consumer and q.key_hash = %(key_hash)s
  left join {schema}.inbox i on i.id = q.id and i.source = q.source and i.consumer = q.consumer
 cross join lateral (
       select case when i.source = d.source
                    and {schema}.stands_at(i.position, i.headers) <> {schema}.stands_at(d.position, d.headers)
                   then {schema}.stands_at(i.position, i.headers) < {schema}.stands_at(d.position, d.headers)
                   else q."offset" < d."offset" end) w(earlier)
 where d.number = %(number)s and d.consumer = %(consumer)s

-- name: put_back
insert into {schema}.queue (consumer, key_hash, seq, source, id, topic, partition, "offset")
select consumer, %(key_hash)s, coalesce(%(seq)s, nextval('{schema}.queue_seq')), source, id, topic, partition, "offset"
  from {schema}.dead_letters where number = %(number)s
returning seq

-- name: remove
delete from {schema}.queue
 where consumer = %(consumer)s and key_hash = %(key_hash)s and seq = %(seq)s and state in ('dead', 'retrying')
returning seq

-- name: take_out
-- Whatever its state: with its key locked no worker has it.
delete from {schema}.queue where consumer = %(consumer)s and key_hash = %(key_hash)s and seq = %(seq)s

-- name: bury_discarded
-- What was still being tried has no dead letter yet: one is written, so that what was given up can be shown.
insert into {schema}.dead_letters (consumer, id, source, named, topic, partition, "offset", position, key, value, headers,
                                   logged_at, key_hash, state, reason, attempts)
select q.consumer, q.id, q.source, i.named, q.topic, q.partition, q."offset", i.position, i.key, i.value,
       coalesce(i.headers, '{}'), i.logged_at, q.key_hash, 'discarded', coalesce(q.reason, ''), q.attempts
  from {schema}.queue q
  left join {schema}.inbox i on i.id = q.id and i.source = q.source and i.consumer = q.consumer
 where q.consumer = %(consumer)s and q.key_hash = %(key_hash)s and q.seq = %(seq)s and q.state = 'retrying'
on conflict (consumer, source, id, topic, partition, "offset") do update
   set state = 'discarded', reason = excluded.reason, attempts = excluded.attempts, seq = null,
       changed_at = clock_timestamp()
