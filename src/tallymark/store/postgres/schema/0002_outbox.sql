-- role: producer
-- The outbox and what the relay keeps beside it.

-- Who this outbox is. Made once: transactional ids and receipts carry outbox_id, so that two services on one
-- Kafka, or a restored copy of a database, are never taken for each other.
create table {schema}.outbox_identity (
    one               boolean primary key default true check (one),
    outbox_id         uuid not null default gen_random_uuid(),
    tag               integer not null check (tag between 1 and 32767),
    lanes             smallint not null check (lanes between 1 and 256),
    partition_rows    bigint not null check (partition_rows > 0),
    receipts_topic_id text,
    -- Whether writers wake relays by NOTIFY: quicker for a lone writer, a global lock at commit for many.
    notify            boolean not null default false,
    created_at        timestamptz not null default clock_timestamp()
);

-- CACHE 1: a cached block would draw positions before the floor that covers them.
create sequence {schema}.outbox_position as bigint start 1 cache 1;

-- slot: which of 256 slots the key belongs to, computed here and nowhere else, so that writers cannot disagree.
-- A lane is slot modulo the stored lane count, which only relays read.
create table {schema}.outbox (
    position   bigint not null default nextval('{schema}.outbox_position'),
    id         uuid not null,
    slot       smallint not null generated always as (
        case when key is null then (position & 255) else ('x' || left(md5(key), 2))::bit(8)::integer end
    ) stored,
    topic      text not null check (topic <> ''),
    key        bytea,
    value      bytea,
    headers    json not null default '{}',
    partition  integer check (partition >= 0),
    created_at timestamptz not null default clock_timestamp(),
    primary key (position)
) partition by range (position);
create index outbox_id on {schema}.outbox (id);

-- Messages for later. A relay moves them into the outbox when they are due: order counts from then.
create table {schema}.delayed (
    id         uuid primary key,
    due_at     timestamptz not null,
    topic      text not null check (topic <> ''),
    key        bytea,
    value      bytea,
    headers    json not null default '{}',
    partition  integer check (partition >= 0),
    created_at timestamptz not null default clock_timestamp()
);
create index delayed_due on {schema}.delayed (due_at);

-- A caller's own names for messages (an order number): adding one again is refused or ignored.
create table {schema}.dedup_keys (
    dedup_key text primary key,
    id        uuid not null,
    added_at  timestamptz not null default clock_timestamp()
);

create table {schema}.lanes (
    lane           smallint primary key,
    owner          text,
    epoch          bigint not null default 0,
    lease_until    timestamptz,
    -- Every row of this lane up to here is in a batch, in parked, or of a held topic.
    covered        bigint not null default 0,
    last_number    bigint not null default -1,
    -- The last receipt that was marked: where a scan of the receipts starts, and what it must find.
    receipt_number bigint,
    receipt_token  uuid,
    receipt_offset bigint,
    paused         boolean not null default false,
    -- What was found that must not be papered over; the lane stands still until an operator clears it.
    halted         text,
    -- Counters for status.
    sent           bigint not null default 0,
    resolved       bigint not null default 0,
    fenced         bigint not null default 0,
    changed_at     timestamptz not null default clock_timestamp()
);

create table {schema}.relays (
    owner      text primary key,
    host       text not null,
    pid        integer not null,
    mode       text not null check (mode in ('transactional', 'callback', 'sync')),
    version    text not null,
    accepted   text[] not null default '{}',
    started_at timestamptz not null default clock_timestamp(),
    seen_until timestamptz not null
);

-- A batch covers the lane's rows in (after_position, upto]. Its range and its token never change; what is left
-- out of it (parked, or of a topic in without_topics) commits before Kafka's commit.
create table {schema}.batches (
    covered        bigint not null,
    lane           smallint not null,
    number         bigint not null check (number >= 0),
    token          uuid not null,
    kind           text not null check (kind in ('origin', 'range', 'topic', 'retry')),
    after_position bigint not null,
    upto           bigint not null check (upto >= after_position),
    topic          text,
    without_topics text[] not null default '{}',
    messages       integer not null check (messages >= 0),
    mode           text not null check (mode in ('transactional', 'callback', 'sync')),
    state          text not null check (state in ('sending', 'sent')),
    owner          text not null,
    epoch          bigint not null,
    version        integer not null default 1,
    receipt_offset bigint,
    in_doubt       boolean not null default false,
    claimed_at     timestamptz not null default clock_timestamp(),
    sent_at        timestamptz,
    primary key (covered, lane, number),
    check ((kind = 'topic') = (topic is not null)),
    check ((state = 'sent') = (sent_at is not null))
) partition by range (covered);
create index batches_unsent on {schema}.batches (lane, number) where state = 'sending';

-- Messages that left their batch: a full copy, so that retention can drop the outbox's partition.
create table {schema}.parked (
    position    bigint primary key,
    id          uuid not null,
    slot        smallint not null,
    topic       text not null,
    key         bytea,
    value       bytea,
    headers     json not null,
    partition   integer,
    created_at  timestamptz not null,
    state       text not null check (state in ('failed', 'waiting', 'retrying', 'sent', 'discarded')),
    reason      text not null,
    batch       bigint not null,
    retry_batch bigint,
    attempts    integer not null default 0,
    parked_at   timestamptz not null default clock_timestamp(),
    changed_at  timestamptz not null default clock_timestamp(),
    check (state <> 'sent' or retry_batch is not null)
) partition by range (position);
create index parked_id on {schema}.parked (id);
-- By slot first: a lane looks at its own every second, and at nobody else's.
create index parked_unfinished on {schema}.parked (slot, topic, key, position)
 where state in ('failed', 'waiting', 'retrying');
create index parked_retry on {schema}.parked (retry_batch) where state = 'retrying';

-- Topics that cannot be published into now. The lane goes on without them; from_position is where the topic's
-- rows were first passed over, and a catch-up moves it on.
create table {schema}.topic_holds (
    lane          smallint not null,
    topic         text not null,
    state         text not null check (state in ('held', 'catching-up')),
    from_position bigint not null,
    reason        text not null,
    held_at       timestamptz not null default clock_timestamp(),
    checked_at    timestamptz not null default clock_timestamp(),
    primary key (lane, topic)
);

-- What the relay knows of each topic. Keys are placed by the recorded partition count, not by what Kafka says
-- today: added partitions must not move keys in mid-stream.
create table {schema}.topics (
    topic             text primary key,
    topic_id          text not null,
    partitions        integer not null check (partitions > 0),
    max_message_bytes integer not null,
    accepted_risks    text[] not null default '{}',
    recorded_at       timestamptz not null default clock_timestamp()
);

-- The floor: a shared advisory lock, once per writing transaction and before its first position is drawn, whose
-- key holds the sequence's value of that moment. A relay never reads past the lowest floor. set_config(.., true)
-- reverts with ROLLBACK TO SAVEPOINT, just as the lock does.
--
-- It runs in every writing transaction, so it is made of plain expressions, with the outbox's tag as a constant.
-- Names are qualified: a caller's search_path must not be able to put something else in their place.
create function {schema}.outbox_take_floor() returns trigger language plpgsql as $$
declare
    done text;
begin
    if pg_catalog.texteq(pg_catalog.current_setting('tallymark.floor_{schema}', true), 'taken') then
        return null;
    end if;
    -- pg_sequence_last_value is null before the first position is drawn.
    done := pg_catalog.pg_advisory_xact_lock_shared(pg_catalog.int8or({tag}::bigint << 48,
        coalesce(pg_catalog.pg_sequence_last_value('{schema}.outbox_position'::regclass), 0)));
    done := pg_catalog.set_config('tallymark.floor_{schema}', 'taken', true);
    return null;
end $$;

-- Wakes relays; `tallymark init --notify` makes the trigger that calls it.
create function {schema}.outbox_wake() returns trigger language plpgsql as $$
begin
    perform pg_notify('{schema}_outbox', '');
    return null;
end $$;

create trigger outbox_take_floor before insert on {schema}.outbox
    for each statement execute function {schema}.outbox_take_floor();
alter table {schema}.outbox enable always trigger outbox_take_floor;

-- UUIDv7 for callers that bring no id (uuidv7() is built in from PostgreSQL 18 only).
create function {schema}.new_id() returns uuid language sql volatile as $$
    select encode(
        set_bit(set_bit(
            overlay(uuid_send(gen_random_uuid())
                    placing substring(int8send((extract(epoch from clock_timestamp()) * 1000)::bigint) from 3)
                    from 1 for 6),
            52, 1), 53, 1), 'hex')::uuid
$$;

-- Add one message to the caller's transaction; gives back its id. For every language, and for triggers.
create function {schema}.outbox_add(
    topic         text,
    value         bytea,
    key           bytea default null,
    headers       json default '{}',
    id            uuid default null,
    partition     integer default null,
    dedup_key     text default null,
    if_exists     text default 'refuse',
    serialize_key boolean default false,
    due_at        timestamptz default null
) returns uuid language plpgsql as $$
#variable_conflict use_variable
declare
    new_id   uuid := coalesce(id, {schema}.new_id());
    known    uuid;
    biggest  integer;
begin
    select t.max_message_bytes into biggest from {schema}.topics t where t.topic = outbox_add.topic;
    if octet_length(value) > biggest then
        raise exception 'a value of % bytes is larger than topic % takes (max.message.bytes = %)',
            octet_length(value), topic, biggest using errcode = 'TM001';
    end if;
    if dedup_key is not null then
        insert into {schema}.dedup_keys (dedup_key, id) values (dedup_key, new_id) on conflict do nothing;
        if not found then
            if if_exists = 'ignore' then
                select d.id into known from {schema}.dedup_keys d where d.dedup_key = outbox_add.dedup_key;
                return known;
            end if;
            raise exception 'a message with dedup_key % was added before', dedup_key using errcode = 'TM002';
        end if;
    end if;
    if serialize_key then
        -- Two transactions of one key add one after the other: positions then follow commits.
        perform pg_advisory_xact_lock(hashtextextended(topic || ':' || encode(key, 'hex'), 7));
    end if;
    if due_at is null then
        insert into {schema}.outbox (id, topic, key, value, headers, partition)
        values (new_id, topic, key, value, headers, partition);
    else
        insert into {schema}.delayed (id, due_at, topic, key, value, headers, partition)
        values (new_id, due_at, topic, key, value, headers, partition);
    end if;
    return new_id;
end $$;

-- Partitions of the three tables that grow, side by side, up to a position. Says how many it made.
create function {schema}.make_partitions(upto_position bigint) returns integer language plpgsql as $$
declare
    size bigint;
    low  bigint;
    made integer := 0;
    root text;
begin
    select partition_rows into strict size from {schema}.outbox_identity;
    -- The next bound is what the newest partition ends on: bounds never overlap, whatever the size was then.
    select coalesce(max(substring(c.relname from '_([0-9]+)$')::bigint), 0) into low
      from pg_inherits i join pg_class c on c.oid = i.inhrelid
     where i.inhparent = '{schema}.outbox'::regclass;
    while low <= upto_position loop
        foreach root in array array['outbox', 'batches', 'parked'] loop
            -- CREATE .. PARTITION OF would lock writers out; ATTACH does not.
            execute format('create table {schema}.%I (like {schema}.%I including defaults including constraints '
                           'including generated)', root || '_' || (low + size), root);
            execute format('alter table {schema}.%I attach partition {schema}.%I for values from (%s) to (%s)',
                           root, root || '_' || (low + size), low, low + size);
        end loop;
        low := low + size;
        made := made + 1;
    end loop;
    return made;
end $$;
