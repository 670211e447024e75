-- name: lanes
-- Backlog: rows beyond what the lane has covered. Counted up to a limit, so that status stays quick behind a
-- backlog of millions.
select l.lane, l.owner, l.epoch, l.lease_until > clock_timestamp() as alive, l.covered, l.last_number, l.paused,
       l.halted, l.sent, l.resolved, l.fenced, b.backlog, b.oldest,
       (select extract(epoch from clock_timestamp() - min(u.claimed_at))::float from {schema}.batches u
         where u.lane = l.lane and u.state = 'sending') as sending_for,
       (select coalesce(sum(r.messages), 0)::float / 60 from {schema}.batches r
         where r.lane = l.lane and r.state = 'sent' and r.covered > l.covered - 10000000
           and r.sent_at > clock_timestamp() - interval '60 s') as rate
  from {schema}.lanes l
  cross join {schema}.outbox_identity i
  left join lateral (
      select count(*) as backlog, extract(epoch from clock_timestamp() - min(c.created_at))::float as oldest
        from (select o.created_at from {schema}.outbox o
               where o.position > l.covered and mod(o.slot, i.lanes) = l.lane order by o.position limit 100000) c
  ) b on true
 order by l.lane

-- name: outbox
select i.outbox_id::text, i.lanes, i.created_at, s.last_value - (not s.is_called)::integer,
       (select count(*) from {schema}.delayed), (select min(due_at) from {schema}.delayed),
       (select count(*) from {schema}.parked where state = 'failed'),
       (select count(*) from {schema}.parked where state in ('waiting', 'retrying'))
  from {schema}.outbox_identity i, {schema}.outbox_position s

-- name: relays
select owner, host, pid, mode, version, accepted, extract(epoch from clock_timestamp() - started_at)::float
  from {schema}.relays where seen_until > clock_timestamp() order by started_at

-- name: floors
-- Who holds the reader back: the oldest first. A prepared transaction has no process.
select ((l.classid::bigint << 32) | l.objid::bigint) & ((1::bigint << 48) - 1) as floor, l.pid,
       a.application_name, a.state, coalesce(a.client_addr::text, 'local'),
       extract(epoch from clock_timestamp() - coalesce(a.xact_start, p.prepared))::float as age
  from pg_locks l
  cross join {schema}.outbox_identity i
  left join pg_stat_activity a on a.pid = l.pid
  left join pg_prepared_xacts p on l.pid is null and '-1/' || p.transaction::text = l.virtualtransaction
 where l.locktype = 'advisory' and l.objsubid = 1 and l.mode = 'ShareLock'
   and l.database = (select oid from pg_database where datname = current_database())
   and (l.classid::bigint >> 16) = i.tag
 order by age desc nulls last limit 5

-- name: holds
-- With how many of its rows were passed over: counted among the next 100,000 of each lane, so that status stays quick
-- here too, and whether there may be more.
with begun as (
    select h.lane, min(h.from_position) as after, l.covered
      from {schema}.topic_holds h join {schema}.lanes l on l.lane = h.lane group by h.lane, l.covered
), passed as (
    select b.lane, p.position, p.topic
      from begun b cross join {schema}.outbox_identity i
     cross join lateral (
           select o.position, o.topic from {schema}.outbox o
            where o.position > b.after and o.position <= b.covered and mod(o.slot, i.lanes) = b.lane
            order by o.position limit 100000) p
), looked as (
    select lane, count(*) >= 100000 as cut from passed group by lane
), counted as (
    select h.lane, h.topic, count(*) as messages
      from {schema}.topic_holds h
      join passed p on p.lane = h.lane and p.topic = h.topic and p.position > h.from_position
     group by h.lane, h.topic
)
select h.topic, array_agg(h.lane order by h.lane), min(h.state), min(h.reason), min(h.held_at),
       coalesce(sum(c.messages), 0)::bigint, coalesce(bool_or(k.cut), false)
  from {schema}.topic_holds h left join looked k on k.lane = h.lane
  left join counted c on c.lane = h.lane and c.topic = h.topic
 group by h.topic order by h.topic

-- name: pause
update {schema}.lanes set paused = %(paused)s, changed_at = clock_timestamp()
 where (%(lanes)s::smallint[] is null or lane = any(%(lanes)s::smallint[])) and paused <> %(paused)s
returning lane

-- name: clear
-- Receipts can be forgotten of a lane that is not halted, too: where their topic is gone no relay starts, to halt any.
-- Number -1: whatever the log has last is taken for the lane's own.
update {schema}.lanes
   set halted = null, changed_at = clock_timestamp(),
       receipt_number = case when %(forget)s then -1 else receipt_number end,
       receipt_token = case when %(forget)s then null else receipt_token end,
       receipt_offset = case when %(forget)s then null else receipt_offset end
 where lane = %(lane)s and (halted is not null or (%(forget)s and (owner is null or lease_until < clock_timestamp())))
returning lane

-- name: forget_receipts_topic
update {schema}.outbox_identity set receipts_topic_id = null

-- name: audit
insert into {schema}.audit (who, action, subject, reason, details)
values (%(who)s, %(action)s, %(subject)s, %(reason)s, %(details)s::json)

-- name: parked
-- Failed messages, with how many wait behind each.
select p.position, p.id::text, p.topic, p.key, p.state, p.reason, p.attempts, p.parked_at,
       (select count(*) from {schema}.parked w
         where w.slot = p.slot and w.topic = p.topic and md5(w.key) = md5(p.key) and w.key = p.key
           and w.state = 'waiting' and w.position > p.position)
  from {schema}.parked p
 where p.state = any(%(states)s) and (%(topic)s::text is null or p.topic = %(topic)s)
   and p.position > %(after)s
 order by p.position limit %(limit)s

-- name: parked_one
select p.position, p.id::text, p.topic, p.key, p.state, p.reason, p.attempts, p.parked_at, p.value, p.headers::text,
       p.partition, p.created_at, p.batch, p.retry_batch, p.changed_at
  from {schema}.parked p where p.id = %(id)s

-- name: retry
-- Only a failed message can be retried; what waits behind it follows by itself. The lanes' owners are told to look.
with freed as (
    update {schema}.parked set state = 'retrying', changed_at = clock_timestamp()
     where id = any(%(ids)s::uuid[]) and state = 'failed'
    returning id, slot
), told as (
    update {schema}.lanes l set asked = l.asked + 1 from {schema}.outbox_identity i
     where l.lane in (select mod(freed.slot, i.lanes) from freed)
)
select id::text from freed

-- name: discard
-- The first that waited behind it takes its place at the head: it is sent next, and the queue behind it follows.
with gone as (
    update {schema}.parked set state = 'discarded', changed_at = clock_timestamp()
     where id = any(%(ids)s::uuid[]) and state in ('failed', 'waiting')
    returning id, slot
), told as (
    update {schema}.lanes l set asked = l.asked + 1 from {schema}.outbox_identity i
     where l.lane in (select mod(gone.slot, i.lanes) from gone)
)
select id::text from gone

-- name: messages
-- The newest messages of the outbox, of one state where that is asked for: derived as in outbox.sql. What is not sent
-- yet stands behind what every lane and every held topic has done with.
select o.id::text
  from {schema}.outbox o
  cross join {schema}.outbox_identity i
  left join {schema}.parked p on p.position = o.position
  left join lateral (
      select b.state from {schema}.batches b
       where b.covered >= o.position and b.lane = mod(o.slot, coalesce(b.lanes, i.lanes)) and b.after_position < o.position
         and b.upto >= o.position and (b.kind = 'range' or b.topic = o.topic) and o.topic <> all(b.without_topics)
       order by b.covered, b.number limit 1
  ) b on p.position is null and %(state)s::text is not null
 where (%(topic)s::text is null or o.topic = %(topic)s) and (%(key)s::bytea is null or o.key = %(key)s)
   and (%(state)s::text is null or %(state)s = coalesce(p.state, b.state, 'pending'))
   and (%(state)s::text is distinct from 'pending' and %(state)s::text is distinct from 'sending'
        or o.position > least((select min(covered) from {schema}.lanes where lane < i.lanes),
                              (select min(from_position) from {schema}.topic_holds),
                              (select min(after_position) from {schema}.batches where state = 'sending')))
 order by o.position desc limit %(limit)s

-- name: messages_parked
-- Those that left their batch: the outbox may have dropped its own copy.
select id::text from {schema}.parked
 where state = any(case when %(state)s = 'discarded' then '{discarded}' else '{failed,waiting,retrying}' end::text[])
   and (%(topic)s::text is null or topic = %(topic)s) and (%(key)s::bytea is null or key = %(key)s)
 order by position desc limit %(limit)s

-- name: messages_delayed
select id::text from {schema}.delayed
 where (%(topic)s::text is null or topic = %(topic)s) and (%(key)s::bytea is null or key = %(key)s)
 order by created_at desc limit %(limit)s

-- name: accept_topic
update {schema}.topics
   set topic_id = %(topic_id)s, partitions = %(partitions)s, recorded_at = clock_timestamp(),
       remade_at = case when topic_id = %(topic_id)s then remade_at else clock_timestamp() end
 where topic = %(topic)s
returning topic

-- name: lock_lanes
lock table {schema}.lanes, {schema}.relays in access exclusive mode

-- name: backlog
-- What must be empty before the lanes can change: messages not yet sent, batches in doubt, parked and held ones.
select (select count(*) from {schema}.relays where seen_until > clock_timestamp()),
       (select count(*) from {schema}.batches where state = 'sending'),
       (select count(*) from {schema}.parked where state in ('failed', 'waiting', 'retrying')),
       (select count(*) from {schema}.topic_holds),
       (select count(*) from (
           select from {schema}.outbox o, {schema}.lanes l, {schema}.outbox_identity i
            where o.position > (select min(covered) from {schema}.lanes)
              and l.lane = mod(o.slot, i.lanes) and o.position > l.covered limit 1) rest),
       (select lanes from {schema}.outbox_identity)

-- name: set_lanes
update {schema}.outbox_identity set lanes = %(lanes)s

-- name: add_lanes
-- A new lane starts where the others stand: nothing before that is its own. One that is no longer used keeps its row:
-- its receipts stand in the log, and its numbers must go on from there when it is used again.
insert into {schema}.lanes (lane, covered)
select n, (select max(covered) from {schema}.lanes) from generate_series(%(first)s, %(lanes)s - 1) n
on conflict (lane) do update set covered = excluded.covered

-- name: level_lanes
-- With a new epoch: a relay that was only stopped, and wakes, must not go on by the old cut.
update {schema}.lanes
   set covered = (select max(covered) from {schema}.lanes), epoch = epoch + 1, owner = null, lease_until = null
