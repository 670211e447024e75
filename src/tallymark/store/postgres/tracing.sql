-- name: what_is_here
select to_regclass('{schema}.outbox') is not null, to_regclass('{schema}.inbox') is not null,
       to_regclass('{schema}.certificates') is not null, clock_timestamp(),
       (select coalesce(min(substring(pg_get_expr(c.relpartbound, c.oid) from 'FROM \(''(\d+)''\)')::bigint), 0)
          from pg_inherits h join pg_class c on c.oid = h.inhrelid where h.inhparent = to_regclass('{schema}.outbox'))

-- name: written
-- A message's rows, each with what became of it: parked first (it has left its batch), then the batch that covers it.
-- When its transaction committed is null where the server does not keep that, or no longer.
with found as (
    select o.position, o.slot, o.topic, o.key, o.created_at, o.headers->>'tm_resend' as resend,
           case when current_setting('track_commit_timestamp')::boolean then pg_xact_commit_timestamp(o.xmin) end as committed
      from {schema}.outbox o where o.id = %(id)s
    union all
    select p.position, p.slot, p.topic, p.key, p.created_at, p.headers->>'tm_resend', null
      from {schema}.parked p where p.id = %(id)s
       and not exists (select from {schema}.outbox o where o.position = p.position)
), placed as (
    select f.*, i.lanes, p.state as parked, p.reason, p.parked_at, p.changed_at, p.retry_batch
      from found f cross join {schema}.outbox_identity i
      left join {schema}.parked p on p.position = f.position
)
select p.position, p.topic, p.key, coalesce(b.lane, mod(p.slot, p.lanes)), p.created_at, p.resend, p.committed, b.number, b.kind, b.mode, b.state, b.owner,
       b.claimed_at, b.sent_at, b.receipt_offset, b.in_doubt, p.parked, p.reason, p.parked_at, p.changed_at,
       case when b.number is null and p.parked is null then coalesce(
           (select 'topic ' || h.topic || ' is ' || h.state || ': ' || h.reason from {schema}.topic_holds h
             where h.lane = mod(p.slot, p.lanes) and h.topic = p.topic and h.from_position < p.position),
           (select case when l.halted is not null then 'lane ' || l.lane || ' is halted: ' || l.halted
                        when l.paused then 'lane ' || l.lane || ' is paused'
                        when l.owner is null or l.lease_until < clock_timestamp() then 'no relay has lane ' || l.lane
                        else 'its turn has not come yet'
                   end from {schema}.lanes l where l.lane = mod(p.slot, p.lanes) and l.covered < p.position)) end
  from placed p
  left join lateral (
      select b.* from {schema}.batches b
       where b.covered >= p.position and b.lane = mod(p.slot, coalesce(b.lanes, p.lanes))
         and case when p.retry_batch is not null then b.number = p.retry_batch
                  else p.parked is null and b.after_position < p.position and b.upto >= p.position
                       and (b.kind = 'range' or b.topic = p.topic) and p.topic <> all(b.without_topics) end
       order by b.covered, b.number limit 1
  ) b on true
 order by p.position

-- name: delayed
select topic, key, created_at, due_at from {schema}.delayed where id = %(id)s

-- name: certificate
-- The certificate whose window holds a position; the newest, where a window was certified again.
select number, window_start, window_end, issued_at from {schema}.certificates
 where window_start <= %(position)s and window_end > %(position)s order by number desc limit 1

-- name: deeds
select at, who, action, reason from {schema}.audit where subject = %(name)s order by at limit 100

-- name: kept
select i.consumer, i.source, i.topic, i.partition, i."offset", i.position, i.key, i.logged_at, i.kept_at,
       case when current_setting('track_commit_timestamp')::boolean then pg_xact_commit_timestamp(i.xmin) end, p.next_offset
  from {schema}.inbox i
  left join {schema}.positions p
    on p.consumer = i.consumer and p.topic = i.topic and p.partition = i.partition
 where i.id = %(id)s and (i.named is null or i.named = %(name)s)
 order by i.consumer

-- name: effects
select consumer, seq, attempt, outcome, applied_at from {schema}.applications where id = %(id)s order by seq

-- name: unfinished
-- With how many of its key stand before it, and whether anybody is there to apply them.
select q.consumer, q.state, q.attempts, q.reason, q.due_at,
       (select count(*) from {schema}.queue b
         where b.consumer = q.consumer and b.key_hash = q.key_hash and b.seq < q.seq),
       exists (select from {schema}.instances n where n.consumer = q.consumer and n.seen_until > clock_timestamp())
  from {schema}.queue q where q.id = %(id)s order by q.consumer, q.seq

-- name: dead
select consumer, state, attempts, reason, topic, partition, "offset", died_at, changed_at, position
  from {schema}.dead_letters where id = %(id)s order by number

-- name: readers
-- Who reads a topic, by what they said at their last start, and was not stopped for good; and whether they have passed a
-- place in it, where one is known, and had begun before it; since when their database remembers what they kept; and
-- whether they began behind that place, so that it is not owed to them.
select c.name, i.kept_from, exists (select from {schema}.positions p
                        where p.consumer = c.name and p.topic = %(topic)s and p.partition = %(partition)s
                          and p.next_offset > %(offset)s and coalesce(p.start_offset, 0) <= %(offset)s),
       exists (select from {schema}.positions p
                where p.consumer = c.name and p.topic = %(topic)s and p.partition = %(partition)s
                  and p.start_offset > %(offset)s)
  from {schema}.consumers c, {schema}.inbox_identity i
 where %(topic)s = any(c.topics) and c.retired_at is null order by c.name

-- name: ids_written
select id::text from {schema}.outbox
 where key = %(key)s and created_at >= %(since)s and (%(topic)s::text is null or topic = %(topic)s)
 order by position limit %(limit)s

-- name: ids_kept
-- Where no outbox is known. There is no index on the key: asked rarely, by a person.
select coalesce(named, id::text) from {schema}.inbox
 where key = %(key)s and coalesce(logged_at, kept_at) >= %(since)s and (%(topic)s::text is null or topic = %(topic)s)
 order by coalesce(logged_at, kept_at) limit %(limit)s
