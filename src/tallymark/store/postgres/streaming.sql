-- name: slice
-- The next messages that were sent, as lines of JSON, made by the database: one value for the whole slice, so that no
-- line costs Python anything. Sent: claimed by the lane, its batch not on its way, not parked, its topic not held.
-- Bounded by rows and by bytes; one giant alone still moves. Line breaks stand in JSON between words only: a space says
-- the same (by replace(): translate() goes by characters, and doubled the cost of a line). How far each lane has come is
-- given: joined from its table, the planner would sort what the index has in order already.
with candidates as (
    select o.position, o.id, o.topic, o.partition, o.key, o.value, o.headers, o.created_at,
           coalesce(octet_length(o.value), 0) + 200 as size
      from {schema}.outbox o
     where o.position <= (%(covered)s::bigint[])[mod(o.slot, %(lanes)s) + 1]
       and o.position > %(after)s and o.position <= %(upto)s and o.topic = any(%(topics)s)
       and (%(since)s::timestamptz is null or o.created_at >= %(since)s)
       and (%(until)s::timestamptz is null or o.created_at < %(until)s)
       and (not %(sending)s or not exists (
           select from {schema}.batches b
            where b.state = 'sending' and b.lane = mod(o.slot, %(lanes)s) and b.kind = 'range'
              and o.position > b.after_position and o.position <= b.upto))
       and (not %(holds)s or not exists (
           select from {schema}.topic_holds h
            where h.lane = mod(o.slot, %(lanes)s) and h.topic = o.topic and o.position > h.from_position))
       and not exists (select from {schema}.parked p where p.position = o.position and p.state <> 'sent')
     order by o.position limit %(rows)s
), fitting as (
    select c.*, sum(c.size) over (order by c.position rows unbounded preceding) - c.size as before from candidates c
)
select (select count(*) from candidates), count(*), max(f.position), string_agg(
       '{"position":' || f.position || ',"id":"' || f.id || '","topic":' || to_json(f.topic)
       || ',"partition":' || coalesce(f.partition::text, 'null')
       || ',"added_at":' || to_json(f.created_at)
       || ',"key":' || coalesce('"' || replace(encode(f.key, 'base64'), E'\n', '') || '"', 'null')
       || case when %(payload)s
               then ',"value":' || coalesce('"' || replace(encode(f.value, 'base64'), E'\n', '') || '"', 'null')
                    || ',"headers":' || replace(replace(f.headers::text, E'\n', ' '), E'\r', ' ')
               else ',"value_bytes":' || coalesce(octet_length(f.value)::text, 'null') end
       || '}', E'\n' order by f.position)
  from fitting f where f.before < %(bytes)s

-- name: standing
-- How far each lane has come; whether batches are on their way, or topics held, at all: where not, nobody pays for
-- looking.
select i.lanes, (select array_agg(l.covered order by l.lane) from {schema}.lanes l),
       exists (select from {schema}.batches where state = 'sending'), exists (select from {schema}.topic_holds)
  from {schema}.outbox_identity i
