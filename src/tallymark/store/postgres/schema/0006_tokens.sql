-- role: both
-- Who may use the query interface, and which of its actions were done already.

-- Tokens, hashed. A token is 32 random bytes, so that one round of SHA-256 is enough: there is nothing to guess.
create table {schema}.api_tokens (
    number     integer generated always as identity primary key,
    name       text not null check (name <> ''),
    hash       bytea not null unique check (octet_length(hash) = 32),
    role       text not null check (role in ('viewer', 'operator', 'admin')),
    created_at timestamptz not null default clock_timestamp(),
    created_by text not null,
    -- Null: until it is revoked.
    expires_at timestamptz,
    revoked_at timestamptz,
    check (expires_at > created_at)
);
-- Two that are in use never share a name: the audit names who acted by it.
create unique index api_tokens_in_use on {schema}.api_tokens (name) where revoked_at is null;

-- Actions that came with an Idempotency-Key, written in the transaction of the action itself: one that is asked for
-- again is answered from here. Kept for a week.
create table {schema}.api_actions (
    who     text not null,
    key     text not null,
    request text not null,
    changed text[] not null default '{}',
    at      timestamptz not null default clock_timestamp(),
    primary key (who, key)
);
create index api_actions_at on {schema}.api_actions (at);

-- What was done to one message, for its trace.
create index audit_subject on {schema}.audit (subject);
