"""Query API, metrics, pages.
"""
