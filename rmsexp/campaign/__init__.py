"""Campaigns: a question, all runs that answer it, and verdicts by rules that are written down before the runs. The
paper's tables and figures (items) are campaigns without tuning and claims, which are drawn.
"""
