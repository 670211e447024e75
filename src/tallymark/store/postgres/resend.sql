-- name: lock
-- Two who resend take turns: the second one sees what the first has sent.
select pg_advisory_xact_lock(hashtextextended('{schema} resend', 0))

-- name: resent
-- How often each was sent again, and when last.
select id::text, max(number), max(resent_at) from {schema}.resends where id = any(%(ids)s::uuid[]) group by id

-- name: contents
-- The row that was written first: whatever was resent copies it. With where the original stood: retention may have left
-- a resend alone.
select o.position, coalesce(r.of_position, o.position), o.headers::text
  from {schema}.outbox o left join {schema}.resends r on r.position = o.position
 where o.id = %(id)s order by o.position limit 1

-- name: lock_keys
-- As `serialize_key` does: a writer of the key who takes turns adds before or behind all of this. In one order, so that
-- two never wait for each other.
select pg_advisory_xact_lock(k.h) from (
    select distinct hashtextextended(w.topic || ':' || encode(w.key, 'hex'), 7) as h
      from unnest(%(topics)s::text[], %(keys)s::bytea[]) w(topic, key) where w.key is not null order by 1) k

-- name: seen
-- When a tally last missed each, and at which consumers ('' for all).
select id, max(last_seen), array_agg(consumer) from {schema}.findings
 where id = any(%(ids)s::text[]) and over_at is null and verdict = any(%(mendable)s::text[]) group by id

-- name: stood
-- Where the first copy of each stood when a tally missed it. Of what was sent again before, that is not all of them.
select distinct on (f.id) w.id, f.partition, f."offset"
  from unnest(%(ids)s::uuid[], %(topics)s::text[]) w(id, topic)
  join {schema}.findings f on f.id = w.id::text and f.topic = w.topic
 where f.over_at is null and f.verdict = any(%(mendable)s::text[]) and f.partition is not null and f."offset" is not null
   and not exists (select from {schema}.resends r where r.id = w.id)
 order by f.id, f."offset"

-- name: counted_on
-- Of what is missed by all: the consumers of its topic that the run knew which missed it.
select f.id, c.key from {schema}.findings f
  join {schema}.tallies t on t.run = f.run
 cross join lateral json_each(t.summary->'consumers') c
 where f.id = any(%(ids)s::text[]) and f.over_at is null and f.consumer = '' and f.verdict = any(%(mendable)s::text[])
   and f.topic in (select json_array_elements_text(c.value))

-- name: readers
-- Whom the last run knew to read each topic: where no consumer is asked, a message may be lacking at any of them.
select r.topic, c.key
  from (select summary from {schema}.tallies where ended_at is not null order by started_at desc limit 1) t
 cross join lateral json_each(t.summary->'consumers') c
 cross join lateral json_array_elements_text(c.value) r(topic)

-- name: idle_longer
-- While inboxes are asked, this transaction may idle for longer than the minute that a session of ours is allowed. By now
-- it holds the locks of its keys and of who resends, yet no floor: relays go on. A client that is dead is noticed by
-- keepalives, one that is stopped is not: hence an hour, and not for ever. Gives back what held before.
with before as materialized (select current_setting('idle_in_transaction_session_timeout') as idle)
select idle, set_config('idle_in_transaction_session_timeout', '1h', true) from before

-- name: idle_as_before
-- Before the first row is added: from there on it holds a floor, and whoever is stopped with that stops the relays.
select set_config('idle_in_transaction_session_timeout', %(idle)s, true)

-- name: first_rows
-- Where each stood first: what is sent again is sent in that order.
select o.id, min(coalesce(r.of_position, o.position))
  from {schema}.outbox o left join {schema}.resends r on r.position = o.position
 where o.id = any(%(ids)s::uuid[]) group by o.id

-- name: later
-- What was written of the same keys behind the first of them. A resend stands where its original stood; what was given up
-- never comes. With the consumers that lack it ('' for all): those for whom it is sent again with them, and those at which
-- a tally has missed it and nobody has sent it again since; and whether it ever was sent again. Of others the newest of
-- each key are enough to ask for, and of one more it is only said that there is more.
-- One scan for all: there is no index on the key.
with wanted as (
    select w.topic, w.key, min(w.position) as first
      from unnest(%(topics)s::text[], %(keys)s::bytea[], %(positions)s::bigint[]) w(topic, key, position)
     where w.key is not null group by 1, 2
), found as (
    select distinct on (o.topic, o.key, o.id) o.id, o.topic, o.key, coalesce(r.of_position, o.position) as position
      from {schema}.outbox o
      join wanted w on w.topic = o.topic and w.key = o.key
      left join {schema}.resends r on r.position = o.position
     where o.position > (select min(first) from wanted) and coalesce(r.of_position, o.position) > w.first
       and not exists (select from {schema}.parked p where p.position = o.position and p.state = 'discarded')
     order by o.topic, o.key, o.id, o.position
), missed as (
    select f.*, array(
               select w.consumer from unnest(%(wanted_ids)s::uuid[], %(wanted_by)s::text[]) w(id, consumer) where w.id = f.id
                union
               select m.consumer from {schema}.findings m
                where m.id = f.id::text and m.over_at is null and m.verdict = any(%(mendable)s::text[])
                  and m.last_seen > coalesce(
                      (select max(r.resent_at) from {schema}.resends r where r.id = f.id), '-infinity')) as lacked_by
      from found f
), newest as (
    select m.*, row_number() over (partition by m.topic, m.key, m.lacked_by = '{}' order by m.position desc) as nth
      from missed m
)
select n.id, n.topic, n.key, n.position, n.lacked_by = '{}' and n.nth > %(enough)s, n.lacked_by,
       n.id <> all(%(ids)s::uuid[]) and exists (select from {schema}.resends r where r.id = n.id)
  from newest n where n.lacked_by <> '{}' or n.nth <= %(enough)s + 1

-- name: reach
-- How far the outbox was written, and the lowest floor of a writer who is still open, but for our own: what stands at or
-- below both can be seen by whoever looks from now on. The sequence first, then the floors, as the relay does.
with drawn as materialized (
    select last_value - (not is_called)::integer as last from {schema}.outbox_position
)
select drawn.last, held.floor
  from drawn left join lateral (
       select min(((l.classid::bigint << 32) | l.objid::bigint) & ((1::bigint << 48) - 1)) as floor
         from pg_locks l, {schema}.outbox_identity i
        where drawn.last >= 0
          and l.locktype = 'advisory' and l.objsubid = 1 and l.granted and l.mode = 'ShareLock'
          and l.database = (select oid from pg_database where datname = current_database())
          and (l.classid::bigint >> 16) = i.tag and l.pid is distinct from pg_backend_pid()) held on true

-- name: written_meanwhile
-- What others have written of these keys, behind what could be seen when they were looked for and before the rows by which
-- these are sent again: it would be applied first. What was seen is known by its id.
select w.id::text from unnest(%(topics)s::text[], %(keys)s::bytea[], %(before)s::bigint[], %(ids)s::uuid[])
                       w(topic, key, before, id)
  join {schema}.outbox o on o.topic = w.topic and o.key = w.key and o.position < w.before
 where o.position > %(seen)s and o.position < %(end)s and o.id <> all(%(known)s::uuid[])
   and not exists (select from {schema}.parked p where p.position = o.position and p.state = 'discarded')
 limit 1

-- name: add
-- A new row at a position of its own; the statement trigger takes the floor here as for every other writer.
insert into {schema}.outbox (id, topic, key, value, headers, partition)
select id, topic, key, value, %(headers)s::json, partition from {schema}.outbox where position = %(position)s
returning position

-- name: record
-- All at once and last: a tally that looks before the commit must not have looked after `resent_at`, or it would seem to
-- miss what was sent again.
insert into {schema}.resends (position, id, number, of_position, verdict, consumer, resent_by)
select r.*, %(who)s
  from unnest(%(positions)s::bigint[], %(ids)s::uuid[], %(numbers)s::integer[], %(of_positions)s::bigint[],
              %(verdicts)s::text[], %(consumers)s::text[]) r

-- name: audit
insert into {schema}.audit (who, action, subject, reason, details)
values (%(who)s, 'tally.resend', %(subject)s, %(reason)s, %(details)s::json)

-- name: standing
-- What each consumer of a topic would make of a message that comes again: whether it has it, whether it has applied
-- it, whether a later one of its key was applied (kept, and neither queued nor dead) or is on its way (queued, or not yet
-- kept, and nobody has missed it), whether it goes by versions, which pass older ones over, or takes any order, and whether
-- its inbox has dropped what it kept of that time; of ids without one, of that part of the log, or nobody knows of which.
-- A dead letter is this message where it stands in the same place: another may bear its id, with other contents.
with wanted as (
    select w.id, w.topic, w.key, w.position, w.partition, w."offset", w.n
      from unnest(%(ids)s::uuid[], %(topics)s::text[], %(keys)s::bytea[], %(positions)s::bigint[],
                  %(partitions)s::integer[], %(offsets)s::bigint[])
           with ordinality w(id, topic, key, position, partition, "offset", n)
), later as (
    select l.topic, l.key, l.position, l.more, c.name as consumer, i.id is not null as kept,
           exists (select from {schema}.queue q where q.consumer = c.name and q.id = l.id) as queued,
           exists (select from {schema}.dead_letters d
                    where d.consumer = c.name and d.id = l.id and d.state <> 'applied'
                      and (i.id is null or d.source = i.source and d.partition = i.partition
                           and d."offset" is not distinct from i."offset")) as dead,
           exists (select from unnest(%(lacked_ids)s::uuid[], %(lacked_by)s::text[]) m(id, consumer)
                    where m.id = l.id and m.consumer in ('', c.name, %(database)s || '/' || c.name)) as missed
      from unnest(%(later_ids)s::uuid[], %(later_topics)s::text[], %(later_keys)s::bytea[],
                  %(later_positions)s::bigint[], %(later_more)s::boolean[]) l(id, topic, key, position, more)
      join {schema}.consumers c on l.topic = any(c.topics) and c.retired_at is null
      left join {schema}.inbox i on i.id = l.id and i.consumer = c.name
)
select w.n - 1, c.name, exists (select from {schema}.inbox i where i.id = w.id and i.consumer = c.name),
       exists (select from {schema}.applications a
                where a.id = w.id and a.consumer = c.name and a.outcome = 'applied'),
       exists (select from later l where l.consumer = c.name and l.topic = w.topic and l.key = w.key
                  and l.position > w.position and l.kept and not l.queued and not l.dead),
       coalesce(w.topic = any(c.versioned), false), coalesce(w.topic = any(c.unordered), false),
       exists (select from later l where l.consumer = c.name and l.topic = w.topic and l.key = w.key
                  and l.position > w.position and (l.more or l.queued or not l.kept and not l.dead and not l.missed)),
       -- Ids that were derived from names say nothing of time, and begin with 16 zero bits.
       case when w.id < '00010000-0000-0000-0000-000000000000'
            then exists (select from {schema}.named_pruned p
                          where p.consumer = c.name and p.topic = w.topic
                            and (w."offset" is null or p.partition = w.partition and w."offset" < p.next_offset))
            else w.id < {schema}.id_floor(m.kept_from) end
  from wanted w join {schema}.consumers c on w.topic = any(c.topics) and c.retired_at is null
 cross join {schema}.inbox_identity m

-- name: standing_here
-- The same of one consumer whose outbox is elsewhere: a later one of its key is known by being kept. What is queued is no
-- harm, for what is repaired is put before it. One scan for all: there is no index on the key.
with wanted as (
    select w.id, w.topic, w.key, w.position, w.n
      from unnest(%(ids)s::uuid[], %(topics)s::text[], %(keys)s::bytea[], %(positions)s::bigint[])
           with ordinality w(id, topic, key, position, n)
), later as (
    select distinct w.n
      from wanted w
      join {schema}.inbox i on i.consumer = %(consumer)s and i.topic = w.topic and i.key = w.key
       and {schema}.stands_at(i.position, i.headers) > w.position and i.id <> w.id
     where not exists (select from {schema}.queue q
                        where q.consumer = i.consumer and q.id = i.id and q.source = i.source)
       and not exists (select from {schema}.dead_letters d
                        where d.consumer = i.consumer and d.id = i.id and d.source = i.source and d.state <> 'applied'
                          and d.partition = i.partition and d."offset" is not distinct from i."offset")
)
select w.n - 1, exists (select from {schema}.inbox i where i.id = w.id and i.consumer = %(consumer)s),
       exists (select from {schema}.applications a
                where a.id = w.id and a.consumer = %(consumer)s and a.outcome = 'applied'),
       exists (select from later l where l.n = w.n),
       coalesce(w.topic = any(c.versioned), false), coalesce(w.topic = any(c.unordered), false)
  from wanted w join {schema}.consumers c on c.name = %(consumer)s

-- name: remembered_here
-- From when on this inbox knows what it has kept, the topics of which it has dropped what has no time in its id, and what
-- time it is: ids are judged by the database's clock.
select i.kept_from, array(select distinct p.topic from {schema}.named_pruned p where p.consumer = %(consumer)s),
       clock_timestamp()
  from {schema}.inbox_identity i

-- name: reached_here
-- How far one consumer has come in each partition, in positions of the outboxes that write there: what it has kept from
-- the log says so.
select topic, partition, source, max(position) from {schema}.inbox
 where consumer = %(consumer)s and topic = any(%(topics)s::text[]) and "offset" is not null and position is not null
 group by topic, partition, source
