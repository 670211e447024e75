-- Least privilege, run by `tallymark init --grants` as the schema's owner (--dry-run prints it).
--
-- Four group roles that cannot log in. Grant them to the roles that services use: grant tallymark_producer to bank;
--
-- tallymark_producer   adds messages, and asks for the state of one. It can add only by paths that take a floor: the
--                      statement trigger fires for every INSERT and COPY into the outbox, this role cannot switch it
--                      off, and it has no rights on single partitions, nor to choose a position.
-- tallymark_relay      runs `tallymark relay run`. Making and dropping partitions (retention) takes the owner's rights:
--                      without them the relay says so in its log and goes on; let the owner run one relay.
-- tallymark_consumer   receives and applies messages (the inbox's tables, where the schema has them).
-- tallymark_reader     looks: status, tally, trace. It reads payloads too, so give it to people who may.
do $$
declare
    role text;
begin
    foreach role in array array['tallymark_producer', 'tallymark_relay', 'tallymark_consumer', 'tallymark_reader'] loop
        if not exists (select from pg_roles where rolname = role) then
            execute format('create role %I nologin', role);
        end if;
        execute format('grant usage on schema {schema} to %I', role);
    end loop;
end $$;

revoke all on all tables in schema {schema} from public;
revoke all on all functions in schema {schema} from public;
grant select on {schema}.migrations to tallymark_producer, tallymark_relay, tallymark_consumer, tallymark_reader;

do $$
begin
    if to_regclass('{schema}.outbox') is null then
        return;
    end if;
    -- Adding: no right to choose a position, to change or delete a row, or to reach past the parent table.
    grant insert (id, topic, key, value, headers, partition) on {schema}.outbox to tallymark_producer;
    grant insert on {schema}.delayed, {schema}.dedup_keys to tallymark_producer;
    grant select on {schema}.topics, {schema}.dedup_keys to tallymark_producer;
    grant usage, select on sequence {schema}.outbox_position to tallymark_producer;
    grant execute on function {schema}.outbox_add, {schema}.new_id to tallymark_producer;
    -- Asking for a message's state.
    grant select (position, id, slot, topic, key, created_at) on {schema}.outbox to tallymark_producer;
    grant select (position, id, slot, topic, key, created_at, state, reason, retry_batch) on {schema}.parked
        to tallymark_producer;
    grant select on {schema}.batches, {schema}.outbox_identity, {schema}.delayed to tallymark_producer;

    grant select on {schema}.outbox, {schema}.outbox_identity, {schema}.outbox_position to tallymark_relay;
    grant update (receipts_topic_id) on {schema}.outbox_identity to tallymark_relay;
    grant select, insert, update on {schema}.batches, {schema}.parked, {schema}.lanes, {schema}.topics
        to tallymark_relay;
    grant select, insert, update, delete on {schema}.topic_holds, {schema}.relays, {schema}.delayed to tallymark_relay;
    grant insert (id, topic, key, value, headers, partition) on {schema}.outbox to tallymark_relay;
    grant usage on sequence {schema}.outbox_position to tallymark_relay;

    grant select on {schema}.outbox, {schema}.outbox_identity, {schema}.outbox_position, {schema}.delayed,
        {schema}.lanes, {schema}.relays, {schema}.batches, {schema}.parked, {schema}.topic_holds, {schema}.topics,
        {schema}.audit to tallymark_reader;
end $$;
