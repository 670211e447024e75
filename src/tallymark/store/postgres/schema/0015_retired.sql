-- role: consumer
-- A consumer that was stopped for good: nobody waits for it any more. Starting it takes it back.
alter table {schema}.consumers add column retired_at timestamptz;
