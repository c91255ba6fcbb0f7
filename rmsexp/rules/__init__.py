"""The rules of comparisons: how a run is scored, how rates and numbers of seeds are chosen, how claims are decided."""
