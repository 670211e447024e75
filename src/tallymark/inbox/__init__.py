"""The inbox: receive and keep; positions live in the consumer's database."""
