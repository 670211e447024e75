-- name: what_is_here
select to_regclass('{schema}.outbox') is not null, to_regclass('{schema}.inbox') is not null

-- name: outbox
-- Who the outbox is, how far its sequence has come, and the lowest position that retention has left.
select i.outbox_id::text, i.lanes, coalesce(pg_sequence_last_value('{schema}.outbox_position'::regclass), 0),
       (select coalesce(min(substring(pg_get_expr(c.relpartbound, c.oid) from 'FROM \(''(\d+)''\)')::bigint), 0)
          from pg_inherits h join pg_class c on c.oid = h.inhrelid
         where h.inhparent = '{schema}.outbox'::regclass and not h.inhdetachpending),
       clock_timestamp()
  from {schema}.outbox_identity i

-- name: floor
-- The lowest floor of a writer that is still open.
select min(((l.classid::bigint << 32) | l.objid::bigint) & ((1::bigint << 48) - 1))
  from pg_locks l, {schema}.outbox_identity i
 where l.locktype = 'advisory' and l.objsubid = 1 and l.granted and l.mode = 'ShareLock'
   and l.database = (select oid from pg_database where datname = current_database())
   and (l.classid::bigint >> 16) = i.tag

-- name: lanes
-- Up to where each lane has sent everything: its cover, or what the first batch on its way begins behind.
select l.lane, least(l.covered, (select min(b.after_position) from {schema}.batches b
                                  where b.lane = l.lane and b.state = 'sending' and b.kind = 'range'))
  from {schema}.lanes l, {schema}.outbox_identity i where l.lane < i.lanes order by l.lane

-- name: first_unsent
-- The first row of a lane behind what it has sent: a lane with nothing to send holds nobody back.
select min(position) from (
    select o.position from {schema}.outbox o, {schema}.outbox_identity i
     where o.position > %(after)s and mod(o.slot, i.lanes) = %(lane)s order by o.position limit 1) first

-- name: holds
select lane, topic, from_position from {schema}.topic_holds

-- name: parked
select id::text, position, state, topic from {schema}.parked
 where position >= %(first)s and position <= %(last)s

-- name: resends
select position, of_position, id::text from {schema}.resends

-- name: overdue
-- What was to be sent later and is due: the relay moves it into the outbox, and only then has it a position.
select id::text, topic, key, due_at from {schema}.delayed where due_at <= %(at)s order by due_at limit %(limit)s

-- name: topics
select topic, topic_id, partitions, remade_at from {schema}.topics

-- name: unrecorded_topics
-- Topics of the outbox that no relay has recorded yet, among the newest rows.
select distinct topic from (select topic from {schema}.outbox order by position desc limit 1000) o

-- name: position_since
select min(position) from {schema}.outbox where created_at >= %(moment)s

-- name: added_at
select created_at from {schema}.outbox where position >= %(position)s order by position limit 1

-- name: positions_of
-- Where these messages stand in the outbox.
select position from {schema}.outbox where id = any(%(ids)s::uuid[])

-- name: known
select id::text from {schema}.outbox where id = any(%(ids)s::uuid[])

-- name: usual_source
select coalesce(headers->>'ce_source', '') from {schema}.outbox order by position desc limit 1

-- name: sources
-- Which of these the outbox's messages name as their source: the first of each is enough. An empty one may have sent all.
select s.source from unnest(%(sources)s::text[]) s(source)
 where exists (select from {schema}.outbox o where coalesce(o.headers->>'ce_source', '') = s.source)
    or not exists (select from {schema}.outbox)

-- name: consumers
-- Those that were not stopped for good: a window is not held open for them, and nothing is owed to them.
select c.name, c.topics, c.created_at, i.kept_from, c.unordered
  from {schema}.consumers c, {schema}.inbox_identity i where c.retired_at is null order by c.name

-- name: retired
select name from {schema}.consumers where retired_at is not null

-- name: positions
-- Those of topics that a consumer reads no more among them: what it keeps of those is owed to nobody.
select consumer, topic, partition, next_offset, start_offset, begun_at, topic_id, retired_at is not null
  from {schema}.positions

-- name: placeless
-- Consumers whose positions are in Kafka, as they say, or as is told by messages from the log without a position.
select c.name from {schema}.consumers c
 where c.retired_at is null and (c.positions = 'kafka'
    or not exists (select from {schema}.positions p where p.consumer = c.name)
   and exists (select from {schema}.inbox i where i.consumer = c.name and i."offset" is not null))

-- name: pruned
select distinct consumer, topic from {schema}.named_pruned

-- name: queue
select q.consumer, coalesce(i.named, q.id::text), q.state, i.position
  from {schema}.queue q
  left join {schema}.inbox i on i.id = q.id and i.source = q.source and i.consumer = q.consumer
 limit %(limit)s

-- name: letters
-- Those that were applied after all are like any other. Whether the inbox keeps this very one: another may bear its id.
select d.consumer, coalesce(d.named, d.id::text), d.state, d.position, i.id is not null
  from {schema}.dead_letters d
  left join {schema}.inbox i on i.id = d.id and i.source = d.source and i.consumer = d.consumer
   and i."offset" is not distinct from d."offset" and i.partition = d.partition
 where d.state <> 'applied' limit %(limit)s

-- name: kept
-- Which of these messages a consumer has, whatever position they came with.
select distinct id::text from {schema}.inbox where consumer = %(consumer)s and id = any(%(ids)s::uuid[])

-- name: beginnings
-- Asked where only the newest part of an inbox is read: what lies before a consumer's first message is not owed to it.
select consumer, topic, partition, min("offset") from {schema}.inbox where "offset" is not null
 group by consumer, topic, partition

-- name: id_bounds
-- The ends of what was kept by a UUIDv7: where to cut the inbox for several readers.
select (select id from {schema}.inbox where id >= '00010000-0000-0000-0000-000000000000' order by id limit 1),
       (select id from {schema}.inbox where id >= '00010000-0000-0000-0000-000000000000' order by id desc limit 1)
