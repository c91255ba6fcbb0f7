"""Make a process one of a run's processes, as torchrun does."""

from __future__ import annotations

import os


def become(rank: int, size: int, port: int) -> None:
    """Set the environment that torchrun would. ``port``: that of a store on this machine (torch.distributed.TCPStore).

    A process that is the only one needs nothing.
    """
    if size == 1:
        return
    ranks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_USE_AGENT_STORE": True}
    attempt = {"TORCHELASTIC_RUN_ID": "local", "TORCHELASTIC_RESTART_COUNT": 0}
    os.environ.update({key: str(value) for key, value in (ranks | address | attempt).items()})
