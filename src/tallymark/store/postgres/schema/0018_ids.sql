-- role: producer
-- Ids that callers give are UUIDv7, as ours are: an inbox drops what it knows of ids by the time that they name. One that
-- names none is saved under another id, and is known for another time than all others.

-- As before, and an id that is given is looked at. A plain INSERT is not: it would pay for that with every row.
create or replace function {schema}.outbox_add(
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
    -- Kafka's own rule: what it would not take as a name would only be found out by the relay, with the lane behind it.
    if topic !~ '^[a-zA-Z0-9._-]{1,249}$' or topic in ('.', '..') then
        raise exception '% is not a topic''s name: up to 249 letters, digits, dots, underscores and hyphens',
            quote_literal(left(topic, 300)) using errcode = 'check_violation';
    end if;
    if id is not null and (id < '00010000-0000-0000-0000-000000000000' or id::text !~ '^.{14}7.{4}[89ab]') then
        raise exception 'id % is not a UUIDv7', quote_literal(id)
            using errcode = 'TM003', hint = 'leave the id out; for a number of your own there is dedup_key';
    end if;
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
