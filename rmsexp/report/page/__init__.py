"""The report of all settings and campaigns."""
