-- role: consumer
-- A topic that a consumer reads no more: nobody waits for it there. Taking the position again takes it back.
alter table {schema}.positions add column retired_at timestamptz;
