-- The outbox on SQLite and what the relay keeps beside it: the tables of PostgreSQL's schema, for one lane. They stand
-- in the file of the business data, for only so can one commit hold both. Times are seconds since 1970, by SQLite's
-- clock. Statements end with a semicolon at the end of a line: they are run one by one, in the transaction at hand.

-- Who this outbox is, and the version of these tables.
create table if not exists {schema}_identity (
    one               integer primary key check (one = 1),
    version           integer not null,
    outbox_id         text not null,
    receipts_topic_id text,
    created_at        real not null default ({now})
) strict;

-- AUTOINCREMENT: a position is never given twice, whatever was deleted. SQLite has one writer at a time, so positions
-- are drawn in the order of commits, and what a reader sees has no gaps that fill up later: no floors are needed.
create table if not exists {schema}_outbox (
    position   integer primary key autoincrement,
    id         text not null,
    topic      text not null check (topic <> ''),
    key        blob,
    value      blob,
    headers    text not null default '{}',
    partition  integer check (partition >= 0),
    created_at real not null default ({now})
) strict;
create index if not exists {schema}_outbox_id on {schema}_outbox (id);

create table if not exists {schema}_delayed (
    id         text primary key,
    due_at     real not null,
    topic      text not null check (topic <> ''),
    key        blob,
    value      blob,
    headers    text not null default '{}',
    partition  integer check (partition >= 0),
    created_at real not null default ({now})
) strict;
create index if not exists {schema}_delayed_due on {schema}_delayed (due_at);

create table if not exists {schema}_dedup_keys (
    dedup_key text primary key,
    id        text not null,
    added_at  real not null default ({now})
) strict;

create table if not exists {schema}_lanes (
    lane           integer primary key check (lane = 0),
    owner          text,
    epoch          integer not null default 0,
    lease_until    real,
    covered        integer not null default 0,
    last_number    integer not null default -1,
    receipt_number integer,
    receipt_token  text,
    receipt_offset integer,
    paused         integer not null default 0,
    halted         text,
    sent           integer not null default 0,
    resolved       integer not null default 0,
    fenced         integer not null default 0,
    changed_at     real not null default ({now})
) strict;

create table if not exists {schema}_relays (
    owner      text primary key,
    host       text not null,
    pid        integer not null,
    mode       text not null,
    version    text not null,
    accepted   text not null default '[]',
    started_at real not null default ({now}),
    seen_until real not null
) strict;

create table if not exists {schema}_batches (
    number         integer primary key check (number >= 0),
    lane           integer not null check (lane = 0),
    covered        integer not null,
    token          text not null,
    kind           text not null check (kind in ('origin', 'range', 'topic', 'retry')),
    after_position integer not null,
    upto           integer not null check (upto >= after_position),
    topic          text,
    without_topics text not null default '[]',
    messages       integer not null check (messages >= 0),
    mode           text not null check (mode in ('transactional', 'callback', 'sync')),
    state          text not null check (state in ('sending', 'sent')),
    owner          text not null,
    epoch          integer not null,
    version        integer not null default 1,
    receipt_offset integer,
    in_doubt       integer not null default 0,
    claimed_at     real not null default ({now}),
    sent_at        real,
    check ((kind = 'topic') = (topic is not null)),
    check ((state = 'sent') = (sent_at is not null))
) strict;
create index if not exists {schema}_batches_covered on {schema}_batches (covered);
create index if not exists {schema}_batches_unsent on {schema}_batches (number) where state = 'sending';

create table if not exists {schema}_parked (
    position    integer primary key,
    id          text not null,
    topic       text not null,
    key         blob,
    value       blob,
    headers     text not null,
    partition   integer,
    created_at  real not null,
    state       text not null check (state in ('failed', 'waiting', 'retrying', 'sent', 'discarded')),
    reason      text not null,
    batch       integer not null,
    retry_batch integer,
    attempts    integer not null default 0,
    parked_at   real not null default ({now}),
    changed_at  real not null default ({now}),
    check (state <> 'sent' or retry_batch is not null)
) strict;
create index if not exists {schema}_parked_id on {schema}_parked (id);
create index if not exists {schema}_parked_unfinished on {schema}_parked (topic, key, position)
 where state in ('failed', 'waiting', 'retrying');

create table if not exists {schema}_topic_holds (
    lane          integer not null check (lane = 0),
    topic         text primary key,
    state         text not null check (state in ('held', 'catching-up')),
    from_position integer not null,
    reason        text not null,
    held_at       real not null default ({now}),
    checked_at    real not null default ({now})
) strict;

create table if not exists {schema}_topics (
    topic             text primary key,
    topic_id          text not null,
    partitions        integer not null check (partitions > 0),
    max_message_bytes integer not null,
    accepted_risks    text not null default '[]',
    recorded_at       real not null default ({now})
) strict;

-- Who did what, and why. Append-only.
create table if not exists {schema}_audit (
    seq     integer primary key autoincrement,
    at      real not null default ({now}),
    who     text not null,
    action  text not null,
    subject text not null,
    reason  text not null default '',
    details text not null default '{}'
) strict;
