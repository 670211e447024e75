-- role: consumer
-- What is sent again is as old as its original, and who passes older ones over.

-- Topics whose handlers go by versions, as the consumer's last process declared them. That there are versions in a table
-- says less: a consumer may have changed its scheme since. Null: none has said so yet.
alter table {schema}.consumers add column versioned text[];

-- Where a message stands in the order of its producer's outbox: of what was sent again, the original's position. By its
-- text, for a foreign producer's headers may hold what `->>` refuses.
create function {schema}.stands_at(place bigint, headers json) returns bigint
    language sql immutable parallel safe as $$
    select case when place is not null then
                least(place, substring(headers::text from '"tm_origin" *: *"([0-9]{1,18})"')::bigint) end
$$;
