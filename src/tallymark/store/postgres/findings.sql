-- name: begin
insert into {schema}.tallies (run, who, from_position, to_position)
values (%(run)s, %(who)s, %(first)s, %(last)s)

-- name: staging
create temporary table found (
    id text, verdict text, consumer text, stage text, topic text, key bytea, partition integer, "offset" bigint,
    position bigint, evidence text) on commit drop

-- name: copy
copy found (id, verdict, consumer, stage, topic, key, partition, "offset", position, evidence) from stdin

-- name: found_later
-- Where somebody who looked later has found something that no term of an equation accounts for.
select distinct position from {schema}.findings
 where over_at is null and last_seen > %(at)s and position is not null and verdict <> all(%(accounted)s::text[])

-- name: open_in
-- The windows of which something is open, as far as a run over these consumers (null: all) would see that it is over.
select distinct position / %(rows)s from {schema}.findings
 where over_at is null and position is not null
   and (%(consumers)s::text[] is null or consumer = any(%(consumers)s::text[]) and (consumer <> '' or stage <> 'inbox'))

-- name: merge
-- Seen when the stations were read, not when it is written down: what was sent again in between was not missed since.
insert into {schema}.findings as f (id, verdict, consumer, stage, topic, key, partition, "offset", position, evidence, run,
                                    first_seen, last_seen)
select distinct on (id, verdict, consumer)
       id, verdict, consumer, stage, topic, key, partition, "offset", position, evidence, %(run)s::uuid,
       %(at)s::timestamptz, %(at)s::timestamptz from found
on conflict (id, verdict, consumer) do update
   set stage = excluded.stage, topic = excluded.topic, key = excluded.key, partition = excluded.partition,
       "offset" = excluded."offset", position = excluded.position, evidence = excluded.evidence, run = excluded.run,
       last_seen = excluded.last_seen, over_at = null
 where greatest(f.last_seen, f.over_at) <= excluded.last_seen

-- name: over
-- What this run looked at and did not find again. Without a position (a foreign hand's, or to be sent later): only where
-- all of those were looked at.
-- Not what a run has seen that looked later, and was done before: of two the later look counts, not the later end.
-- What only an inbox told, for all consumers: not where some of them were not asked.
-- And what the outbox has dropped: it can be neither mended nor found again, by any run.
update {schema}.findings set over_at = %(at)s::timestamptz
 where over_at is null and run <> %(run)s::uuid
   and (position < %(lowest)s
        or last_seen <= %(at)s::timestamptz
       and (%(topics)s::text[] is null or topic = any(%(topics)s::text[]))
       and (%(consumers)s::text[] is null or consumer = any(%(consumers)s::text[]) and (consumer <> '' or stage <> 'inbox'))
       and (position >= %(first)s and position <= %(last)s
            or position is null and (%(whole)s or %(delayed)s and verdict = 'late')))

-- name: end
update {schema}.tallies set ended_at = clock_timestamp(), summary = %(summary)s::json where run = %(run)s

-- name: prune
-- Findings that have been over for a season, and runs of last year, are history.
with gone as (delete from {schema}.findings where over_at < clock_timestamp() - interval '90 days')
delete from {schema}.tallies where started_at < clock_timestamp() - interval '1 year'

-- name: list
select id, verdict, consumer, stage, topic, key, partition, "offset", position, evidence, run::text, first_seen,
       last_seen, over_at
  from {schema}.findings
 where (%(over)s or over_at is null)
   and (%(verdicts)s::text[] is null or verdict = any(%(verdicts)s::text[]))
   and (%(topic)s::text is null or topic = %(topic)s)
   and (%(consumer)s::text is null or consumer = %(consumer)s)
   and (%(ids)s::text[] is null or id = any(%(ids)s::text[]))
 order by position nulls last, id, verdict, consumer limit %(limit)s

-- name: consumers
-- Whom the last runs looked at, whichever databases each of them was given.
select distinct c.name
  from (select summary from {schema}.tallies where ended_at is not null order by started_at desc limit 20) t
 cross join lateral json_object_keys(t.summary->'consumers') c(name)

-- name: counts
select verdict, stage, consumer, count(*) from {schema}.findings where over_at is null group by 1, 2, 3 order by 1, 2, 3

-- name: messages
select count(distinct id) from {schema}.findings where over_at is null and verdict = any(%(verdicts)s::text[])

-- name: runs
select run::text, started_at, ended_at, who, from_position, to_position, summary::text
  from {schema}.tallies order by started_at desc limit %(limit)s

-- name: certificates
select number, window_start, window_end, statement, previous, hash, issued_at from {schema}.certificates
 order by number

-- name: last_certificate
select number, statement, previous, hash from {schema}.certificates order by number desc limit 1

-- name: ends
-- What each run has seen at the end of the chain.
select distinct (summary->'chain'->>'number')::bigint, summary->'chain'->>'hash' from {schema}.tallies
 where summary->'chain'->>'hash' is not null

-- name: lock_certificates
select pg_advisory_xact_lock(hashtextextended('{schema} certificates', 0))

-- name: certify
insert into {schema}.certificates (number, window_start, window_end, statement, previous, hash)
values (%(number)s, %(start)s, %(end)s, %(statement)s, %(previous)s, %(hash)s)
