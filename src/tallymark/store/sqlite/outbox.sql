-- name: begin_to_write
-- Changes nothing, and waits until this transaction may write: SQLite waits for nobody once a transaction has read.
delete from {schema}_identity where false

-- name: add
insert into {schema}_outbox (id, topic, key, value, headers, partition) values (?, ?, ?, ?, ?, ?)

-- name: delay
insert into {schema}_delayed (id, topic, key, value, headers, partition, due_at) values (?, ?, ?, ?, ?, ?, ?)

-- name: reserve
-- A caller's own name for a message. Nothing is inserted where it was used before.
insert or ignore into {schema}_dedup_keys (dedup_key, id) values (?, ?)

-- name: reserved
select id from {schema}_dedup_keys where dedup_key = ?

-- name: limit
select max_message_bytes from {schema}_topics where topic = ?

-- name: status
-- A message's state is derived, as on PostgreSQL: parked first, then the batch that covers its position, else pending.
with found as (
    select o.position, o.id, o.topic, o.key, o.created_at, null as parked, null as reason, null as retry_batch
      from {schema}_outbox o where o.id = :id
    union all
    select p.position, p.id, p.topic, p.key, p.created_at, p.state, p.reason, p.retry_batch
      from {schema}_parked p where p.id = :id
),
one as (select * from found order by parked is null limit 1)
select p.id, p.topic, p.key, p.position, p.created_at, p.parked, p.reason, b.number, b.state, b.sent_at
  from one p
  left join {schema}_batches b on b.number = coalesce(p.retry_batch, (
      select c.number from {schema}_batches c
       where p.parked is null and c.covered >= p.position and c.after_position < p.position and c.upto >= p.position
         and (c.kind = 'range' or c.topic = p.topic) and p.topic not in (select value from json_each(c.without_topics))
       order by c.covered, c.number limit 1))

-- name: delayed
select id, topic, key, created_at, due_at from {schema}_delayed where id = ?
