-- role: producer
-- When somebody accepted that a topic was deleted and made anew: what was sent before was sent to another log.
alter table {schema}.topics add column remade_at timestamptz;
