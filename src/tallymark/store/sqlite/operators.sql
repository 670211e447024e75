-- name: lanes
-- Backlog: rows beyond what the lane has covered, counted up to a limit.
select l.lane, l.owner, l.epoch, coalesce(l.lease_until > {now}, 0), l.covered, l.last_number, l.paused, l.halted, l.sent,
       l.resolved, l.fenced, b.backlog, b.oldest,
       (select {now} - min(u.claimed_at) from {schema}_batches u where u.state = 'sending'),
       (select coalesce(sum(r.messages), 0) / 60.0 from {schema}_batches r
         where r.state = 'sent' and r.covered > l.covered - 10000000 and r.sent_at > {now} - 60)
  from {schema}_lanes l
  join (select count(*) as backlog, {now} - min(c.created_at) as oldest
          from (select o.created_at from {schema}_outbox o
                 where o.position > (select covered from {schema}_lanes) order by o.position limit 100000) c) b

-- name: outbox
select i.outbox_id, coalesce((select seq from sqlite_sequence where name = '{schema}_outbox'), 0),
       (select count(*) from {schema}_delayed), (select min(due_at) from {schema}_delayed),
       (select count(*) from {schema}_parked where state = 'failed'),
       (select count(*) from {schema}_parked where state in ('waiting', 'retrying'))
  from {schema}_identity i

-- name: relays
select owner, host, pid, mode, version, accepted, {now} - started_at
  from {schema}_relays where seen_until > {now} order by started_at

-- name: holds
select h.topic, h.lane, h.state, h.reason, h.held_at,
       (select count(*) from {schema}_outbox o, {schema}_lanes l
         where l.lane = h.lane and o.topic = h.topic and o.position > h.from_position and o.position <= l.covered)
  from {schema}_topic_holds h order by h.topic

-- name: pause
update {schema}_lanes set paused = :paused, changed_at = {now}
 where paused <> :paused and (:lanes is null or lane in (select value from json_each(:lanes)))
returning lane

-- name: clear
-- Receipts can be forgotten of a lane that is not halted, too: where their topic is gone no relay starts, to halt any.
-- Number -1: whatever the log has last is taken for the lane's own.
update {schema}_lanes
   set halted = null, changed_at = {now},
       receipt_number = case when :forget then -1 else receipt_number end,
       receipt_token = case when :forget then null else receipt_token end,
       receipt_offset = case when :forget then null else receipt_offset end
 where lane = :lane and (halted is not null or (:forget and (owner is null or lease_until < {now})))
returning lane

-- name: forget_receipts_topic
update {schema}_identity set receipts_topic_id = null

-- name: audit
insert into {schema}_audit (who, action, subject, reason, details) values (:who, :action, :subject, :reason, :details)

-- name: parked
-- Failed messages, with how many wait behind each.
select p.position, p.id, p.topic, p.key, p.state, p.reason, p.attempts, p.parked_at,
       (select count(*) from {schema}_parked w
         where w.topic = p.topic and w.key = p.key and w.state = 'waiting' and w.position > p.position)
  from {schema}_parked p
 where p.state in (select value from json_each(:states)) and (:topic is null or p.topic = :topic) and p.position > :after
 order by p.position limit :limit

-- name: parked_one
select p.position, p.id, p.topic, p.key, p.state, p.reason, p.attempts, p.parked_at, p.value, p.headers, p.partition,
       p.created_at, p.batch, p.retry_batch, p.changed_at
  from {schema}_parked p where p.id = :id

-- name: retry
-- Only a failed message can be retried; what waits behind it follows by itself.
update {schema}_parked set state = 'retrying', changed_at = {now}
 where id in (select value from json_each(:ids)) and state = 'failed'
returning id

-- name: discard
update {schema}_parked set state = 'discarded', changed_at = {now}
 where id in (select value from json_each(:ids)) and state in ('failed', 'waiting')
returning id

-- name: messages
-- The newest messages of the outbox, of one state where that is asked for: derived as in outbox.sql.
select o.id from {schema}_outbox o left join {schema}_parked p on p.position = o.position
 where (:topic is null or o.topic = :topic) and (:key is null or o.key = :key)
   and (:state is null or :state = coalesce(p.state, (
        select b.state from {schema}_batches b
         where p.position is null and b.covered >= o.position and b.after_position < o.position and b.upto >= o.position
           and (b.kind = 'range' or b.topic = o.topic) and o.topic not in (select value from json_each(b.without_topics))
         order by b.covered, b.number limit 1), 'pending'))
 order by o.position desc limit :limit

-- name: messages_parked
select id from {schema}_parked
 where case when :state = 'discarded' then state = 'discarded' else state in ('failed', 'waiting', 'retrying') end
   and (:topic is null or topic = :topic) and (:key is null or key = :key)
 order by position desc limit :limit

-- name: messages_delayed
select id from {schema}_delayed
 where (:topic is null or topic = :topic) and (:key is null or key = :key)
 order by created_at desc limit :limit

-- name: accept_topic
update {schema}_topics set topic_id = :topic_id, partitions = :partitions, recorded_at = {now}
 where topic = :topic
returning topic
