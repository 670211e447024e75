-- name: rooms
-- Which parts of the journey this database holds.
select to_regclass('{schema}.outbox') is not null, to_regclass('{schema}.inbox') is not null,
       to_regclass('{schema}.findings') is not null, to_regclass('{schema}.certificates') is not null,
       to_regclass('{schema}.runs') is not null, to_regclass('{schema}.api_tokens') is not null

-- name: ends
-- The last position drawn, the first that is still there, and how far everything has been claimed.
select s.last_value - (not s.is_called)::integer,
       (select o.position from {schema}.outbox o order by o.position limit 1),
       least((select min(l.covered) from {schema}.lanes l, {schema}.outbox_identity i where l.lane < i.lanes),
             (select min(h.from_position) from {schema}.topic_holds h)),
       (select i.lanes from {schema}.outbox_identity i)
  from {schema}.outbox_position s

-- name: sending
-- Where batches are on their way: the positions that they cover.
select min(after_position), max(upto) from {schema}.batches where state = 'sending'

-- name: probe
-- The first message at or behind a position: when it was added.
select position, created_at from {schema}.outbox where position >= %(position)s order by position limit 1

-- name: page
-- Messages of a stretch of positions, the newest first, with the state of each: parked first, then the batch that covers
-- it (as in outbox.sql). The stretch is bounded by whoever asks: no question reads more than that. The number of lanes
-- is given: joined from its table, the planner would sort what the index has in order already.
select o.position, o.id, o.topic, o.key, o.partition, o.created_at, octet_length(o.value),
       coalesce(b.lane, mod(o.slot, %(lanes)s)) as lane, coalesce(p.retry_batch, b.number), p.state, b.state, b.sent_at, p.reason
  from {schema}.outbox o
  left join lateral (
       select p.state, p.reason, p.retry_batch from {schema}.parked p where p.position = o.position) p on true
  left join lateral (
       select b.number, b.lane, b.state, b.sent_at from {schema}.batches b
        where b.covered >= o.position and b.lane = mod(o.slot, coalesce(b.lanes, %(lanes)s))
          and case when p.retry_batch is not null then b.number = p.retry_batch
                   else p.state is null and b.after_position < o.position and b.upto >= o.position
                        and (b.kind = 'range' or b.topic = o.topic) and o.topic <> all(b.without_topics) end
        order by b.covered, b.number limit 1) b on true
 where o.position > %(after)s and o.position < %(before)s
   and (%(topic)s::text is null or o.topic = %(topic)s)
   and (%(key)s::bytea is null or o.key = %(key)s)
   and (%(since)s::timestamptz is null or o.created_at >= %(since)s)
   and (%(until)s::timestamptz is null or o.created_at < %(until)s)
   and (%(state)s::text is null or %(state)s = case
            when p.state is null then coalesce(b.state, 'pending')
            when p.state in ('sent', 'discarded') then p.state else 'failed' end)
 order by o.position desc limit %(limit)s

-- name: parked_page
-- The same for what has left its batch: parked holds full copies, also of what retention has dropped.
select p.position, p.id, p.topic, p.key, p.partition, p.created_at, octet_length(p.value),
       mod(p.slot, %(lanes)s), p.retry_batch, p.state, null::text, null::timestamptz, p.reason
  from {schema}.parked p
 where p.position < %(before)s and p.state = any(%(states)s)
   and (%(topic)s::text is null or p.topic = %(topic)s)
   and (%(key)s::bytea is null or p.key = %(key)s)
   and (%(since)s::timestamptz is null or p.created_at >= %(since)s)
   and (%(until)s::timestamptz is null or p.created_at < %(until)s)
 order by p.position desc limit %(limit)s

-- name: delayed_page
-- The same for what waits for its time. It has no position yet: its id rises with time.
select d.id, d.topic, d.key, d.partition, d.created_at, octet_length(d.value), d.due_at
  from {schema}.delayed d
 where (%(before)s::uuid is null or d.id < %(before)s)
   and (%(topic)s::text is null or d.topic = %(topic)s)
   and (%(key)s::bytea is null or d.key = %(key)s)
   and (%(since)s::timestamptz is null or d.created_at >= %(since)s)
   and (%(until)s::timestamptz is null or d.created_at < %(until)s)
 order by d.id desc limit %(limit)s

-- name: batches
-- Batches, the newest first, by the position that a lane had covered with each.
select b.covered, b.lane, b.number, b.kind, b.after_position, b.upto, b.topic, b.messages, b.mode, b.state, b.owner,
       b.epoch, b.receipt_offset, b.in_doubt, b.claimed_at, b.sent_at
  from {schema}.batches b
 where (b.covered, b.lane, b.number) < (%(covered)s, %(lane_before)s, %(number)s)
   and b.covered <= %(covered)s
   and (%(lane)s::smallint is null or b.lane = %(lane)s)
   and (%(state)s::text is null or b.state = %(state)s)
 order by b.covered desc, b.lane desc, b.number desc limit %(limit)s

-- name: parked_messages
-- What failed at the relay, and what waits behind it, by position.
select p.position, p.id, p.topic, p.key, p.partition, p.state, p.reason, p.attempts, p.created_at, p.parked_at,
       octet_length(p.value)
  from {schema}.parked p
 where p.position > %(after)s and p.state = any(%(states)s)
   and (%(topic)s::text is null or p.topic = %(topic)s)
 order by p.position limit %(limit)s

-- name: payload
-- Key, value and headers of a message of the outbox, or of one that was parked.
select key, value, headers::text from {schema}.outbox where id = %(id)s
union all
select key, value, headers::text from {schema}.parked where id = %(id)s
union all
select key, value, headers::text from {schema}.delayed where id = %(id)s
limit 1

-- name: kept_payload
-- The same from an inbox: the only copy, where the outbox is another's or has dropped it.
select key, value, headers::text from {schema}.inbox where id = %(id)s limit 1

-- name: dead_letters
select d.number, d.id, d.named, d.source, d.topic, d.partition, d."offset", d.key, d.state, d.reason,
       d.attempts, d.died_at, d.changed_at, d.seq is not null, octet_length(d.value)
  from {schema}.dead_letters d
 where d.consumer = %(consumer)s and d.number > %(after)s and d.state = any(%(states)s)
   and (%(topic)s::text is null or d.topic = %(topic)s)
 order by d.number limit %(limit)s

-- name: parked_keys
-- Keys whose first unfinished message failed, and how many wait behind it (counted up to a thousand).
select q.key_hash, q.seq, q.id, q.source, q.topic, q.partition, q."offset", q.state, q.attempts, q.due_at, q.reason,
       (select count(*) from (select from {schema}.queue b
                               where b.consumer = q.consumer and b.key_hash = q.key_hash and b.seq > q.seq limit 1000) b)
  from {schema}.queue q
 where q.consumer = %(consumer)s and q.key_hash > %(after)s and q.state <> 'ready'
   and not exists (select from {schema}.queue b
                    where b.consumer = q.consumer and b.key_hash = q.key_hash and b.seq < q.seq)
 order by q.key_hash, q.seq limit %(limit)s

-- name: consumer_topics
select topics from {schema}.consumers where name = %(consumer)s

-- name: audit_page
-- Who did what, the newest first.
select a.at, a.seq, a.who, a.action, a.subject, a.reason, a.details::text
  from {schema}.audit a
 where (a.at, a.seq) < (%(at)s, %(seq)s)
 order by a.at desc, a.seq desc limit %(limit)s

-- name: runs
-- Runs of the pipeline, the newest first, with what each has done.
select r.run, r.consumer, r.owner, r.topics, r.started_at, r.seen_at, r.ended_at, r.trouble, b.batches, b.read, b.kept,
       b.applied, b.last
  from (select * from {schema}.runs order by started_at desc limit %(limit)s) r
 cross join lateral (
       select count(*) as batches, coalesce(sum(i.read), 0)::bigint as read, coalesce(sum(i.kept), 0)::bigint as kept,
              coalesce(sum(i.applied), 0)::bigint as applied, max(i.committed_at) as last
         from {schema}.ingested i where i.run = r.run) b
 order by r.started_at desc

-- name: findings
-- What the tally found, by message. Those that are over are mended, or accounted for by now.
select f.id, f.verdict, f.consumer, f.stage, f.topic, f.key, f.partition, f."offset", f.position, f.evidence,
       f.first_seen, f.last_seen, f.over_at
  from {schema}.findings f
 where (f.id, f.verdict, f.consumer) > (%(id)s, %(verdict_after)s, %(consumer_after)s)
   and (%(over)s or f.over_at is null)
   and (%(verdict)s::text is null or f.verdict = %(verdict)s)
   and (%(consumer)s::text is null or f.consumer in (%(consumer)s, ''))
 order by f.id, f.verdict, f.consumer limit %(limit)s

-- name: findings_open
select verdict, count(*) from {schema}.findings where over_at is null group by verdict

-- name: certificates
-- The chain, the newest first.
select c.number, c.window_start, c.window_end, c.statement, c.previous, c.hash, c.issued_at
  from {schema}.certificates c where c.number < %(before)s order by c.number desc limit %(limit)s

-- name: tallies
-- Runs of the tally, the newest first.
select t.run, t.started_at, t.ended_at, t.who, t.from_position, t.to_position, t.summary::text
  from {schema}.tallies t order by t.started_at desc limit %(limit)s
