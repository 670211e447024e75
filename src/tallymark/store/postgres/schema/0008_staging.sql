-- role: consumer
-- A run of the pipeline has two staging tables, so that a batch is loaded while the one before it is committed.

-- A run's two staging tables: one is loaded while the other is committed. Unlogged: whatever a crash of the server takes
-- from them is missed when rows are counted, and loaded again. With the owner's rights, because a consumer has none to make
-- tables.
create or replace function {schema}.make_staging(run text) returns void
    language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    made text;
begin
    if run !~ '^[0-9a-f]{12}$' then
        raise exception 'not a run: %', run;
    end if;
    foreach made in array array['staging_' || run, 'staging_' || run || '_b'] loop
        execute format('create unlogged table if not exists {schema}.%I (
            id uuid not null, source text not null, named text, topic text not null, partition integer not null,
            "offset" bigint, position bigint, key bytea, value bytea, headers json, logged_at timestamptz,
            token text not null, n bigint
        ) with (autovacuum_enabled = off)', made);
        execute format('grant select, insert, update, delete, truncate on {schema}.%I to %I', made, session_user);
    end loop;
end $$;

-- What runs of a consumer that are over have left behind. Says which.
create or replace function {schema}.drop_staging(of_consumer text, except_run text) returns setof text
    language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    found text;
begin
    for found in
        select c.relname from {schema}.runs r join pg_class c on c.relname in ('staging_' || r.run, 'staging_' || r.run || '_b')
          join pg_namespace s on s.oid = c.relnamespace and s.nspname = '{schema}'
         where r.consumer = of_consumer and r.run <> except_run
    loop
        execute format('drop table if exists {schema}.%I', found);
        return next found;
    end loop;
end $$;
