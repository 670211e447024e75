"""What a running Tallymark shows of itself: logs, metrics, health. Secrets are masked on the way out."""
