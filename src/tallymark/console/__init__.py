"""Query API, metrics, pages."""
