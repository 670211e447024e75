"""The embedded cluster: real Kafka brokers and a real PostgreSQL in one folder.

For development, tests, lab, bench and the demo. `cluster.LocalCluster` is the door.
"""
