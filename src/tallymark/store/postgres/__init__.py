"""PostgreSQL: schema, migrations, and the adapters behind the stations' ports."""
