-- role: consumer
-- The inbox: what was received and kept, how far each consumer has come, and what is not finished.

-- How this inbox is cut, and from when on it knows what it has kept. One width for both tables that are cut by id.
create table {schema}.inbox_identity (
    one             boolean primary key default true check (one),
    partition_width interval not null check (partition_width >= interval '1 minute'),
    -- Ids older than this were dropped together with what was saved of them. The first moment that an id can name.
    kept_from       timestamptz not null default timestamptz 'epoch' + interval '4294967.296 s',
    created_at      timestamptz not null default clock_timestamp()
);

-- The lowest UUIDv7 of a moment, and the moment of a UUIDv7.
create function {schema}.id_floor(at timestamptz) returns uuid language sql immutable strict parallel safe as $$
    select (lpad(to_hex(floor(extract(epoch from at - timestamptz 'epoch') * 1000)::bigint), 12, '0')
            || repeat('0', 20))::uuid
$$;
create function {schema}.id_time(id uuid) returns timestamptz language sql immutable strict parallel safe as $$
    select timestamptz 'epoch'
         + ('x' || substr(replace(id::text, '-', ''), 1, 12))::bit(48)::bigint * interval '1 millisecond'
$$;

-- Every message that was kept. Being kept is the saved id: one row, one index (docs/decisions/0010). Cut by id,
-- because a UUIDv7 rises with time: a partition goes as a whole when the log no longer has what is in it.
-- (id, source, consumer): two consumers in one database keep the same message, and ids are unique per source only.
create table {schema}.inbox (
    id        uuid not null,
    source    text not null,
    -- The producer's own id where that is not a UUIDv7; `id` then starts with 16 zero bits and is derived from it.
    named     text,
    topic     text not null,
    partition integer not null,
    -- Null for what was repaired without Kafka.
    "offset"  bigint,
    position  bigint,
    key       bytea,
    value     bytea,
    headers   json not null default '{}',
    logged_at timestamptz,
    consumer  text not null,
    kept_at   timestamptz not null default now(),
    primary key (id, source, consumer)
) partition by range (id);

-- Each effect, in order, written in the transaction that made it. No unique key on the message: an effect that was
-- made twice must be visible.
create sequence {schema}.applications_seq as bigint;
create table {schema}.applications (
    seq        bigint not null default nextval('{schema}.applications_seq'),
    id         uuid not null,
    source     text not null,
    consumer   text not null,
    topic      text not null,
    partition  integer not null,
    "offset"   bigint,
    attempt    integer not null,
    outcome    text not null check (outcome in ('applied', 'already', 'older')),
    applied_at timestamptz not null default now()
) partition by range (id);
-- BRIN: next to nothing to write, and rows lie in the order of time.
create index applications_id on {schema}.applications using brin (id, applied_at) with (autosummarize = on);

-- Ids that are not UUIDv7 carry no time: they all live here, below the first moment that a UUIDv7 can name, and are
-- the one exception that is pruned by rows.
create table {schema}.inbox_named partition of {schema}.inbox
    for values from (minvalue) to ('00010000-0000-0000-0000-000000000000');
create index inbox_named_kept_at on {schema}.inbox_named using brin (kept_at) with (autosummarize = on);
create table {schema}.applications_named partition of {schema}.applications
    for values from (minvalue) to ('00010000-0000-0000-0000-000000000000');

create table {schema}.consumers (
    name       text primary key,
    topics     text[] not null,
    mode       text not null check (mode in ('inline', 'deferred')),
    paused     boolean not null default false,
    created_at timestamptz not null default clock_timestamp()
);

create table {schema}.instances (
    owner      text primary key,
    consumer   text not null,
    host       text not null,
    pid        integer not null,
    version    text not null,
    mode       text not null check (mode in ('inline', 'deferred')),
    topics     text[] not null,
    started_at timestamptz not null default clock_timestamp(),
    seen_until timestamptz not null
);

-- How far each consumer has come. A write names the epoch and the offset that it started from.
-- fillfactor: updated at every batch, in place.
create table {schema}.positions (
    consumer     text not null,
    topic        text not null,
    partition    integer not null check (partition >= 0),
    next_offset  bigint not null check (next_offset >= 0),
    leader_epoch integer,
    epoch        bigint not null default 0,
    owner        text,
    owner_kind   text check (owner_kind in ('service', 'spark')),
    lease_until  timestamptz,
    -- Empty after an operator's seek: whatever the topic is when it is taken next.
    topic_id     text not null default '',
    -- What was found that must not be papered over; the partition stands still until an operator seeks.
    halted       text,
    -- Counters for status.
    kept         bigint not null default 0,
    fenced       bigint not null default 0,
    -- Kafka's time of the last message before next_offset.
    logged_at    timestamptz,
    changed_at   timestamptz not null default clock_timestamp(),
    primary key (consumer, topic, partition),
    check ((owner is null) = (lease_until is null))
) with (fillfactor = 50);

-- Steps of 65536, and rows of one call 64 apart: a message that an operator puts back finds room between the two
-- that it belongs between. CACHE 1: a cached block would be drawn before another session's and used after it.
create sequence {schema}.queue_seq as bigint increment by 65536 minvalue 65536 start 65536 cache 1;

-- What is kept and not finished, narrow: the wide row is joined from inbox. A key is held exactly while it has rows
-- here, and what counts is its lowest row: while that is dead, or due later, the key waits.
create table {schema}.queue (
    consumer  text not null,
    key_hash  bigint not null,
    seq       bigint not null default nextval('{schema}.queue_seq'),
    source    text not null,
    id        uuid not null,
    topic     text not null,
    partition integer not null,
    "offset"  bigint,
    attempts  integer not null default 0,
    state     text not null default 'ready' check (state in ('ready', 'retrying', 'dead')),
    -- Null: at once.
    due_at    timestamptz,
    reason    text,
    primary key (consumer, key_hash, seq)
) with (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 5000,
        autovacuum_vacuum_cost_delay = 0);

-- What failed for good, or could not be kept as usual: a full copy, so that retention can drop the inbox's partition.
create table {schema}.dead_letters (
    number     bigint generated always as identity primary key,
    consumer   text not null,
    source     text not null,
    id         uuid not null,
    named      text,
    topic      text not null,
    partition  integer not null,
    "offset"   bigint,
    position   bigint,
    key        bytea,
    value      bytea,
    headers    json not null default '{}',
    logged_at  timestamptz,
    -- Its key, where it was kept; its place in the queue, where it stands there and its key waits for it.
    key_hash   bigint,
    seq        bigint,
    state      text not null check (state in ('dead', 'retrying', 'applied', 'discarded')),
    reason     text not null,
    traceback  text not null default '',
    attempts   integer not null default 0,
    died_at    timestamptz not null default clock_timestamp(),
    changed_at timestamptz not null default clock_timestamp(),
    -- With the place in the log: two messages with one id are two dead letters.
    unique nulls not distinct (consumer, source, id, topic, partition, "offset")
);
create index dead_letters_retrying on {schema}.dead_letters (consumer, key_hash, seq) where state = 'retrying';
create index dead_letters_unfinished on {schema}.dead_letters (consumer, number) where state in ('dead', 'retrying');

-- The highest version that was applied of each key.
create table {schema}.versions (
    consumer text not null,
    topic    text not null,
    key      bytea not null,
    version  bigint not null,
    primary key (consumer, topic, key)
) with (fillfactor = 80);

-- Where the newest partition of the inbox ends.
create function {schema}.inbox_upto() returns timestamptz language sql stable as $$
    select max({schema}.id_time(substring(pg_get_expr(c.relpartbound, c.oid) from 'TO \(''([0-9a-f-]+)''\)')::uuid))
      from pg_inherits i join pg_class c on c.oid = i.inhrelid
     where i.inhparent = '{schema}.inbox'::regclass
$$;

-- Partitions of the two tables that are cut by id, side by side, until a moment lies in one. Says how many it made.
-- With the owner's rights: a consumer that runs for weeks must be able to go on keeping, with no rights of its own
-- to make tables. The bound is there because anybody who may call it could otherwise make thousands.
create function {schema}.make_inbox_partitions(upto timestamptz) returns integer
    language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    width  interval;
    low    timestamptz := {schema}.inbox_upto();
    high   timestamptz;
    suffix text;
    made   integer := 0;
    root   text;
begin
    if low > upto then
        return 0;
    end if;
    -- Two at once: the second waits here, then finds nothing to do.
    select partition_width into strict width from {schema}.inbox_identity for update;
    low := {schema}.inbox_upto();
    if upto > now() + 400 * width then
        raise exception 'partitions are made for at most 400 times % ahead', width;
    end if;
    while low <= upto loop
        if low = {schema}.id_time('00010000-0000-0000-0000-000000000000') then
            -- The first one is wide: all that was sent before there was an inbox.
            high := date_bin(width, now(), timestamptz '2000-01-01 00:00:00+00');
            suffix := 'past';
        else
            high := low + width;
            suffix := to_char(low at time zone 'UTC', 'YYYYMMDDHH24MI');
        end if;
        foreach root in array array['inbox', 'applications'] loop
            -- CREATE .. PARTITION OF would lock those out who keep messages; ATTACH does not.
            execute format('create table {schema}.%I (like {schema}.%I including defaults including constraints)',
                           root || '_' || suffix, root);
            execute format('alter table {schema}.%I attach partition {schema}.%I for values from (%L) to (%L)',
                           root, root || '_' || suffix, {schema}.id_floor(low), {schema}.id_floor(high));
        end loop;
        low := high;
        made := made + 1;
    end loop;
    return made;
end $$;
