-- name: consumers
-- The queue is small by nature: it holds only what is unfinished, so one pass over it counts all. A key is parked while
-- its lowest row failed; the rows behind that one only wait.
select c.name, c.topics, c.mode, c.paused, q.queued, q.parked, d.dead, d.retrying, d.applied, d.discarded, r.rate,
       c.positions = 'kafka'
  from {schema}.consumers c
 cross join lateral (
       select count(*) as queued,
              count(*) filter (where q.state <> 'ready' and not exists (
                  select from {schema}.queue b
                   where b.consumer = q.consumer and b.key_hash = q.key_hash and b.seq < q.seq)) as parked
         from {schema}.queue q where q.consumer = c.name) q
 cross join lateral (
       select count(*) filter (where d.state = 'dead') as dead, count(*) filter (where d.state = 'retrying') as retrying,
              count(*) filter (where d.state = 'applied') as applied,
              count(*) filter (where d.state = 'discarded') as discarded
         from {schema}.dead_letters d where d.consumer = c.name) d
 cross join lateral (
       select count(*)::float / 60 as rate from {schema}.applications a
        where a.consumer = c.name and a.applied_at > now() - interval '60 s') r
 where case when %(consumer)s::text is null then c.retired_at is null else c.name = %(consumer)s end
 order by c.name

-- name: positions
select consumer, topic, partition, next_offset, epoch, owner, owner_kind,
       coalesce(lease_until > clock_timestamp(), false), halted, kept, fenced, logged_at, changed_at
  from {schema}.positions
 where (%(consumer)s::text is null or consumer = %(consumer)s) and retired_at is null
 order by consumer, topic, partition

-- name: instances
select consumer, owner, host, pid, mode, version, extract(epoch from clock_timestamp() - started_at)::float
  from {schema}.instances
 where seen_until > clock_timestamp() and (%(consumer)s::text is null or consumer = %(consumer)s)
 order by consumer, started_at

-- name: pause
update {schema}.consumers set paused = %(paused)s where name = %(consumer)s and paused <> %(paused)s returning name

-- name: retire
-- One that lives is not retired: it would go on. Its positions, its dead letters and what it kept stay as they are.
update {schema}.consumers c set retired_at = clock_timestamp()
 where c.name = %(consumer)s and c.retired_at is null
   and not exists (select from {schema}.instances n where n.consumer = c.name and n.seen_until > clock_timestamp())
   and not exists (select from {schema}.positions p where p.consumer = c.name and p.lease_until > clock_timestamp())
returning c.name

-- name: retire_topic
-- One that it still reads, or that somebody holds, is not dropped. The rows stay: whoever reads it again goes on there.
update {schema}.positions p set retired_at = clock_timestamp()
  from {schema}.consumers c
 where c.name = %(consumer)s and p.consumer = c.name and p.topic = %(topic)s and p.retired_at is null
   and not p.topic = any(c.topics) and not exists (
       select from {schema}.positions h
        where h.consumer = c.name and h.topic = p.topic and h.lease_until > clock_timestamp())
returning p.partition

-- name: reads
-- Whether it reads a topic; who holds positions in it; whether it stands in it at all.
select %(topic)s = any(c.topics),
       (select min(p.owner) from {schema}.positions p
         where p.consumer = c.name and p.topic = %(topic)s and p.lease_until > clock_timestamp()),
       exists (select from {schema}.positions p where p.consumer = c.name and p.topic = %(topic)s)
  from {schema}.consumers c where c.name = %(consumer)s

-- name: retired
select name from {schema}.consumers where retired_at is not null order by name

-- name: holders
select owner from {schema}.instances where consumer = %(consumer)s and seen_until > clock_timestamp()
union
select owner from {schema}.positions where consumer = %(consumer)s and lease_until > clock_timestamp()
order by owner

-- name: is_known
select exists (select from {schema}.consumers where name = %(consumer)s)

-- name: place_of
select topic, partition, "offset" from {schema}.inbox
 where id = %(id)s and consumer = %(consumer)s and "offset" is not null limit 1

-- name: before_seek
-- Locked: what moves a position now is done before we look.
select topic, partition, next_offset, halted from {schema}.positions
 where consumer = %(consumer)s and (topic, partition) in (
       select * from unnest(%(topics)s::text[], %(partitions)s::integer[]))
 order by topic, partition for update

-- name: seek
-- With a new epoch and no owner: whoever reads there now is refused at its next write, and takes it anew. The topic's id
-- is forgotten: the offset was meant for the topic as it is today.
insert into {schema}.positions as p (consumer, topic, partition, next_offset, start_offset, epoch)
select %(consumer)s, w.topic, w.partition, w.next_offset, w.next_offset, 1
  from unnest(%(topics)s::text[], %(partitions)s::integer[], %(offsets)s::bigint[]) w(topic, partition, next_offset)
 order by 2, 3
on conflict (consumer, topic, partition) do update
   set next_offset = excluded.next_offset,
       start_offset = case when p.start_offset is not null then least(p.start_offset, excluded.next_offset) end,
       epoch = p.epoch + 1, owner = null, owner_kind = null, lease_until = null,
       leader_epoch = null, topic_id = '', halted = null, logged_at = null, changed_at = clock_timestamp()

-- name: audit
insert into {schema}.audit (who, action, subject, reason, details)
values (%(who)s, %(action)s, %(subject)s, %(reason)s, %(details)s::json)
