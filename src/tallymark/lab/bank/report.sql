-- The report follows the same transfers on Spark, a whole batch in one statement:
--
--     tallymark init --database report --role consumer
--     tallymark pipeline ingest --consumer report --topic transfers --apply-sql report.sql --database report
with made as (
    select partition, "offset", convert_from(value, 'utf8')::jsonb as made from {batch}
), booked as (
    insert into entry (transfer, payer, payee, cents)
    select (made->>'transfer')::bigint, made->>'payer', made->>'payee', (made->>'cents')::bigint
      from made
     order by partition, "offset"
    returning payer, payee, cents
), moved as (
    select payer as name, -cents as cents from booked
     union all
    select payee, cents from booked
)
update account a
   set cents = a.cents + s.cents
  from (select name, sum(cents) as cents from moved group by name) s
 where a.name = s.name
