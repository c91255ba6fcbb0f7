"""The rules of comparisons.

They say how a run is scored, how rates and numbers of seeds are chosen, how claims are decided, and what the ratio of
two times and its interval are.
"""
