-- role: producer
-- The tally: what was found, what was certified, what was sent again. Beside the outbox, because a window is a range of
-- its positions, and because what is sent again are its rows.

-- One row per message, verdict and consumer ('' where it holds for all), with when it was first and last seen. A
-- finding that a later run over its window no longer makes is over: mended, or accounted for by now.
create table {schema}.findings (
    id          text not null,
    verdict     text not null check (verdict in ('late', 'parked', 'dead', 'lost-in-relay', 'lost-in-log',
                    'lost-in-inbox', 'unapplied', 'doubled-in-log', 'applied-twice', 'reordered', 'altered', 'phantom')),
    consumer    text not null default '',
    stage       text not null check (stage in ('outbox', 'relay', 'log', 'inbox', 'apply')),
    topic       text not null,
    key         bytea,
    partition   integer,
    "offset"    bigint,
    position    bigint,
    evidence    text not null,
    run         uuid not null,
    first_seen  timestamptz not null default clock_timestamp(),
    last_seen   timestamptz not null default clock_timestamp(),
    over_at     timestamptz,
    primary key (id, verdict, consumer)
);
create index findings_open on {schema}.findings (position) where over_at is null;

-- Runs of `tallymark tally run`, with what each came to.
create table {schema}.tallies (
    run         uuid primary key,
    started_at  timestamptz not null default clock_timestamp(),
    ended_at    timestamptz,
    who         text not null,
    from_position bigint not null,
    to_position bigint not null,
    summary     json not null default '{}'
);
create index tallies_started on {schema}.tallies (started_at desc);

-- The chain. `hash` is SHA-256 over the hash before it, a line feed and the statement (docs/tally.md).
create table {schema}.certificates (
    number       bigint primary key check (number > 0),
    window_start bigint not null,
    window_end   bigint not null check (window_end > window_start),
    statement    text not null,
    previous     text not null check (previous ~ '^[0-9a-f]{64}$'),
    hash         text not null unique check (hash ~ '^[0-9a-f]{64}$'),
    issued_at    timestamptz not null default clock_timestamp()
);
create index certificates_window on {schema}.certificates (window_start);

-- Messages that were sent again: the new row's position, and the row that it copies.
create table {schema}.resends (
    position    bigint primary key,
    id          uuid not null,
    number      integer not null check (number > 0),
    of_position bigint not null,
    verdict     text not null,
    consumer    text not null default '',
    resent_at   timestamptz not null default clock_timestamp(),
    resent_by   text not null,
    unique (id, number)
);
