"""Tests, one folder for each part; see CONTRIBUTING.md."""
