-- name: once
-- Takes the key for this action, or waits for whoever has just taken it and finds it taken.
insert into {schema}.api_actions (who, key, request) values (%(who)s, %(key)s, %(request)s)
on conflict (who, key) do nothing
returning key

-- name: earlier
select request, changed from {schema}.api_actions where who = %(who)s and key = %(key)s

-- name: done
update {schema}.api_actions set changed = changed || %(changed)s::text[] where who = %(who)s and key = %(key)s

-- name: forget
-- Keys of more than a week ago, a few at a time.
delete from {schema}.api_actions
 where (who, key) in (select who, key from {schema}.api_actions
                       where at < clock_timestamp() - interval '7 days' order by at limit 100)
