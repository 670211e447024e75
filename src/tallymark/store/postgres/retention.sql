-- name: alone
-- One round at a time, for as long as this transaction lasts: two would finish and drop the same tables, and move the
-- sequence back. It has nothing to do until the round ends, so the minute that others of ours may idle is too short; and
-- one that was stopped must not keep the house from the others until the partitions that stand ready are full. Who lacks
-- the rights of the schema's owner can do none of it, and does not take it from one who can.
select case when pg_has_role(c.relowner, 'member')
            then pg_try_advisory_xact_lock(hashtextextended('{schema} outbox retention', 0)) else true end
  from pg_class c, set_config('idle_in_transaction_session_timeout', '600s', true)
 where c.oid = '{schema}.outbox'::regclass

-- name: make_ahead
-- Partitions stand ready well before a writer needs them.
select {schema}.make_partitions(
    (select last_value from {schema}.outbox_position) + %(ahead)s * (select partition_rows from {schema}.outbox_identity))

-- name: partitions
-- Partitions by the bound in their name, oldest first, and whether a drop of them was begun and not ended.
select c.relname, substring(c.relname from '_([0-9]+)$')::bigint, i.inhdetachpending
  from pg_inherits i join pg_class c on c.oid = i.inhrelid
 where i.inhparent = %(table)s::regclass order by 2

-- name: orphans
-- Partitions that were detached and not dropped: a crash came in between, or somebody else did it. Those of the outbox
-- first: the others hang on them.
select c.relname, substring(c.relname from '_([0-9]+)$')::bigint
  from pg_class c join pg_namespace n on n.oid = c.relnamespace
 where n.nspname = %(schema)s and c.relkind = 'r' and c.relname ~ '^(outbox|batches|parked)_[0-9]+$'
   and not exists (select from pg_inherits i where i.inhrelid = c.oid)
 order by c.relname !~ '^outbox', 2

-- name: bounds
-- Up to here every row is sent, or parked and so copied: what no lane and no held topic needs any more.
select least(
    (select min(covered) from {schema}.lanes where lane < (select lanes from {schema}.outbox_identity)),
    (select min(from_position) from {schema}.topic_holds),
    (select min(after_position) from {schema}.batches where state = 'sending')),
    (select last_value from {schema}.outbox_position),
    (select partition_rows from {schema}.outbox_identity)

-- name: jump
-- A quiet outbox would fill one partition for years: the sequence moves on to the next one, once a day or so. Only
-- forwards: positions may have gaps, they may never come twice. Looking and moving are two steps, and writers draw between
-- them, as far as the margin at most: that nobody else moves it meanwhile is for the round's lock to see to.
select setval('{schema}.outbox_position', %(next)s)
 where (select last_value from {schema}.outbox_position) < %(next)s - %(margin)s

-- name: is_keeper
-- One relay keeps house: the first by name of those alive. Should two want to, the round's lock is one's; that nobody
-- does is worse: one that has the rights of the schema's owner keeps house whoever else is there, for the first by name
-- may not have them.
select coalesce(min(r.owner) = %(owner)s, false)
       or (select pg_has_role(c.relowner, 'member') from pg_class c where c.oid = '{schema}.outbox'::regclass)
  from {schema}.relays r where r.seen_until > clock_timestamp()

-- name: forget_names
-- Names are unique for all time, so that no partition of time can hold them: rows go, a bounded number at a time.
with old as (
    select dedup_key from {schema}.dedup_keys where added_at < clock_timestamp() - %(keep)s::interval
     order by added_at limit 10000
), gone as (
    delete from {schema}.dedup_keys d using old where d.dedup_key = old.dedup_key returning 1
)
select count(*) from gone

-- name: forget_resends
-- What was sent again is asked for as long as one of its rows is there, and by a tally of the lowest windows, which may
-- begin below them. Few are sent again, by hand: rows go, a bounded number at a time.
with old as (
    select position from {schema}.resends
     where position < %(lowest)s - greatest(%(size)s, (select max(window_end - window_start) from {schema}.certificates))
     order by position limit 10000
), gone as (
    delete from {schema}.resends r using old where r.position = old.position returning 1
)
select count(*) from gone

-- name: parked_unfinished
-- Parked messages keep their partition until each is sent or discarded.
select exists (select from {schema}.parked
                where position >= %(low)s and position < %(high)s and state in ('failed', 'waiting', 'retrying'))
