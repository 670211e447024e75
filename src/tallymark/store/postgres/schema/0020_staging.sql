-- role: consumer
-- A run makes itself another staging table where somebody holds one of its two; and in a batch that is cut, rows are found.

-- A run's staging tables: that with this suffix, or the two that it begins with. Unlogged: whatever a crash of the server takes
-- from them is missed when rows are counted, and loaded again. Rows get a number only where their batch is cut: until then
-- the indexes are empty. With the owner's rights, because a consumer has none to make tables.
create function {schema}.make_staging(run text, suffix text default null) returns void
    language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    each text;
    made text;
begin
    if run !~ '^[0-9a-f]{12}$' or suffix !~ '^(_[0-9a-z]{1,8})?$' then
        raise exception 'not a run, or not a suffix: %, %', run, suffix;
    end if;
    foreach each in array case when suffix is null then array['', '_b'] else array[suffix] end loop
        made := 'staging_' || run || each;
        if to_regclass(format('{schema}.%I', made)) is null then
            execute format('create unlogged table {schema}.%I (
                id uuid not null, source text not null, named text, topic text not null, partition integer not null,
                "offset" bigint, position bigint, key bytea, value bytea, headers json, logged_at timestamptz,
                token text not null, n bigint
            ) with (autovacuum_enabled = off)', made);
            execute format('create index on {schema}.%I (n) where n is not null', made);
            -- By a digest: a key may be longer than what fits into a tree; and all may be of one key, which an index of
            -- kind hash would keep in one chain, read to its end for each.
            execute format('create index on {schema}.%I (hashtextextended(encode(key, ''hex''), 0), n) where n is not null', made);
            execute format('grant select, insert, update, delete, truncate on {schema}.%I to %I', made, session_user);
        end if;
    end loop;
end $$;

-- Whoever could make them before can now, and nobody else.
do $$
declare
    who regrole;
begin
    if not has_function_privilege('public', '{schema}.make_staging(text)', 'execute') then
        revoke all on function {schema}.make_staging(text, text) from public;
        for who in select a.grantee from pg_proc p, aclexplode(p.proacl) a
                    where p.oid = '{schema}.make_staging(text)'::regprocedure and a.grantee <> 0 loop
            execute format('grant execute on function {schema}.make_staging(text, text) to %s', who);
        end loop;
    end if;
end $$;
drop function {schema}.make_staging(text);

-- What runs of a consumer that are over have left behind, however many tables. Says which. With the name of a run: what all the
-- others have left, but for one that holds positions now. Without one: only of those that have said that they ended.
create or replace function {schema}.drop_staging(of_consumer text, except_run text) returns setof text
    language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    found text;
begin
    for found in
        select c.relname from {schema}.runs r join pg_class c on c.relkind = 'r' and starts_with(c.relname, 'staging_' || r.run)
          join pg_namespace s on s.oid = c.relnamespace and s.nspname = '{schema}'
         where r.consumer = of_consumer and r.run <> except_run
           and case when except_run = '' then r.ended_at is not null
                    else not exists (select from {schema}.positions p
                                      where p.consumer = r.consumer and p.owner = r.owner
                                        and p.lease_until > clock_timestamp()) end
    loop
        execute format('drop table if exists {schema}.%I', found);
        return next found;
    end loop;
end $$;
