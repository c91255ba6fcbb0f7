"""Campaigns: a question, all runs that answer it, and verdicts by rules that are written down before the runs.

content       the keys of a campaign's file
question      a campaign as its file asks for it, and the overrides of each of its runs
registration  the rules and the commit, written down before the first final run
plan          which runs the rules ask for, given the records so far; the file campaign.json
cost          how long the runs that are left take
timing        the interleaved timing of the norms' training steps, after the runs
worker        doing the runs, beside other workers
workers       several workers on this machine
summary       what is printed: plan, pilot, verdicts
"""
