"""Random orders of contestants that are balanced, so that no contestant gains by its place or by what ran before it."""

from __future__ import annotations

from rmsexp.train.randomness import permutation


def balanced(n: int, place: int, seed: int, *name: str | int) -> list[int]:
    """Return the order of ``n`` contestants at a place, from 0 on, in the sequence of this seed and name.

    The orders at each ``n`` successive places from a multiple of ``n`` on are the rows of a Latin square: every
    contestant is once at every position. It also comes once directly after every other contestant; if ``n`` is odd, it
    does so twice in two successive squares. Rows and contestants are shuffled.

    Source: E. J. Williams, Experimental designs balanced for the estimation of residual effects of treatments (1949).
    """
    square, row = divmod(place, n)
    is_odd = n % 2
    labels = permutation(n, seed, *name, "labels", square // 2 if is_odd else square).tolist()
    shift = int(permutation(n, seed, *name, "rows", square)[row])
    zigzag = [(i + 1) // 2 if i % 2 else -(i // 2) for i in range(n)]  # 0, 1, -1, 2, -2, …
    order = [labels[(position + shift) % n] for position in zigzag]
    return order[::-1] if is_odd and square % 2 else order
