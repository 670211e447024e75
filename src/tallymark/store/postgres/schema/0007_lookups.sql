-- role: consumer
-- Looking one message up, and telling whether effects were made in the order of the log.

-- Where one message waits or died: asked by its id alone, as `trace` and the query interface do.
create index queue_id on {schema}.queue (id);
create index dead_letters_id on {schema}.dead_letters (id);

-- Topics whose handlers take any order, as the consumer's last process declared them. Null: none has said so yet, and
-- nobody can tell a fault from what was meant.
alter table {schema}.consumers add column unordered text[];
