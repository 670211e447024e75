-- role: consumer
-- Where copies of a message stand whose id carries no time: a foreign producer may say the same under one id every day. Its
-- saved id has to stay for as long as the log has any of them.

create table {schema}.named_again (
    id        uuid not null,
    source    text not null,
    consumer  text not null,
    topic     text not null,
    partition integer not null,
    -- The highest one of its place, and when that was last read.
    "offset"  bigint not null,
    seen_at   timestamptz not null default now(),
    primary key (id, source, consumer, topic, partition)
);

-- Consumers that run need it as soon as it is here, before anybody repeats `tallymark init --grants`.
do $$
begin
    if exists (select from pg_roles where rolname = 'tallymark_consumer') then
        grant select, insert, update on {schema}.named_again to tallymark_consumer;
    end if;
end $$;
