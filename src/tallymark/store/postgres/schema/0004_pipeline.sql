-- role: consumer
-- The pipeline: who ran, what each micro-batch committed, and where executors load before that commit.

-- Runs of `tallymark pipeline ingest`, the one that is under way among them.
create table {schema}.runs (
    run        text primary key check (run ~ '^[0-9a-f]{12}$'),
    consumer   text not null,
    owner      text not null,
    topics     text[] not null,
    master     text not null,
    host       text not null,
    pid        integer not null,
    version    text not null,
    started_at timestamptz not null default clock_timestamp(),
    seen_at    timestamptz not null default clock_timestamp(),
    ended_at   timestamptz,
    -- Why it ended, where that was not as asked.
    trouble    text
);
create index runs_consumer on {schema}.runs (consumer, started_at desc);

-- The ledger: one row per micro-batch, written in the transaction that kept it. The positions are the truth; this says
-- how they got there.
create table {schema}.ingested (
    run          text not null,
    batch        bigint not null,
    consumer     text not null,
    -- [[topic, partition, start, end], …]
    ranges       json not null,
    read         bigint not null,
    kept         bigint not null,
    applied      bigint not null,
    queued       bigint not null,
    dead         bigint not null,
    load_s       double precision not null,
    commit_s     double precision not null,
    committed_at timestamptz not null default clock_timestamp(),
    primary key (run, batch)
);
create index ingested_consumer on {schema}.ingested (consumer, committed_at desc);

-- A run's staging table. Unlogged: whatever a crash of the server takes from it is missed when its rows are counted, and
-- loaded again. With the owner's rights, because a consumer has none to make tables.
create function {schema}.make_staging(run text) returns void
    language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    if run !~ '^[0-9a-f]{12}$' then
        raise exception 'not a run: %', run;
    end if;
    execute format('create unlogged table if not exists {schema}.%I (
        id uuid not null, source text not null, named text, topic text not null, partition integer not null,
        "offset" bigint, position bigint, key bytea, value bytea, headers json, logged_at timestamptz,
        token text not null, n bigint
    ) with (autovacuum_enabled = off)', 'staging_' || run);
    execute format('grant select, insert, update, delete, truncate on {schema}.%I to %I', 'staging_' || run, session_user);
end $$;

-- What runs of a consumer that are over have left behind. Says which.
create function {schema}.drop_staging(of_consumer text, except_run text) returns setof text
    language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    found text;
begin
    for found in
        select c.relname from {schema}.runs r join pg_class c on c.relname = 'staging_' || r.run
          join pg_namespace s on s.oid = c.relnamespace and s.nspname = '{schema}'
         where r.consumer = of_consumer and r.run <> except_run
    loop
        execute format('drop table if exists {schema}.%I', found);
        return next found;
    end loop;
end $$;
