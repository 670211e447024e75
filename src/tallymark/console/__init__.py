"""The query interface: where any message is, the numbers, and what operators do, over HTTP. `tallymark serve`."""
