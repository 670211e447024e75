-- name: add
-- One message, by the same function that other languages call. cast() rather than ::, for SQLAlchemy's sake.
select {schema}.outbox_add(
    cast(%s as text), cast(%s as bytea), cast(%s as bytea), cast(%s as json), cast(%s as uuid), cast(%s as integer),
    cast(%s as text), cast(%s as text), cast(%s as boolean), cast(%s as timestamptz))

-- name: insert
-- One message with no options: a plain INSERT, for the function's own cost would be felt.
insert into {schema}.outbox (id, topic, key, value, headers, partition)
values (cast(%s as uuid), cast(%s as text), cast(%s as bytea), cast(%s as bytea), cast(%s as json), cast(%s as integer))

-- name: copy
-- Many messages. The statement trigger takes the floor before the first position is drawn, for COPY too.
copy {schema}.outbox (id, topic, key, value, headers, partition) from stdin (format binary)

-- name: limits
-- What topics take, where a relay has recorded it: one row, and text, which every driver gives back alike.
select cast(coalesce(json_object_agg(topic, max_message_bytes), '{}') as text) from {schema}.topics

-- name: status
-- A message's state is derived: parked first (it has left its batch), then the batch that covers its position,
-- else pending. A topic that was held is covered only by the catch-up that names it. Its lane is that of the number of
-- lanes that the batch was claimed under; of what is in no batch, today's.
with found as (
    select o.position, o.id, o.slot, o.topic, o.key, o.created_at, null::text as parked, null::text as reason,
           null::bigint as retry_batch
      from {schema}.outbox o where o.id = cast(%s as uuid)
    union all
    select p.position, p.id, p.slot, p.topic, p.key, p.created_at, p.state, p.reason, p.retry_batch
      from {schema}.parked p where p.id = cast(%s as uuid)
),
-- The newest row of a message that was sent again; of a row that is parked, its standing there.
one as (select * from found order by position desc, parked nulls last limit 1),
placed as (select one.*, i.lanes from one, {schema}.outbox_identity i)
select p.id, p.topic, p.key, p.position, coalesce(b.lane, mod(p.slot, p.lanes)), p.created_at, p.parked, p.reason,
       coalesce(p.retry_batch, b.number), b.state, b.sent_at
  from placed p
  left join lateral (
      select b.number, b.lane, b.state, b.sent_at
        from {schema}.batches b
       where b.covered >= p.position and b.lane = mod(p.slot, coalesce(b.lanes, p.lanes))
         and case when p.retry_batch is not null then b.number = p.retry_batch
                  else p.parked is null and b.after_position < p.position and b.upto >= p.position
                       and (b.kind = 'range' or b.topic = p.topic) and p.topic <> all(b.without_topics) end
       order by b.covered, b.number limit 1
  ) b on true

-- name: delayed
-- A message that waits for its time.
select id, topic, key, created_at, due_at from {schema}.delayed where id = cast(%s as uuid)
