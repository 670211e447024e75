"""A bank and those who follow it: the services of `tallymark demo`, as one would write them.

    orders.py         what customers ask for, the same again for the same seed
    books.py          the business tables
    bank.py           takes orders: transfers and their messages in one transaction
    ledger.py         follows by an inbox with a handler
    report.sql        follows by Spark, a whole batch in one statement
    naive_bank.py     the same bank as many write it: commits, then sends
    naive_ledger.py   the same ledger as many write it: a consumer that commits by itself

The first five use the public API alone; the last two use none of it. The demo runs these very files, and `examples/bank`
is this folder.
"""
