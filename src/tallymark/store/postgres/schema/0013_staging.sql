-- role: consumer
-- Whose staging tables may be dropped: a run that is refused, or that comes late, must not take those of the one at work.

-- What runs of a consumer that are over have left behind. Says which. With the name of a run: what all the others have
-- left, but for one that holds positions now. Without one: only of those that have said that they ended.
create or replace function {schema}.drop_staging(of_consumer text, except_run text) returns setof text
    language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    found text;
begin
    for found in
        select c.relname from {schema}.runs r join pg_class c on c.relname in ('staging_' || r.run, 'staging_' || r.run || '_b')
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
