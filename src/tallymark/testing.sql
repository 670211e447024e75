-- name: added
-- What this very transaction added, its savepoints too: rows that we can see and whose transaction is still under way
-- can only be our own. Numbers of 32 bits are counted from our own one, so that a wrap-around does no harm; ours and
-- those of our savepoints are never below it. One row, so that every driver can read it.
with me as (select cast(cast(pg_current_xact_id_if_assigned() as text) as bigint) as xid),
rows as (
    select 0 as kind, position as place, id, topic, key, value, headers, cast(null as timestamptz) as due_at,
           cast(cast(xmin as text) as bigint) as xmin
      from {schema}.outbox
    union all
    select 1, 0, id, topic, key, value, headers, due_at, cast(cast(xmin as text) as bigint) from {schema}.delayed
),
near as (
    select rows.*, me.xid, mod(mod(rows.xmin - me.xid, 4294967296) + 6442450944, 4294967296) - 2147483648 as distance
      from rows, me where me.xid is not null
)
select cast(coalesce(json_agg(json_build_array(
           id, topic, encode(key, 'base64'), encode(value, 'base64'), headers, nullif(place, 0),
           extract(epoch from due_at)) order by kind, place, id), '[]') as text)
  from near
 where distance >= 0
   and pg_xact_status(cast(cast(xid + distance as text) as xid8)) = 'in progress'

-- name: ready
select {schema}.inbox_upto() > now() + interval '1 hour'
