-- What the tally sums up and reads, in words that PostgreSQL and Spark both know: the same queries are asked of live
-- databases and of snapshots. Where their words differ stands a name in braces (tallycells.py).

-- name: outbox_cells
-- Windows of the outbox, summed where the rows are: a digest travels, not a message. MD5 over netstrings, as in
-- tally/digest.py; its 128 bits as four sums. `claims` ties each to its position. Behind a fence: PostgreSQL would put the digest wherever its name stands,
-- and make it four times.
select w, topic, count(*) as n, sum((a >> 32) & 4294967295)::bigint as l0, sum(a & 4294967295)::bigint as l1,
       sum((b >> 32) & 4294967295)::bigint as l2, sum(b & 4294967295)::bigint as l3, min(id) as low, max(id) as high,
       sum({claim})::bigint as claims
  from (select w, topic, id, place, {first_half} as a, {second_half} as b
          from (select o.position {div} {rows} as w, o.topic, o.position as place, {bytewise} as id, {digest} as h
                  from {schema}.outbox o
                 where o.position >= {first} and o.position < {upto} {fence}) hashed {fence}) cut
 group by w, topic

-- name: inbox_cells
-- Of each consumer, by place in the log and by window: the digest of contents, and the sums of the ids alone.
select consumer, source, topic, partition, bucket, w, count(*) as n,
       sum((a >> 32) & 4294967295)::bigint as l0, sum(a & 4294967295)::bigint as l1,
       sum((b >> 32) & 4294967295)::bigint as l2, sum(b & 4294967295)::bigint as l3,
       sum((c >> 32) & 4294967295)::bigint as i0, sum(c & 4294967295)::bigint as i1,
       sum((d >> 32) & 4294967295)::bigint as i2, sum(d & 4294967295)::bigint as i3, min(start) as low, max(start) as high
  from (select consumer, source, topic, partition, bucket, w, start, {first_half} as a, {second_half} as b, c, d
          from (select o.consumer, o.source, o.topic, o.partition, coalesce(o."offset", 0) {div} {bucket} as bucket,
                       {window} as w, o."offset" as start, {digest} as h, {hash0} as c, {hash1} as d
                  from {schema}.inbox o where o.id >= '{low}' and o.id < '{high}' and {places} {fence}) hashed {fence}) cut
 group by consumer, source, topic, partition, bucket, w

-- name: effect_cells
-- Effects by place in the log: the sums of the ids. Where they are those of the inbox, each was applied once.
select consumer, topic, partition, bucket, count(*) as n,
       sum((c >> 32) & 4294967295)::bigint as i0, sum(c & 4294967295)::bigint as i1,
       sum((d >> 32) & 4294967295)::bigint as i2, sum(d & 4294967295)::bigint as i3
  from (select o.consumer, o.topic, o.partition, coalesce(o."offset", 0) {div} {bucket} as bucket,
               {hash0} as c, {hash1} as d
          from {schema}.applications o where o.id >= '{low}' and o.id < '{high}' and {places} {fence}) raw
 group by consumer, topic, partition, bucket

-- name: outbox_rows
select o.position, {id} as id, o.topic, o.key, {digest} as digest, cast(o.slot as integer) as slot, o.partition,
       o.created_at as at
  from {schema}.outbox o where {positions}

-- name: outbox_ids
select o.position, {id} as id from {schema}.outbox o where {positions}

-- name: inbox_counts
select o.consumer, o.source, o.topic, count(*) as n
  from {schema}.inbox o where o.id >= '{low}' and o.id < '{high}' and {positions}
 group by o.consumer, o.source, o.topic

-- name: inbox_rows
select o.consumer, o.source, {id} as id, o.topic, o.partition, o."offset", o.position, o.key, {digest} as digest, o.kept_at
  from {schema}.inbox o where o.id >= '{low}' and o.id < '{high}' and {positions}

-- name: effect_rows
-- Of these places in the log and what has none, or wherever. Under the producer's own name, where that is no UUIDv7.
select o.consumer, o.outcome, {id} as id
  from (select a.consumer, a.outcome, a.id, i.named
          from {schema}.applications a
          left join {schema}.inbox i on i.id < '00010000-0000-0000-0000-000000000000'
           and i.id = a.id and i.source = a.source and i.consumer = a.consumer
         where a.id >= '{low}' and a.id < '{high}' and {places}) o

-- name: window_effects
-- Of places where not the same was kept and applied: whose effects are there, by window of the outbox, each message once.
-- And `twice`: effects beyond the first of their message; and `strays`: those that stand elsewhere in the log than their
-- messages were kept from.
select o.consumer, o.source, o.topic, o.partition, o.bucket, o.w, count(*) as n,
       sum(({hash0} >> 32) & 4294967295)::bigint as i0, sum({hash0} & 4294967295)::bigint as i1,
       sum(({hash1} >> 32) & 4294967295)::bigint as i2, sum({hash1} & 4294967295)::bigint as i3,
       sum(case when o.effects > 1 then o.effects - 1 else 0 end)::bigint as twice,
       sum(o.strays)::bigint as strays, min(o.low) as low, max(o.high) as high
  from (select a.consumer, a.source, a.id, a.topic, a.partition, coalesce(a."offset", 0) {div} {bucket} as bucket,
               i.position {div} {rows} as w, min(a."offset") as low, max(a."offset") as high,
               sum(case when a.outcome = 'applied' then 1 else 0 end) as effects,
               max(case when coalesce(a."offset", 0) {div} {bucket} <> coalesce(i."offset", 0) {div} {bucket}
                        then 1 else 0 end) as strays
          from {schema}.applications a
          join {schema}.inbox i on i.id = a.id and i.source = a.source and i.consumer = a.consumer
         where {places} and i.position is not null
         group by a.consumer, a.source, a.id, a.topic, a.partition, coalesce(a."offset", 0) {div} {bucket},
                  i.position {div} {rows}) o
 group by o.consumer, o.source, o.topic, o.partition, o.bucket, o.w

-- name: inbox_among
-- Where each consumer has these messages, whatever position they came with.
select o.consumer, o.source, {id} as id, o.position, {digest} as digest, {hash0} as c, {hash1} as d
  from {schema}.inbox o where o.id in ({ids})

-- name: overtaking
-- Places in the log where a transaction applied what lies before the work of an earlier one. Between those lies whatever
-- was applied out of order; where workers share a partition, that is nearly all, and says nothing yet.
select consumer, topic, partition, min(low) as low, max(highest) as high
  from (select consumer, topic, partition, low,
               max(high) over (partition by consumer, topic, partition order by first
                               rows between unbounded preceding and 1 preceding) as highest
          from (select o.consumer, o.topic, o.partition, o.applied_at, min(o."offset") as low, max(o."offset") as high,
                       min(o.seq) as first
                  from {schema}.applications o
                 where o.outcome = 'applied' and o."offset" is not null and {places} and {of_this_log}
                 group by o.consumer, o.topic, o.partition, o.applied_at) turns) passed
 where low < highest
 group by consumer, topic, partition

-- name: misapplied
-- Of these places: effects that were made after one of a higher offset of their key, in an earlier transaction. What was
-- dead and put back by hand came late on purpose.
-- In one pass: a join of effects with themselves is a nested loop where nobody has analyzed the tables yet. What one
-- transaction applied stands together (the same first seq), and a range of whole numbers leaves it out.
with effects as (
    select o.consumer, o.topic, o.partition, i.key, o."offset" as place, i.position, i.id, i.named,
           min(o.seq) over (partition by o.consumer, o.topic, o.partition, i.key, o.applied_at) as first
      from {schema}.applications o
      join {schema}.inbox i on i.id = o.id and i.source = o.source and i.consumer = o.consumer
     where o.outcome = 'applied' and o."offset" is not null and i.key is not null and {places} and {of_this_log}
       and not exists (select 1 from {schema}.dead_letters d
                        where d.id = o.id and d.source = o.source and d.consumer = o.consumer)
), passed as (
    select consumer, topic, position, id, named, place,
           max(place) over (partition by consumer, topic, partition, key order by first
                            range between unbounded preceding and 1 preceding) as highest
      from effects
)
select distinct o.consumer, o.topic, o.position, {id} as id
  from passed o
 where o.place < o.highest

-- name: digest
-- PostgreSQL's words. A missing part is '-', so that an empty one is another.
md5({netstring}
    || case when o.key is null then '-'::bytea else (octet_length(o.key) || ':')::bytea || o.key end
    || case when o.value is null then '-'::bytea else (octet_length(o.value) || ':')::bytea || o.value end)
