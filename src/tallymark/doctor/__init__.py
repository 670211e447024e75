"""Rules over a snapshot of brokers, topics, clients and jobs."""
