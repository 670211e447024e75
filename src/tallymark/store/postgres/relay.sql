-- name: identity
select outbox_id::text, lanes, receipts_topic_id, notify from {schema}.outbox_identity

-- name: listen
listen {schema}_outbox

-- name: record_receipts_topic
-- Once: a receipts topic that is recreated later is noticed by its id.
update {schema}.outbox_identity set receipts_topic_id = %(topic_id)s where receipts_topic_id is null

-- name: join
-- All clocks are the database's: a relay whose own clock is an hour off changes nothing.
with seen as (
    insert into {schema}.relays (owner, host, pid, mode, version, accepted, seen_until)
    values (%(owner)s, %(host)s, %(pid)s, %(mode)s, %(version)s, %(accepted)s,
            clock_timestamp() + make_interval(secs => %(seconds)s))
    on conflict (owner) do update set seen_until = excluded.seen_until
), gone as (
    delete from {schema}.relays where seen_until < clock_timestamp() - interval '1 hour' and owner <> %(owner)s
)
select 1 + count(*) from {schema}.relays where seen_until > clock_timestamp() and owner <> %(owner)s

-- name: leave
delete from {schema}.relays where owner = %(owner)s

-- name: take
-- One lane whose lease has run out, with a new epoch: from now on the old owner's writes change nothing.
update {schema}.lanes l
   set owner = %(owner)s, epoch = l.epoch + 1,
       lease_until = clock_timestamp() + make_interval(secs => %(seconds)s), changed_at = clock_timestamp()
  from (select lane from {schema}.lanes
         where (owner is null or lease_until < clock_timestamp()) and halted is null
           and lane < (select lanes from {schema}.outbox_identity)
         order by lease_until nulls first, lane limit 1 for update skip locked) free
 where l.lane = free.lane
returning l.lane, l.owner, l.epoch, l.covered, l.last_number, l.receipt_number, l.receipt_token::text,
          l.receipt_offset, l.paused, l.halted, l.asked

-- name: renew
update {schema}.lanes set lease_until = clock_timestamp() + make_interval(secs => %(seconds)s)
 where owner = %(owner)s and lease_until > clock_timestamp()
returning lane, epoch

-- name: release
update {schema}.lanes set owner = null, lease_until = null, changed_at = clock_timestamp()
 where lane = %(lane)s and owner = %(owner)s and epoch = %(epoch)s

-- name: reread
select lane, owner, epoch, covered, last_number, receipt_number, receipt_token::text, receipt_offset, paused, halted,
       asked
  from {schema}.lanes where lane = %(lane)s and owner = %(owner)s and epoch = %(epoch)s

-- name: halt
update {schema}.lanes set halted = %(finding)s, owner = null, lease_until = null, changed_at = clock_timestamp()
 where lane = %(lane)s and owner = %(owner)s and epoch = %(epoch)s

-- name: count_fenced
update {schema}.lanes set fenced = fenced + 1 where lane = %(lane)s

-- name: frontier
-- The sequence is read first: what is drawn after that has a position above it. The floors second, for they hang on what
-- was read: writers that drew at or below it and have not ended hold one now. Nobody asks for them where nothing is new.
-- Prepared transactions (pid null) keep theirs.
with drawn as materialized (
    select last_value - (not is_called)::integer as last from {schema}.outbox_position
)
select drawn.last, held.floor
  from drawn left join lateral (
       select min(((l.classid::bigint << 32) | l.objid::bigint) & ((1::bigint << 48) - 1)) as floor
         from pg_locks l, {schema}.outbox_identity i
        where drawn.last > %(covered)s
          and l.locktype = 'advisory' and l.objsubid = 1 and l.granted and l.mode = 'ShareLock'
          and l.database = (select oid from pg_database where datname = current_database())
          and (l.classid::bigint >> 16) = i.tag) held on true

-- name: end_floors
-- A writer that was left idle in its transaction holds everybody back: by option it is ended, and with it its
-- transaction. One that is at work is left alone, however long it takes.
select a.pid, a.application_name, extract(epoch from clock_timestamp() - a.xact_start)::float,
       pg_terminate_backend(a.pid)
  from pg_locks l
  cross join {schema}.outbox_identity i
  join pg_stat_activity a on a.pid = l.pid
 where l.locktype = 'advisory' and l.objsubid = 1 and l.mode = 'ShareLock'
   and l.database = (select oid from pg_database where datname = current_database())
   and (l.classid::bigint >> 16) = i.tag
   and a.state in ('idle in transaction', 'idle in transaction (aborted)')
   and clock_timestamp() - a.state_change > make_interval(secs => %(seconds)s)

-- name: read
-- Read third, with a snapshot of its own: up to the frontier every row is visible, and only the lane's owner parks any. So
-- many as weigh less than the limit, so that they fit into memory whatever they weigh; a row is in while what stands before
-- it is below the limit, so that one giant alone still moves. A catch-up passes over what is parked already.
select position, id, topic, key, value, headers, partition, total from (
    select position, id, topic, key, value, headers, partition, size,
           sum(size) over (order by position rows unbounded preceding) as total
      from (
        select o.position, o.id::text, o.topic, o.key, o.value, o.headers::text, o.partition,
               coalesce(octet_length(o.value), 0) + coalesce(octet_length(o.key), 0) + octet_length(o.headers::text) + 100
               as size
          from {schema}.outbox o
         where o.position > %(after)s and o.position <= %(upto)s and mod(o.slot, %(lanes)s) = %(lane)s
           and (%(topic)s::text is null or (o.topic = %(topic)s and not exists (
                select from {schema}.parked p where p.position = o.position)))
           and (%(without)s::text[] = '{}' or o.topic <> all(%(without)s::text[]))
         order by o.position limit %(limit)s) sized) summed
 where total - size < %(size)s
 order by position

-- name: contents
-- What a claimed batch is made of: its range never changes, so this gives the same rows whoever asks, less those
-- that have left it. Not weighed again.
select o.position, o.id::text, o.topic, o.key, o.value, o.headers::text, o.partition, 0
  from {schema}.outbox o
 where o.position > %(after)s and o.position <= %(upto)s and mod(o.slot, %(lanes)s) = %(lane)s
   and (%(topic)s::text is null or o.topic = %(topic)s)
   and (%(without)s::text[] = '{}' or o.topic <> all(%(without)s::text[]))
   and not exists (select from {schema}.parked p where p.position = o.position)
 order by o.position

-- name: retry_contents
select p.position, p.id::text, p.topic, p.key, p.value, p.headers::text, p.partition, 0
  from {schema}.parked p
 where p.retry_batch = %(number)s and p.state = 'retrying' and mod(p.slot, %(lanes)s) = %(lane)s
 order by p.position

-- name: unsent
select lane, number, token::text, kind, after_position, upto, covered, mode, messages, version, topic, without_topics,
       extract(epoch from clock_timestamp() - claimed_at)::float, (extract(epoch from clock_timestamp()) * 1000)::bigint
  from {schema}.batches where lane = %(lane)s and state = 'sending' order by number

-- name: advance
-- Mark one batch and claim the next in one commit: a batch costs one round trip and one flush. Everything hangs on
-- `mine`: where the owner, the epoch, the number or the version is no longer so, nothing at all happens. The time that is
-- given back becomes the messages' own.
with mine as (
    update {schema}.lanes l
       set covered = coalesce(%(claim_covered)s, l.covered),
           last_number = coalesce(%(claim_number)s, l.last_number),
           receipt_number = coalesce(%(receipt_number)s, l.receipt_number),
           receipt_token = coalesce(%(receipt_token)s::uuid, l.receipt_token),
           receipt_offset = coalesce(%(receipt_offset)s, l.receipt_offset),
           sent = l.sent + %(mark_messages)s,
           resolved = l.resolved + (%(in_doubt)s)::integer,
           changed_at = clock_timestamp()
     where l.lane = %(lane)s and l.owner = %(owner)s and l.epoch = %(epoch)s
       and (%(claim_number)s::bigint is null or l.last_number = %(claim_number)s - 1)
       and (%(mark_number)s::bigint is null or exists (
            select from {schema}.batches b
             where b.covered = %(mark_covered)s and b.lane = %(lane)s and b.number = %(mark_number)s
               and b.version = %(mark_version)s and b.state = 'sending'))
    returning l.lane
), marked as (
    update {schema}.batches b
       set state = 'sent', sent_at = clock_timestamp(), version = b.version + 1,
           receipt_offset = %(receipt_offset)s, in_doubt = %(in_doubt)s
      from mine
     where b.covered = %(mark_covered)s and b.lane = mine.lane and b.number = %(mark_number)s
    returning b.kind, b.number, b.topic, b.upto, b.without_topics
), retried as (
    update {schema}.parked p set state = 'sent', changed_at = clock_timestamp()
      from marked
     where marked.kind = 'retry' and p.retry_batch = marked.number and p.state = 'retrying'
       and mod(p.slot, %(lanes)s) = %(lane)s
), caught_up as (
    update {schema}.topic_holds h set from_position = marked.upto, checked_at = clock_timestamp()
      from marked where marked.kind = 'topic' and h.lane = %(lane)s and h.topic = marked.topic
       and marked.topic <> all(marked.without_topics)
), claimed as (
    insert into {schema}.batches (covered, lane, number, token, kind, after_position, upto, topic, without_topics,
                                  messages, mode, state, owner, epoch, lanes)
    select %(claim_covered)s, mine.lane, %(claim_number)s, %(claim_token)s::uuid, %(claim_kind)s, %(claim_after)s,
           %(claim_upto)s, %(claim_topic)s, %(claim_without)s::text[], %(claim_messages)s, %(claim_mode)s, 'sending',
           %(owner)s, %(epoch)s, %(lanes)s
      from mine where %(claim_number)s::bigint is not null
), parked as (
    insert into {schema}.parked (position, id, slot, topic, key, value, headers, partition, created_at, state, reason,
                                 batch)
    select o.position, o.id, o.slot, o.topic, o.key, o.value, o.headers, o.partition, o.created_at, 'waiting',
           w.reason, %(claim_number)s
      from mine, unnest(%(waiting)s::bigint[], %(waiting_reasons)s::text[]) w(position, reason)
      join {schema}.outbox o on o.position = w.position
    on conflict (position) do nothing
)
select (extract(epoch from clock_timestamp()) * 1000)::bigint from mine

-- name: progress
update {schema}.lanes set covered = %(covered)s
 where lane = %(lane)s and owner = %(owner)s and epoch = %(epoch)s and covered <= %(covered)s
returning lane

-- name: exclude
-- Messages leave a batch of the outbox's rows before Kafka's commit, never after it. The lane is locked first: whoever
-- takes it at the same moment is waited for, and then it is no longer ours.
with own as (
    select lane from {schema}.lanes
     where lane = %(lane)s and owner = %(owner)s and epoch = %(epoch)s for no key update
), mine as (
    update {schema}.batches b
       set version = b.version + 1,
           messages = greatest(0, b.messages - cardinality(%(positions)s::bigint[])),
           without_topics = b.without_topics || %(topics)s::text[]
      from own
     where b.covered = %(covered)s and b.lane = own.lane and b.number = %(number)s and b.version = %(version)s
       and b.state = 'sending'
    returning b.number, b.version, b.messages, b.without_topics
), parked as (
    insert into {schema}.parked (position, id, slot, topic, key, value, headers, partition, created_at, state, reason,
                                 batch, attempts)
    select o.position, o.id, o.slot, o.topic, o.key, o.value, o.headers, o.partition, o.created_at, w.state, w.reason,
           mine.number, (w.state = 'failed')::integer
      from mine, unnest(%(positions)s::bigint[], %(states)s::text[], %(reasons)s::text[]) w(position, state, reason)
      join {schema}.outbox o on o.position = w.position
    on conflict (position) do nothing
), held as (
    insert into {schema}.topic_holds (lane, topic, state, from_position, reason)
    select %(lane)s, w.topic, 'held', %(after)s, w.reason
      from mine, unnest(%(topics)s::text[], %(topic_reasons)s::text[]) w(topic, reason)
    -- Held again while it was catching up: from where it stood, not from here.
    on conflict (lane, topic) do update set state = 'held', reason = excluded.reason, checked_at = clock_timestamp()
)
select version, messages, without_topics from mine

-- name: adopt
-- Before a batch is sent in another mode than it was claimed in: whoever finds it in doubt next must resolve it as what
-- it was sent as.
with own as (
    select lane from {schema}.lanes
     where lane = %(lane)s and owner = %(owner)s and epoch = %(epoch)s for no key update
)
update {schema}.batches b set mode = %(mode)s, version = b.version + 1
  from own
 where b.covered = %(covered)s and b.lane = own.lane and b.number = %(number)s and b.version = %(version)s
   and b.state = 'sending'
returning b.version

-- name: exclude_retry
-- In a batch of parked messages: the failed one is failed again, those of its key behind it wait again.
with own as (
    select lane from {schema}.lanes
     where lane = %(lane)s and owner = %(owner)s and epoch = %(epoch)s for no key update
), mine as (
    update {schema}.batches b
       set version = b.version + 1,
           messages = greatest(0, b.messages - cardinality(%(positions)s::bigint[]))
      from own
     where b.covered = %(covered)s and b.lane = own.lane and b.number = %(number)s and b.version = %(version)s
       and b.state = 'sending'
    returning b.number, b.version, b.messages, b.without_topics
), parked as (
    update {schema}.parked p
       set state = w.state, reason = w.reason, retry_batch = null, changed_at = clock_timestamp(),
           attempts = p.attempts + (w.state = 'failed')::integer
      from mine, unnest(%(positions)s::bigint[], %(states)s::text[], %(reasons)s::text[]) w(position, state, reason)
     where p.position = w.position
)
select version, messages, without_topics from mine

-- name: held_keys
-- By the lane's slots, not by a remainder: asked every second, it must not read what other lanes have parked.
select topic, key, min(position) from {schema}.parked
 where state in ('failed', 'waiting', 'retrying') and slot = any(%(slots)s::smallint[]) and key is not null
 group by topic, key

-- name: claim_retry
-- Only the lane's owner resends, as a numbered batch: the messages that an operator freed, and behind each of them
-- its key's queue, as far as nothing failed stands before it. Not of a topic that is held, or catching up, from before
-- it: what is held of its key must go first.
with freeable as materialized (
    select p.position, coalesce(octet_length(p.value), 0) + 100 as size from {schema}.parked p
     where p.state in ('retrying', 'waiting') and p.retry_batch is null and p.slot = any(%(slots)s::smallint[])
       and not exists (
           select from {schema}.parked f
            where f.slot = p.slot and f.topic = p.topic and md5(f.key) = md5(p.key) and f.key = p.key
              and f.position < p.position and f.state = 'failed')
       and not exists (
           select from {schema}.topic_holds h
            where h.lane = %(lane)s and h.topic = p.topic and h.from_position < p.position)
     order by p.position limit %(limit)s
), chosen as (
    -- Bounded in bytes as in messages.
    select position from (
        select position, size, sum(size) over (order by position rows unbounded preceding) as total from freeable) s
     where total - size < %(size)s
), mine as (
    update {schema}.lanes l set last_number = %(number)s, changed_at = clock_timestamp()
     where l.lane = %(lane)s and l.owner = %(owner)s and l.epoch = %(epoch)s and l.last_number = %(number)s - 1
       and exists (select from chosen)
    returning l.lane, l.covered
), freed as (
    update {schema}.parked p set state = 'retrying', retry_batch = %(number)s, changed_at = clock_timestamp()
      from mine, chosen where p.position = chosen.position
       -- Asked again: an operator may have discarded it since it was chosen.
       and p.state in ('retrying', 'waiting') and p.retry_batch is null
    returning p.position
), claimed as (
    insert into {schema}.batches (covered, lane, number, token, kind, after_position, upto, messages, mode, state,
                                  owner, epoch, lanes)
    select mine.covered, mine.lane, %(number)s, %(token)s::uuid, 'retry', mine.covered, mine.covered,
           (select count(*) from freed), %(mode)s, 'sending', %(owner)s, %(epoch)s, %(lanes)s
      from mine
)
select covered, (select count(*) from freed), (extract(epoch from clock_timestamp()) * 1000)::bigint from mine

-- name: holds
select topic, state, from_position, reason from {schema}.topic_holds where lane = %(lane)s order by held_at

-- name: update_hold
with own as (
    select lane from {schema}.lanes
     where lane = %(lane)s and owner = %(owner)s and epoch = %(epoch)s for no key update
)
insert into {schema}.topic_holds (lane, topic, state, from_position, reason)
select own.lane, %(topic)s, %(state)s, %(start)s, %(reason)s from own
on conflict (lane, topic) do update
   set state = excluded.state, from_position = excluded.from_position, reason = excluded.reason,
       checked_at = clock_timestamp()
returning lane

-- name: end_hold
with own as (
    select lane from {schema}.lanes
     where lane = %(lane)s and owner = %(owner)s and epoch = %(epoch)s for no key update
)
delete from {schema}.topic_holds h using own where h.lane = own.lane and h.topic = %(topic)s

-- name: topic
select topic, topic_id, partitions, max_message_bytes from {schema}.topics where topic = %(topic)s

-- name: record_topic
-- The partition count and the topic's id stay as first recorded until someone accepts new ones.
insert into {schema}.topics (topic, topic_id, partitions, max_message_bytes, accepted_risks)
values (%(topic)s, %(topic_id)s, %(partitions)s, %(max_message_bytes)s, %(accepted)s)
on conflict (topic) do update
   set max_message_bytes = excluded.max_message_bytes, accepted_risks = excluded.accepted_risks

-- name: move_due
-- The statement trigger takes the floor here as for every other writer. One relay at a time, and all that are due in the
-- order of their times and of their adding: two at once would give a key's later message the lower position.
with alone as materialized (
    select pg_try_advisory_xact_lock(hashtextextended('{schema} delayed', 0)) as locked
), due as (
    delete from {schema}.delayed
     where id in (select d.id from {schema}.delayed d, alone where alone.locked and d.due_at <= clock_timestamp()
                   order by d.due_at, d.created_at, d.id limit %(limit)s)
    returning *
)
insert into {schema}.outbox (id, topic, key, value, headers, partition)
select id, topic, key, value, headers, partition from due order by due_at, created_at, id
