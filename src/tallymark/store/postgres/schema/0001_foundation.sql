-- role: both
-- What every database has: the record of migrations, and the audit of what people did.

create schema if not exists {schema};

create table {schema}.migrations (
    version    integer primary key,
    name       text not null,
    role       text not null check (role in ('producer', 'consumer', 'both')),
    applied_at timestamptz not null default clock_timestamp(),
    applied_by text not null default current_user
);

-- Who did what, and why. Append-only: no code updates or deletes here.
create table {schema}.audit (
    at      timestamptz not null default clock_timestamp(),
    seq     bigint generated always as identity,
    who     text not null,
    action  text not null,
    subject text not null,
    reason  text not null default '',
    details json not null default '{}',
    primary key (at, seq)
) partition by range (at);

-- One partition to start with; retention adds and drops others.
create table {schema}.audit_default partition of {schema}.audit default;
