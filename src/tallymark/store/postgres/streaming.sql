-- name: slice
-- The next messages that were sent, as lines of JSON, made by the database: one value for the whole slice, so that no line
-- costs Python anything (copied out line by line they cost it as much again as they cost the database). Sent: before the
-- lane's first batch on its way, not parked, its topic not held. Bounded by rows and by bytes; one giant alone still
-- moves. Line breaks stand in JSON between words only: a space says the same (by replace(): translate() goes by characters,
-- and doubled the cost of a line). How far each lane has come is given: joined from its table, the planner would sort what
-- the index has in order already.
with candidates as (
    select o.position, o.id, o.topic, o.partition, o.key, o.value, o.headers, o.created_at,
           coalesce(octet_length(o.value), 0) + coalesce(octet_length(o.key), 0) + octet_length(o.headers::text) + 200
           as size
      from {schema}.outbox o
     where o.position <= (%(covered)s::bigint[])[mod(o.slot, %(lanes)s) + 1]
       and o.position > %(after)s and o.position <= %(upto)s and o.topic = any(%(topics)s)
       and (%(since)s::timestamptz is null or o.created_at >= %(since)s)
       and (%(until)s::timestamptz is null or o.created_at < %(until)s)
       and (cardinality(%(held_topics)s::text[]) = 0 or not exists (
           select from unnest(%(held_lanes)s::smallint[], %(held_topics)s::text[], %(held_after)s::bigint[])
                       as h(lane, topic, after)
            where h.lane = mod(o.slot, %(lanes)s) and h.topic = o.topic and o.position > h.after))
       and not exists (select from {schema}.parked p where p.position = o.position and p.state <> 'sent')
     order by o.position limit %(rows)s
), fitting as (
    select c.*, sum(c.size) over (order by c.position rows unbounded preceding) - c.size as before from candidates c
)
select count(*), max(f.position), string_agg(convert_to(concat(
       '{"position":', f.position, ',"id":"', f.id, '","topic":', to_json(f.topic),
       ',"partition":', coalesce(f.partition::text, 'null'), ',"added_at":', to_json(f.created_at),
       ',"key":', coalesce('"' || replace(encode(f.key, 'base64'), E'\n', '') || '"', 'null'),
       case when %(payload)s
            then concat(',"value":', coalesce('"' || replace(encode(f.value, 'base64'), E'\n', '') || '"', 'null'),
                        ',"headers":', replace(replace(f.headers::text, E'\n', ' '), E'\r', ' '))
            else concat(',"value_bytes":', coalesce(octet_length(f.value)::text, 'null')) end,
       E'}\n'), 'utf8'), ''::bytea order by f.position)
  from fitting f where f.before < %(bytes)s

-- name: standing
-- Up to where each lane has sent all that is its own: before the first batch that is on its way. And the topics that are
-- held, each from where on.
select i.lanes,
       (select array_agg(least(l.covered, (select min(b.after_position) from {schema}.batches b
                                            where b.lane = l.lane and b.state = 'sending' and b.kind = 'range'))
                         order by l.lane)
          from {schema}.lanes l where l.lane < i.lanes),
       coalesce(h.lanes, '{}'), coalesce(h.topics, '{}'), coalesce(h.after, '{}')
  from {schema}.outbox_identity i,
       (select array_agg(lane) as lanes, array_agg(topic) as topics, array_agg(from_position) as after
          from {schema}.topic_holds) h
