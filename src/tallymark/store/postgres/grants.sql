-- Least privilege, run by `tallymark init --grants` as the schema's owner (--dry-run prints it).
--
-- Five group roles that cannot log in. Grant them to the roles that services use: grant tallymark_producer to bank;
--
-- tallymark_producer   adds messages, and asks for the state of one. It can add only by paths that take a floor: the
--                      statement trigger fires for every INSERT and COPY into the outbox, this role cannot switch it
--                      off, and it has no rights on single partitions, nor to choose a position.
-- tallymark_relay      runs `tallymark relay run`. Making and dropping partitions (retention) takes the owner's rights:
--                      without them the relay says so in its log and goes on; let the owner run one relay.
-- tallymark_consumer   runs `tallymark inbox run`, `tallymark pipeline ingest` and the operators' verbs at it. It adds to what was kept and to what was
--                      applied, and can change or delete neither. Partitions are made for it by a function; dropping
--                      them (retention) takes the owner's rights: let the owner run one.
-- tallymark_reader     looks: status, tally, trace. It reads payloads too, so give it to people who may.
-- tallymark_console    runs `tallymark serve`: looks, checks tokens, and does what operators do. It can revoke
--                      tokens and make none, and can neither change what was kept nor rewrite the audit.
do $$
declare
    role text;
begin
    foreach role in array array['tallymark_producer', 'tallymark_relay', 'tallymark_consumer', 'tallymark_reader',
                               'tallymark_console'] loop
        if not exists (select from pg_roles where rolname = role) then
            execute format('create role %I nologin', role);
        end if;
        execute format('grant usage on schema {schema} to %I', role);
    end loop;
end $$;

revoke all on all tables in schema {schema} from public;
revoke all on all functions in schema {schema} from public;
grant select on {schema}.migrations to tallymark_producer, tallymark_relay, tallymark_consumer, tallymark_reader,
    tallymark_console;

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

do $$
begin
    if to_regclass('{schema}.inbox') is null then
        return;
    end if;
    -- Kept messages, saved ids and effects: added and read, never changed.
    grant select, insert on {schema}.inbox, {schema}.applications to tallymark_consumer;
    grant usage on sequence {schema}.applications_seq, {schema}.queue_seq to tallymark_consumer;
    grant select, insert, update, delete on {schema}.queue, {schema}.instances to tallymark_consumer;
    grant select, insert, update on {schema}.positions, {schema}.consumers, {schema}.dead_letters, {schema}.versions
        to tallymark_consumer;
    grant select on {schema}.inbox_identity, {schema}.named_pruned to tallymark_consumer;
    grant select, insert, update on {schema}.named_again to tallymark_consumer;
    grant execute on function {schema}.make_inbox_partitions, {schema}.inbox_upto, {schema}.id_floor, {schema}.id_time,
        {schema}.stands_at to tallymark_consumer;
    -- The pipeline, which fills the same tables.
    grant select, insert, update, delete on {schema}.runs to tallymark_consumer;
    grant select, insert, delete on {schema}.ingested to tallymark_consumer;
    grant execute on function {schema}.make_staging, {schema}.drop_staging to tallymark_consumer;
    -- What operators do leaves its trace.
    grant select, insert on {schema}.audit to tallymark_consumer;

    grant select on {schema}.inbox, {schema}.applications, {schema}.queue, {schema}.instances, {schema}.positions,
        {schema}.consumers, {schema}.dead_letters, {schema}.versions, {schema}.inbox_identity, {schema}.audit,
        {schema}.runs, {schema}.ingested, {schema}.named_pruned, {schema}.named_again
        to tallymark_reader;
    grant execute on function {schema}.id_floor, {schema}.id_time, {schema}.stands_at to tallymark_reader;
end $$;

do $$
begin
    if to_regclass('{schema}.findings') is null then
        return;
    end if;
    -- What was found and certified can be looked at. Keeping it, and sending messages again, takes the owner's rights:
    -- whoever only reads runs `tally run --no-keep`.
    grant select on {schema}.findings, {schema}.tallies, {schema}.certificates, {schema}.resends to tallymark_reader;
end $$;

do $$
begin
    if to_regclass('{schema}.api_tokens') is null then
        return;
    end if;
    grant tallymark_reader to tallymark_console;
    grant select, update (revoked_at) on {schema}.api_tokens to tallymark_console;
    grant select, insert, update, delete on {schema}.api_actions to tallymark_console;
    grant select, insert on {schema}.audit to tallymark_console;
    if to_regclass('{schema}.outbox') is not null then
        grant update (paused, asked, changed_at) on {schema}.lanes to tallymark_console;
        grant update (state, changed_at) on {schema}.parked to tallymark_console;
        -- Sending again, by paths that take a floor, as for every other writer.
        grant insert (id, topic, key, value, headers, partition) on {schema}.outbox to tallymark_console;
        grant usage on sequence {schema}.outbox_position to tallymark_console;
        grant insert on {schema}.resends to tallymark_console;
    end if;
    if to_regclass('{schema}.inbox') is not null then
        grant update (paused, retired_at) on {schema}.consumers to tallymark_console;
        grant update (retired_at) on {schema}.positions to tallymark_console;
        grant insert on {schema}.inbox to tallymark_console;
        grant select, insert, update, delete on {schema}.queue to tallymark_console;
        grant select, insert, update on {schema}.dead_letters to tallymark_console;
        grant usage on sequence {schema}.queue_seq to tallymark_console;
    end if;
end $$;
