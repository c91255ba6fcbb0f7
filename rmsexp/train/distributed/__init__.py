"""One run on several processes, which torchrun has started: all that such a run adds to one in a single process.

Process r of W takes the micro-batches r, r + W, …. What the processes compute is added up in an order that does not
depend on W, so the results equal those of one process with as many micro-batches, to the bit. Process 0 alone has the
run's folder, and sends the others what it loaded.

``group`` has all communication, ``sums`` adds up gradients.
"""
