"""Kafka: client profiles, topics and their safety, publishing in transactions, receipts.

The only room that imports confluent_kafka.
"""
