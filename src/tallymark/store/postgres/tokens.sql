-- name: create
insert into {schema}.api_tokens (name, hash, role, created_by, expires_at)
values (%(name)s, %(hash)s, %(role)s, %(who)s, clock_timestamp() + make_interval(secs => %(seconds)s))
returning number, name, role, created_at, created_by, expires_at, revoked_at

-- name: all
select number, name, role, created_at, created_by, expires_at, revoked_at
  from {schema}.api_tokens order by number

-- name: revoke
-- By its number or its name.
update {schema}.api_tokens set revoked_at = clock_timestamp()
 where revoked_at is null and (number::text = %(which)s or name = %(which)s)
returning number, name, role, created_at, created_by, expires_at, revoked_at

-- name: bearer
-- Whose token this is, and why it does not count where it does not. By the database's clock.
select name, role, revoked_at is not null, coalesce(expires_at <= clock_timestamp(), false)
  from {schema}.api_tokens where hash = %(hash)s

-- name: audit
insert into {schema}.audit (who, action, subject, reason, details)
values (%(who)s, %(action)s, %(subject)s, %(reason)s, %(details)s::json)
