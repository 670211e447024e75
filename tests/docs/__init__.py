"""What the documentation says is tried: its commands, its Python, and its first hour."""
