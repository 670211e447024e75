"""The outbox: add a message to the caller's own transaction, and say what became of it.

A message added here commits or rolls back with the business data beside it (P1). Pure: rows are built here,
store/ writes them.
"""
