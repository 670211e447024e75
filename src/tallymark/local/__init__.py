"""The embedded cluster: real Kafka brokers and a real PostgreSQL in one folder, for development, tests and the demo.
"""
