"""Campaigns: a question, all runs that answer it, and verdicts by rules that are written down before the runs. The
paper's tables and figures (items) are campaigns without tuning and claims, which are drawn.

asked                 what campaigns and items have in common: runs, timings, folders
campaign_file         a campaign's file; campaign.json, which lists the runs, and registered.json
question              a campaign's runs, plan and registration
item_file, items      an item's file; the runs of items
results, remarks      what the records of the runs say: scores, rates, verdicts; what a reader of verdicts must know
check                 whether the verdicts of a campaign that somebody sends follow from its records
progress              how far campaigns are and how long the runs that are left take; the overview of a folder
"""
