"""Campaigns: a question, all runs that answer it, and verdicts by rules that are written down before the runs.

question    the file configs/campaign/<name>.yaml: its keys, checks, and the overrides of each run
plan        which runs the rules ask for, given the records so far; the file campaign.json
cost        how long the runs that are left take
worker      doing the runs, beside other workers
"""
