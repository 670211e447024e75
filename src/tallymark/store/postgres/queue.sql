-- name: pass_gate
-- Shared by all who ask whether a key is held and then apply beside the queue, and by all who queue; an operator who puts
-- a message back takes it alone. Without it a later message of the key could be applied, or be given a place before it,
-- between his look and his commit. By its number a transaction is known to `committed`.
select pg_advisory_xact_lock_shared(hashtextextended('{schema} gate ' || %(consumer)s, 0)),
       pg_current_xact_id_if_assigned()::text

-- name: any_queued
select exists (select from {schema}.queue where consumer = %(consumer)s)

-- name: held
-- One probe of the index per key, however many rows each has.
select k.key_hash from unnest(%(keys)s::bigint[]) k(key_hash)
 cross join lateral (
       select from {schema}.queue q where q.consumer = %(consumer)s and q.key_hash = k.key_hash limit 1) q

-- name: draw
-- Blocks of seqs, in rising order.
select nextval('{schema}.queue_seq') from generate_series(1, %(blocks)s)

-- name: claim_scan
-- Keys whose lowest row is due and of a topic that the caller handles, going round once from key `after`. From key to
-- key by the index, never along a key's rows: a key with a hundred thousand of them costs one step, like any other.
with recursive above as (
    (select q.key_hash, q.state, q.due_at, q.topic from {schema}.queue q
      where q.consumer = %(consumer)s and q.key_hash > %(after)s order by q.key_hash, q.seq limit 1)
    union all
    select n.key_hash, n.state, n.due_at, n.topic from above a cross join lateral (
        select q.key_hash, q.state, q.due_at, q.topic from {schema}.queue q
         where q.consumer = %(consumer)s and q.key_hash > a.key_hash order by q.key_hash, q.seq limit 1) n
), below as (
    (select q.key_hash, q.state, q.due_at, q.topic from {schema}.queue q
      where q.consumer = %(consumer)s and q.key_hash <= %(after)s order by q.key_hash, q.seq limit 1)
    union all
    select n.key_hash, n.state, n.due_at, n.topic from below b cross join lateral (
        select q.key_hash, q.state, q.due_at, q.topic from {schema}.queue q
         where q.consumer = %(consumer)s and q.key_hash > b.key_hash and q.key_hash <= %(after)s
         order by q.key_hash, q.seq limit 1) n
)
select key_hash from above
 where state <> 'dead' and (due_at is null or due_at <= clock_timestamp()) and topic = any(%(topics)s)
union all
select key_hash from below
 where state <> 'dead' and (due_at is null or due_at <= clock_timestamp()) and topic = any(%(topics)s)
limit %(candidates)s

-- name: claim_lock
-- In a statement of its own: what it locks is read by the next one, with a snapshot taken after the lock. The name of
-- schema and consumer is in the lock's key: two consumers do not stand in each other's way. The transaction gets its
-- number now, a moment before it writes: by that it is known to `committed`.
select k.key_hash, pg_current_xact_id()::text from unnest(%(keys)s::bigint[]) k(key_hash)
 where pg_try_advisory_xact_lock(hashtextextended('{schema} ' || %(consumer)s, k.key_hash))
 limit %(limit)s

-- name: lock_key
-- As a worker does, but waiting for it.
select pg_advisory_xact_lock(hashtextextended('{schema} ' || %(consumer)s, %(key_hash)s))

-- name: lock_keys
-- In rising order: two who wait for the same do not wait for each other.
select count(pg_advisory_xact_lock(hashtextextended('{schema} ' || %(consumer)s, k.key_hash)))
  from (select unnest(%(keys)s::bigint[])) k(key_hash)

-- name: standing
select k.n from unnest(%(keys)s::bigint[], %(seqs)s::bigint[]) with ordinality k(key_hash, seq, n)
 where exists (select from {schema}.queue q where q.consumer = %(consumer)s and q.key_hash = k.key_hash
                  and q.seq = k.seq and q.state <> 'dead')
 order by k.n

-- name: committed
-- Of an earlier transaction; and this one's own number, for whoever asks after it.
select pg_xact_status(%(mark)s::xid8) = 'committed', pg_current_xact_id()::text

-- name: claim_read
-- The lowest unfinished rows of the keys that are now ours, each key cut off before its first row that is dead, due
-- later or not for us. In turns over the keys: the first of each, then the second of each, so that a bound cuts none off whole. A
-- row is in while what stands before it is below the bound: one giant alone still moves. When it was kept is told of the
-- first alone, for the metrics.
with chosen as materialized (
    select k.n, s.*, row_number() over (partition by k.n order by s.seq) as turn
      from unnest(%(keys)s::bigint[]) with ordinality k(key_hash, n)
     cross join lateral (
           select q.*, bool_or(q.state = 'dead' or q.due_at > clock_timestamp() or q.topic <> all(%(topics)s))
                           over (order by q.seq) as waits
             from (select * from {schema}.queue
                    where consumer = %(consumer)s and key_hash = k.key_hash order by seq limit %(each)s) q) s
     where s.waits is not true
), sized as materialized (
    select c.n, c.turn, c.key_hash, c.seq, c.attempts, i.*,
           coalesce(octet_length(i.value), 0) + coalesce(octet_length(i.key), 0) + length(i.headers) + 100 as size
      from chosen c
      left join lateral (
           select i.id, i.source, i.named, i.topic, i.partition, i."offset", i.position, i.key, i.value,
                  i.headers::text as headers, i.logged_at, i.kept_at
             from {schema}.inbox i
            where i.id = c.id and i.source = c.source and i.consumer = c.consumer limit 1) i on true
), summed as (
    select s.*, row_number() over w as place, coalesce(sum(s.size) over w, 0) - coalesce(s.size, 0) as before
      from sized s window w as (order by s.turn, s.n rows unbounded preceding)
)
select id, source, named, topic, partition, "offset", position, key, value, headers, logged_at,
       key_hash, seq, attempts, case when place = 1 then kept_at end
  from summed where place <= %(rows)s and before < %(max_bytes)s order by place

-- name: finish
-- By one probe of the index per row, as in `held`: a planner that takes the queue for empty, as it was a moment ago,
-- reads all of it for every claim. A dead letter that was put back and is now applied says so.
with done as (
    delete from {schema}.queue q where q.ctid = any (array(
           select r.ctid from unnest(%(keys)s::bigint[], %(seqs)s::bigint[]) k(key_hash, seq)
            cross join lateral (select c.ctid from {schema}.queue c where c.consumer = %(consumer)s
                                   and c.key_hash = k.key_hash and c.seq = k.seq limit 1) r))
    returning q.key_hash, q.seq
), revived as (
    update {schema}.dead_letters d set state = 'applied', seq = null, changed_at = clock_timestamp()
      from done
     where d.consumer = %(consumer)s and d.key_hash = done.key_hash and d.seq = done.seq and d.state = 'retrying'
)
select count(*) from done

-- name: put_off
update {schema}.queue q
   set attempts = f.attempts, state = 'retrying', reason = f.reason,
       due_at = clock_timestamp() + make_interval(secs => f.again_in_s)
  from unnest(%(keys)s::bigint[], %(seqs)s::bigint[], %(attempts)s::integer[], %(reasons)s::text[],
              %(again)s::float8[]) f(key_hash, seq, attempts, reason, again_in_s)
 where q.ctid = any (array(
       select r.ctid from unnest(%(keys)s::bigint[], %(seqs)s::bigint[]) k(key_hash, seq)
        cross join lateral (select c.ctid from {schema}.queue c where c.consumer = %(consumer)s
                               and c.key_hash = k.key_hash and c.seq = k.seq limit 1) r))
   and q.key_hash = f.key_hash and q.seq = f.seq

-- name: bury
-- It keeps its place: while it is the lowest of its key, the key waits.
update {schema}.queue q set attempts = f.attempts, state = 'dead', reason = f.reason, due_at = null
  from unnest(%(keys)s::bigint[], %(seqs)s::bigint[], %(attempts)s::integer[], %(reasons)s::text[])
       f(key_hash, seq, attempts, reason)
 where q.ctid = any (array(
       select r.ctid from unnest(%(keys)s::bigint[], %(seqs)s::bigint[]) k(key_hash, seq)
        cross join lateral (select c.ctid from {schema}.queue c where c.consumer = %(consumer)s
                               and c.key_hash = k.key_hash and c.seq = k.seq limit 1) r))
   and q.key_hash = f.key_hash and q.seq = f.seq

-- name: bury_missing
-- Queued, and the inbox does not have it: a dead letter says so, without contents, and its key waits. Once they are
-- back it can be retried, for its place in the queue stays. What an older dead letter of it holds is kept.
with buried as (
    update {schema}.queue q set state = 'dead', reason = %(reason)s, due_at = null
      from unnest(%(keys)s::bigint[], %(seqs)s::bigint[]) f(key_hash, seq)
     where q.consumer = %(consumer)s and q.key_hash = f.key_hash and q.seq = f.seq
    returning q.*
)
insert into {schema}.dead_letters as d
       (consumer, id, source, topic, partition, "offset", key_hash, seq, state, reason, attempts)
select consumer, id, source, topic, partition, "offset", key_hash, seq, 'dead', reason, attempts from buried
on conflict (consumer, source, id, topic, partition, "offset") do update
   set key_hash = excluded.key_hash, seq = excluded.seq, state = 'dead', reason = excluded.reason,
       died_at = clock_timestamp(), changed_at = clock_timestamp()
returning id

-- name: drop
delete from {schema}.queue q where q.ctid = any (array(
       select r.ctid from unnest(%(keys)s::bigint[], %(seqs)s::bigint[]) k(key_hash, seq)
        cross join lateral (select c.ctid from {schema}.queue c where c.consumer = %(consumer)s
                               and c.key_hash = k.key_hash and c.seq = k.seq limit 1) r))

-- name: write_dead
-- One that was put back and died again is the same dead letter.
insert into {schema}.dead_letters as d
       (consumer, id, source, named, topic, partition, "offset", position, key, value, headers, logged_at, key_hash,
        seq, state, reason, traceback, attempts)
values (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s::json, %s, %s, %s, 'dead', %s, %s, %s)
on conflict (consumer, source, id, topic, partition, "offset") do update
   set key_hash = excluded.key_hash, seq = excluded.seq, state = 'dead', reason = excluded.reason,
       traceback = excluded.traceback, attempts = excluded.attempts, died_at = clock_timestamp(),
       changed_at = clock_timestamp()

-- name: quarantine
-- Seen again (an operator went back): it stays what it has become.
insert into {schema}.dead_letters
       (consumer, id, source, named, topic, partition, "offset", position, key, value, headers, logged_at, state, reason)
values (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s::json, %s, 'dead', %s)
on conflict (consumer, source, id, topic, partition, "offset") do nothing
