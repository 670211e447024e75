"""PySpark jobs: ingest, archive, reconcile, replay, resend. The only room that imports pyspark."""
