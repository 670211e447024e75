-- name: identity
select outbox_id, 1, receipts_topic_id from {schema}_identity

-- name: record_receipts_topic
update {schema}_identity set receipts_topic_id = :topic_id where receipts_topic_id is null

-- name: join
-- All clocks are the database's.
insert into {schema}_relays (owner, host, pid, mode, version, accepted, seen_until)
values (:owner, :host, :pid, :mode, :version, :accepted, {now} + :seconds)
on conflict (owner) do update set seen_until = excluded.seen_until

-- name: forget_gone
delete from {schema}_relays where seen_until < {now} - 3600 and owner <> :owner

-- name: alive
select count(*) from {schema}_relays where seen_until > {now}

-- name: leave
delete from {schema}_relays where owner = :owner

-- name: take
-- With a new epoch: from now on the old owner's writes change nothing.
update {schema}_lanes
   set owner = :owner, epoch = epoch + 1, lease_until = {now} + :seconds, changed_at = {now}
 where (owner is null or lease_until < {now}) and halted is null
returning lane, owner, epoch, covered, last_number, receipt_number, receipt_token, receipt_offset, paused, halted, null

-- name: renew
update {schema}_lanes set lease_until = {now} + :seconds
 where owner = :owner and lease_until > {now}
returning lane, epoch

-- name: release
update {schema}_lanes set owner = null, lease_until = null, changed_at = {now}
 where lane = :lane and owner = :owner and epoch = :epoch

-- name: release_dead
-- Asked only by whoever holds the file's lock: the process that had the lane has ended.
update {schema}_lanes set owner = null, lease_until = null, changed_at = {now}

-- name: forget_dead
delete from {schema}_relays

-- name: holder
select owner, host, pid, seen_until > {now} from {schema}_relays order by seen_until desc limit 1

-- name: reread
-- Nobody counts what operators ask for here (null): a lane's owner looks each time.
select lane, owner, epoch, covered, last_number, receipt_number, receipt_token, receipt_offset, paused, halted, null
  from {schema}_lanes where lane = :lane and owner = :owner and epoch = :epoch

-- name: halt
update {schema}_lanes set halted = :finding, owner = null, lease_until = null, changed_at = {now}
 where lane = :lane and owner = :owner and epoch = :epoch

-- name: count_fenced
update {schema}_lanes set fenced = fenced + 1 where lane = :lane

-- name: sequence
-- One writer at a time: every position up to the last one drawn is visible or was rolled back, whoever looks.
select coalesce((select seq from sqlite_sequence where name = '{schema}_outbox'), 0)

-- name: data_version
-- Rises when another connection has committed.
pragma data_version

-- name: read
-- As many as weigh less than the limit, so that they fit into memory whatever they weigh; a row is in while what stands
-- before it is below the limit, so that one giant alone still moves.
with sized as materialized (
    select o.position, coalesce(length(o.value), 0) + coalesce(length(o.key), 0) + length(o.headers) + 100 as size
      from {schema}_outbox o
     where o.position > :after and o.position <= :upto and (:topic is null or (o.topic = :topic
            and o.position not in (select position from {schema}_parked)))
       and o.topic not in (select value from json_each(:without))
     order by o.position limit :limit
), summed as (
    select position, size, sum(size) over (order by position rows unbounded preceding) as total from sized
)
select o.position, o.id, o.topic, o.key, o.value, o.headers, o.partition, s.total
  from summed s join {schema}_outbox o on o.position = s.position
 where s.total - s.size < :size
 order by o.position

-- name: contents
-- What a claimed batch is made of: its range never changes, so this gives the same rows whoever asks, less those
-- that have left it.
select o.position, o.id, o.topic, o.key, o.value, o.headers, o.partition, 0
  from {schema}_outbox o
 where o.position > :after and o.position <= :upto and (:topic is null or o.topic = :topic)
   and o.topic not in (select value from json_each(:without))
   and not exists (select 1 from {schema}_parked p where p.position = o.position)
 order by o.position

-- name: retry_contents
select p.position, p.id, p.topic, p.key, p.value, p.headers, p.partition, 0
  from {schema}_parked p where p.retry_batch = :number and p.state = 'retrying' order by p.position

-- name: unsent
select lane, number, token, kind, after_position, upto, covered, mode, messages, version, topic, without_topics,
       {now} - claimed_at, cast({now} * 1000 as integer)
  from {schema}_batches where lane = :lane and state = 'sending' order by number

-- name: markable
select 1 from {schema}_batches
 where covered = :mark_covered and number = :mark_number and version = :mark_version and state = 'sending'

-- name: advance
-- Everything that `advance` does hangs on this row: where the owner, the epoch or the number is no longer so, nothing
-- at all happens.
update {schema}_lanes
   set covered = coalesce(:claim_covered, covered),
       last_number = coalesce(:claim_number, last_number),
       receipt_number = coalesce(:receipt_number, receipt_number),
       receipt_token = coalesce(:receipt_token, receipt_token),
       receipt_offset = coalesce(:receipt_offset, receipt_offset),
       sent = sent + :mark_messages, resolved = resolved + :in_doubt, changed_at = {now}
 where lane = :lane and owner = :owner and epoch = :epoch
   and (:claim_number is null or last_number = :claim_number - 1)
returning cast({now} * 1000 as integer)

-- name: mark
update {schema}_batches
   set state = 'sent', sent_at = {now}, version = version + 1, receipt_offset = :receipt_offset, in_doubt = :in_doubt
 where number = :mark_number

-- name: mark_retried
update {schema}_parked set state = 'sent', changed_at = {now} where retry_batch = :mark_number and state = 'retrying'

-- name: mark_caught_up
update {schema}_topic_holds set from_position = :mark_upto, checked_at = {now} where topic = :mark_topic

-- name: claim
insert into {schema}_batches (covered, lane, number, token, kind, after_position, upto, topic, without_topics, messages,
                              mode, state, owner, epoch)
values (:claim_covered, :lane, :claim_number, :claim_token, :claim_kind, :claim_after, :claim_upto, :claim_topic,
        :claim_without, :claim_messages, :claim_mode, 'sending', :owner, :epoch)

-- name: park
-- A full copy, so that retention can delete the outbox's row.
insert into {schema}_parked (position, id, topic, key, value, headers, partition, created_at, state, reason, batch,
                             attempts)
select o.position, o.id, o.topic, o.key, o.value, o.headers, o.partition, o.created_at, :state, :reason, :batch,
       :state = 'failed'
  from {schema}_outbox o where o.position = :position
    on conflict (position) do nothing

-- name: park_again
-- In a batch of parked messages: the failed one is failed again, those of its key behind it wait again.
update {schema}_parked
   set state = :state, reason = :reason, retry_batch = null, changed_at = {now}, attempts = attempts + (:state = 'failed')
 where position = :position

-- name: progress
update {schema}_lanes set covered = :covered
 where lane = :lane and owner = :owner and epoch = :epoch and covered <= :covered
returning lane

-- name: owned
select covered from {schema}_lanes where lane = :lane and owner = :owner and epoch = :epoch

-- name: leave_batch
-- Messages leave a batch before Kafka's commit, never after it.
update {schema}_batches
   set version = version + 1, messages = max(0, messages - :leaving), without_topics = :without
 where covered = :covered and number = :number and version = :version and state = 'sending'
returning version, messages, without_topics

-- name: adopt
-- Before a batch is sent in another mode than it was claimed in.
update {schema}_batches set mode = :mode, version = version + 1
 where covered = :covered and number = :number and version = :version and state = 'sending'
returning version

-- name: hold_topic
-- Held again while it was catching up: from where it stood, not from here.
insert into {schema}_topic_holds (lane, topic, state, from_position, reason)
values (:lane, :topic, 'held', :after, :reason)
on conflict (topic) do update set state = 'held', reason = excluded.reason, checked_at = {now}

-- name: held_keys
select topic, key, min(position) from {schema}_parked
 where state in ('failed', 'waiting', 'retrying') and key is not null
 group by topic, key

-- name: retryable
-- The messages that an operator freed, and behind each of them its key's queue, as far as nothing failed stands
-- before it.
select p.position, coalesce(length(p.value), 0) + 100 from {schema}_parked p
 where p.state in ('retrying', 'waiting') and p.retry_batch is null
   and not exists (select 1 from {schema}_parked f
                    where f.topic = p.topic and f.key = p.key and f.position < p.position and f.state = 'failed')
   -- What is held of its topic from before it must go first.
   and not exists (select 1 from {schema}_topic_holds h where h.topic = p.topic and h.from_position < p.position)
 order by p.position limit :limit

-- name: next_number
update {schema}_lanes set last_number = :number, changed_at = {now}
 where lane = :lane and owner = :owner and epoch = :epoch and last_number = :number - 1
returning covered, cast({now} * 1000 as integer)

-- name: free_parked
update {schema}_parked set state = 'retrying', retry_batch = :number, changed_at = {now} where position = :position

-- name: holds
select topic, state, from_position, reason from {schema}_topic_holds where lane = :lane order by held_at

-- name: update_hold
insert into {schema}_topic_holds (lane, topic, state, from_position, reason)
values (:lane, :topic, :state, :start, :reason)
on conflict (topic) do update
   set state = excluded.state, from_position = excluded.from_position, reason = excluded.reason, checked_at = {now}

-- name: end_hold
delete from {schema}_topic_holds where lane = :lane and topic = :topic

-- name: topic
select topic, topic_id, partitions, max_message_bytes from {schema}_topics where topic = :topic

-- name: record_topic
-- The partition count and the topic's id stay as first recorded until someone accepts new ones.
insert into {schema}_topics (topic, topic_id, partitions, max_message_bytes, accepted_risks)
values (:topic, :topic_id, :partitions, :max_message_bytes, :accepted)
on conflict (topic) do update
   set max_message_bytes = excluded.max_message_bytes, accepted_risks = excluded.accepted_risks

-- name: is_due
select exists (select 1 from {schema}_delayed where due_at <= {now})

-- name: due
select id from {schema}_delayed where due_at <= {now} order by due_at, rowid limit :limit

-- name: move
insert into {schema}_outbox (id, topic, key, value, headers, partition)
select id, topic, key, value, headers, partition from {schema}_delayed where id = :id

-- name: moved
delete from {schema}_delayed where id = :id

-- name: needed
-- Up to here every row is sent, or parked and so copied.
select min(covered, coalesce((select min(from_position) from {schema}_topic_holds), covered),
           coalesce((select min(after_position) from {schema}_batches where state = 'sending'), covered))
  from {schema}_lanes

-- name: expire
-- A bounded number at a time: a writer waits for milliseconds at most.
delete from {schema}_outbox
 where position in (select position from {schema}_outbox
                     where position <= :needed and created_at < {now} - :keep order by position limit :limit)

-- name: expire_names
delete from {schema}_dedup_keys where added_at < {now} - :keep

-- name: expire_parked
-- What is parked is left out of its batch and of its topic's catch-up for as long as its row here says so: while a hold or
-- a batch in doubt keeps the outbox's row, it stays, or what was discarded would be sent, and what was sent be sent twice.
delete from {schema}_parked
 where state in ('sent', 'discarded') and changed_at < {now} - :keep
   and position not in (select position from {schema}_outbox)

-- name: expire_batches
-- A batch is needed as long as a row that it covers, or a parked message that it sent; the last one always stays.
delete from {schema}_batches
 where state = 'sent' and sent_at < {now} - :keep
   and number < (select last_number from {schema}_lanes)
   and upto < coalesce((select min(position) from {schema}_outbox), upto + 1)
   and number not in (select retry_batch from {schema}_parked where retry_batch is not null)
