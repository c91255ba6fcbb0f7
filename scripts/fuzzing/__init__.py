"""The parts of ``scripts/fuzz.py``: damage, inputs of each reader and command, and the processes that read them."""
