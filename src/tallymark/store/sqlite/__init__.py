"""SQLite: the durable local queue of a producer with no PostgreSQL. One process, one lane, one file."""
