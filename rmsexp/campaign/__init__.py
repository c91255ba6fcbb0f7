"""Campaigns: a question, all runs that answer it, and verdicts by rules that are written down before the runs. The
paper's tables and figures (items) are campaigns without tuning and claims, which are drawn.

content, question     the keys of a campaign's file; a campaign as its file asks for it
item_file, items      an item's file; items as a command asks for them
campaign_file, plan   campaign.json, which lists the runs; which runs the rules ask for, given the records so far
registration          the rules and the commit, written down before the first tuning run
results, remarks      what the records of the runs say: scores, rates, verdicts; what a reader of verdicts must know
runs                  the runs of a campaign, as workers do them
progress              how far campaigns are and how long the runs that are left take; the overview of a folder
timing                the interleaved timing of the norms' training steps, after the runs
"""
