"""The tally: outbox = log = inbox, message by message. Pure: what each station recorded goes in, verdicts come out."""
