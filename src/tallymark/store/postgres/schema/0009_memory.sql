-- role: consumer
-- What the inbox no longer remembers of ids that carry no time, and where a consumer's positions are.

-- Rows under such ids go one by one (retention). Below this offset of a place some have gone: one that comes back from an
-- archive may have been applied, and nobody can know.
create table {schema}.named_pruned (
    consumer    text not null,
    topic       text not null,
    partition   integer not null,
    next_offset bigint not null,
    primary key (consumer, topic, partition)
);

-- Where its positions are the group's own offsets in Kafka, there are no rows of it in `positions`.
alter table {schema}.consumers add column positions text not null default 'database'
    check (positions in ('database', 'kafka'));
