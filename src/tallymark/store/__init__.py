"""Where rows become objects: PostgreSQL (the default) and SQLite (a producer with no PostgreSQL).

The one place that holds SQL: named, commented queries in .sql files, read by queries.py.
"""
