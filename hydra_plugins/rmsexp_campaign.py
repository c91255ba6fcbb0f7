"""Hydra's sweeper for campaigns: starts identical workers, once, through any of Hydra's launchers.

A worker takes one run after the other by itself (:mod:`rmsexp.work.worker`): the next that the records ask for and no
other worker has. So the launcher has nothing to distribute, and no worker waits for another one's run.
"""

from __future__ import annotations

from concurrent.futures.process import BrokenProcessPool

from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

RESTARTS = 3  # how often the workers are started again after the process of one was killed

ConfigStore.instance().store(
    group="hydra/sweeper",
    name="campaign",
    node={"_target_": f"{__name__}.CampaignSweeper", "workers": 1},
    provider="rmsexp",
)


class CampaignSweeper(Sweeper):
    """Starts workers, whose task function returns an exit status, and ends with the first that is not 0.

    ``workers``: the number of workers.
    """

    launcher: Launcher

    def __init__(self, workers: int) -> None:
        self.workers = workers

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> None:
        """Start the workers, again if joblib lost one, which ends all: runs continue from their last checkpoints.

        Raises: SystemExit with the first exit status of a worker that is not 0; what the launcher raises.
        """
        for left in reversed(range(RESTARTS + 1)):
            try:
                jobs = self.launcher.launch([arguments] * self.workers, initial_job_idx=0)
                break
            except BrokenProcessPool:
                if not left:
                    raise
                print("a worker was lost; the workers are started again", flush=True)
        if status := next((job.return_value for job in jobs if job.return_value), 0):
            raise SystemExit(status)
