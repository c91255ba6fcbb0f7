"""A campaign as its file asks for it: the overrides of its runs, which runs its rules ask for, and its registration.

The plan is a function of the file and of the records of its runs, so all workers agree on it, and deleting
``campaign.json`` loses nothing. Only the registration is a fact of its own: the rules and the commit of the code. It is
written down before the first tuning run, so that it can be made public hours before the first final run. Tuning and
final runs come from one commit; only runs that another campaign has done before may be of an earlier one.

Workers on several machines that share the results need a file system whose flock excludes processes on other machines,
as NFS on Linux does. No clocks are compared. A machine that still sees an older state of a record, as NFS allows for
some seconds, at worst tries to begin a run that has ended; the run's lock and its record, read again under the lock,
prevent that it is done twice.
"""

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from rmsexp import config
from rmsexp.campaign import campaign_file
from rmsexp.campaign.asked import WHERE_AND_HOW, Request, Timing, folder_name, overrides, timing
from rmsexp.campaign.campaign_file import NO_GIT, Content, Job, Metric, Registration, Stage
from rmsexp.campaign.progress import Plan, Planned
from rmsexp.campaign.results import Campaign
from rmsexp.config import classes, score
from rmsexp.records import record
from rmsexp.records.frames import names
from rmsexp.rules import measures, seeds, selection
from rmsexp.rules.claims import Claim
from rmsexp.system import atomic, checks, clock
from rmsexp.system.command_line import ReportedError, report, value_word
from rmsexp.system.files import read_regular
from rmsexp.system.lock import locked
from rmsexp.system.readers import read_yaml
from rmsexp.train import provenance

GROUP = "campaign"
SPREAD = "spread.yaml"  # in configs: standard deviations over seeds, by "<task> <scale> <score>"
PATIENCE = 5.0  # seconds after which a line says that this process waits for the campaign's folder
NOT_OF_RUNS = ("campaign", "item", "sweep")  # groups of configs that say which runs are made, not what a run does


@dataclass(frozen=True)
class Question(Request):
    """A checked campaign."""

    content: Content
    claims: tuple[Claim, ...]

    # by norms=[…], seeds of the stages, and schedule.steps
    MANAGED = ("norm", "seed", "seeds", "evaluation", "max_steps", "eval_every", "force")

    @cached_property
    def folder(self) -> Path:
        """The folder of the campaign. Words about the timing are not in its name, because timing decides nothing."""
        words = [word for word in self.typed if not word.startswith((*WHERE_AND_HOW, "timing."))]
        return self.results / "campaigns" / folder_name(self.name, words)

    @property
    def title(self) -> str:
        return f"{self.folder.name}: {self.content.question}"

    @property
    def rate(self) -> str:
        """The tuned key."""
        return next(iter(self.content.tune.over), "optim.lr")

    @property
    def tuning_words(self) -> tuple[str, ...]:
        """The overrides that tuning runs alone have."""
        return overrides(self.content.tune.runs)

    @cached_property
    def recipe(self) -> config.Job:
        """A run of the first norm, at the recipe's rate."""
        return self.job("final", campaign_file.on_ladder(self.content.norms[0], self.content.ladder)[0], None, 0)

    @cached_property
    def target(self) -> Any:
        """The target of the task. Raises: ConfigError if it is known only once the task has its data."""
        return classes.target_of_class(self.recipe.config)

    @cached_property
    def campaign(self) -> Campaign:
        """The campaign without any runs, and not registered. Raises: ConfigError for metrics that runs do not have."""
        content, final, target = self.content, self.content.final, self.target
        splits = dict.fromkeys(("valid", target.split, *self.recipe.config.test_splits))
        judged = self._metric("final.score", final.score or f"{target.split} {target.metric}", splits)
        grid = content.tune.over.get(self.rate)
        if grid is None:  # without the first norm's configs/task_norm, since the order of norms must not matter
            middle = replace(self, words=("task_norm=[]", *self.words)).recipe.config.optim.lr
            grid = [middle / 2, middle, 2 * middle]
        return Campaign(
            path=self.folder / campaign_file.FILE,
            rules=content.rules,
            supersedes=content.supersedes,
            name=self.folder.name,
            question=content.question,
            command=self.command(places=False),
            runs=dict(word.split("=", 1) for word in self.words if not word.startswith(WHERE_AND_HOW)),
            tuning_runs=dict(word.split("=", 1) for word in self.tuning_words),
            rate=self.rate,
            mode="max" if judged.metric == target.metric and target.mode == "max" else "min",
            tuned_by=self._metric("tune.by", content.tune.by or f"valid {judged.metric}", ["valid"]),
            score=judged,
            norms=tuple(content.norms),
            ladder={key: tuple(values) for key, values in content.ladder.items()},
            tolerance=final.tolerance,
            grid=tuple(grid),
            seeds=campaign_file.Seeds(campaign_file.TUNING_SEEDS, final.min_seeds, final.max_seeds, None),
            claims=self.claims,
            jobs=(),
            registered=None,
        )

    def _metric(self, key: str, words: str, splits: Sequence[str] | Mapping[str, None]) -> Metric:
        """Return a metric. Raises: ConfigError unless it is the task's or the loss, on one of the splits."""
        split, _, name = words.partition(" ")
        if name not in (self.target.metric, "loss"):
            expected = f"{self.target.split} {self.target.metric}"
            raise config.ConfigError(f"{key}={words}: write a split and the task's metric or loss, as in '{expected}'")
        if split not in splits:
            raise config.ConfigError(f"{key}={words}: the split must be one of {', '.join(splits)}")
        return Metric(split, name)

    # --- runs

    def words_of(self, run: Planned) -> list[str]:
        """Return the overrides of a run: stage, norm, rate (None: recipe's), seed. Only final runs see test data."""
        stage, norm, rate, seed = run[:4]
        evaluation = score.PLANS[0] if stage == "final" else score.PLANS[1]
        own = self.tuning_words if stage == "tune" else ()
        words = [*self.words, *own, f"evaluation={evaluation}", *config.norm_words(norm), f"seed={seed}"]
        return words if rate is None else [*words, f"{self.rate}={campaign_file.plain(rate)}"]

    def job(self, stage: Stage, norm: str, rate: float | None, seed: int) -> config.Job:
        return self.composed(self.words_of((stage, norm, rate, seed)))

    def relative_folder(self, stage: Stage, norm: str, rate: float, seed: int) -> str:
        """Return the folder of a run below the results."""
        series = self.job(stage, norm, rate, 0).folder.parent  # composed once for all seeds
        return f"{series.relative_to(self.results)}/seed{seed}"

    def timings(self) -> list[Timing]:
        asked = self.content.timing
        norms = self.content.norms if asked.norms == ["all"] else asked.norms
        jobs = [self.job("final", norm, None, campaign_file.TIMING_SEED) for norm in norms]
        config.check_one_setting("timing.norms", jobs)
        return [timing(jobs, asked)] if jobs else []

    def begin(self, run: Planned) -> config.Job:
        """Register the campaign, if that was not done, and return the job of a run. Raises: as :meth:`register`."""
        self.register()
        return self.composed(self.words_of(run))

    # --- plan

    def plan(self) -> Plan:
        """Update the campaign's file (:meth:`update`) and return the runs that the records so far ask for."""
        campaign = self.update()
        states = {job: campaign.results[job].status for job in campaign.jobs}
        lines = [*campaign.problems, *campaign.remarks, *self._noise_floor(campaign), f"plan    {campaign.path}"]
        return Plan(campaign.stages, states, campaign.coming(), campaign.longer, lines)

    def _noise_floor(self, campaign: Campaign) -> list[str]:
        """Return a line with the smallest difference of scores that the seeds can tell from 0; [] if not known."""
        recipe = self.recipe.config
        sd = read_yaml(config.CONFIGS / SPREAD).get(f"{recipe.task} {recipe.scale} {' '.join(campaign.score)}", 0.0)
        if not sd or campaign.measure != measures.SCORE:
            return []
        counts = sorted({campaign.seeds.min_seeds, campaign.seeds.max_seeds})
        seen = " or ".join(f"{seeds.smallest(sd, count):.2g} with {count} seeds" for count in counts)
        unit = names.unit_of_difference(campaign.score.metric)
        return [f"sees    differences of at least {seen} ({unit}), if they spread as RMSNorm - LayerNorm in our runs"]

    def locked(self) -> AbstractContextManager[None]:
        """Return a context in which no other process writes the campaign's files. A long wait for the lock is reported.

        Raises: OSError if the folder cannot be written, or the file system has no locks.
        """
        waiting = f"waiting for another process that writes {self.folder}"
        return locked(self.folder / ".lock", lambda: report(waiting), PATIENCE)

    def update(self) -> Campaign:
        """Write the campaign's file for the records so far, and return the campaign with the results of its runs.

        The records are read under the lock of the campaign, so an older plan never replaces a newer one.

        Raises: OSError if the file cannot be written; ValueError if the registration is damaged.
        """
        with self.locked():
            campaign = self._planned()
            text = campaign_file.text(campaign)
            if not campaign.path.exists() or read_regular(campaign.path) != text.encode():
                atomic.write_atomic(campaign.path, text)
        return campaign

    def _planned(self) -> Campaign:
        """Return the campaign with the runs that the rules ask for, and their results."""
        campaign = replace(self.campaign, registered=self.registered())
        while True:
            needed = campaign.needed_seeds()
            jobs = tuple(dict.fromkeys([*campaign.jobs, *self._next_jobs(campaign, needed)]))
            if (jobs, needed) == (campaign.jobs, campaign.seeds.needed):
                return campaign
            campaign = replace(campaign, jobs=jobs, seeds=replace(campaign.seeds, needed=needed)).with_results()

    def _next_jobs(self, campaign: Campaign, needed: int | None) -> Iterator[Job]:
        """Yield pilot runs and the tuning runs to be made now; once all tuning runs have ended, every final run."""

        def job(stage: Stage, norm: str, rate: float, seed: int) -> Job:
            return Job(stage, norm, rate, seed, self.relative_folder(stage, norm, rate, seed))

        if rate := self.content.pilot.get("rate"):
            yield from (job("pilot", arm, rate, 2000) for arm in campaign.every_arm)
        yield from (job("tune", *run) for run in campaign.tuning.runs)
        if campaign.tuning.runs or any(job.stage == "tune" for job in campaign.left):
            return
        yield from (job("final", *run) for run in campaign.final_runs(needed or campaign.seeds.min_seeds))

    # --- registration

    def rules(self) -> dict[str, Any]:
        """Return all that decides which runs are made and how they are judged, as plain values.

        Timing is not among them: it decides nothing, and may change after the first final run.
        """
        words = sorted(word for word in self.words if not word.startswith(WHERE_AND_HOW))
        stated = asdict(self.content) | {"runs": words, "claims": [asdict(claim) for claim in self.claims]}
        del stated["timing"]
        stated["tune"]["first_seed"] = campaign_file.TUNING_SEEDS[0]
        stated["pilot"] = {"rate": None, "seed": 2000} | self.content.pilot
        if self.content.rules == campaign_file.OCTAVE_RULES:  # as they were registered
            numbers = {old: stated["final"].pop(key) for key, old in campaign_file.OCTAVE_KEYS.items()}
            stated |= {"rules": None, "final": stated["final"] | {"seeds": numbers}}
        shared = {key: list(getattr(self.campaign, key)) for key in ("grid", "tuned_by", "score")}
        return json.loads(json.dumps(stated | shared))

    def registered(self) -> Registration | None:
        """Return how the campaign was registered, and what has changed since; None if it was not.

        Raises: ValueError if the file is damaged.
        """
        stored = campaign_file.registration(self.folder)
        if stored is None:
            return None
        changed = campaign_file.changed_keys(stored.rules or {}, self.rules())
        return Registration(stored.digest, stored.commit, stored.date, ", ".join(changed) or None)

    def register(self) -> Path:
        """Register the campaign, unless that was done, and return the file.

        Raises: ReportedError if it was registered with other code; ValueError if the file is damaged.
        """
        path, now = self.folder / campaign_file.REGISTRATION, code()
        with self.locked():
            stored = campaign_file.registration(self.folder)
            if stored is None:
                rules = self.rules()
                stated = {"digest": record.digest_of_values(rules), "date": clock.now(), "rules": rules}
                atomic.write_json(path, stated | now)
                return path
        commit, own = (str(name).removesuffix("+") for name in (stored.commit, now["commit"]))
        if commit == own and stored.code in (None, now["code"]):
            return path
        there = "restore that code, or begin anew in another results folder"
        if commit != own and not any(name.startswith(NO_GIT) for name in (commit, own)):
            there = f"git worktree add ../rmsexp-{commit[:7]} {commit}, and repeat the command there with "
            there += shlex.quote(value_word("results", self.results.absolute()))
        raise ReportedError(
            f"{self.folder.name} was registered at commit {stored.commit}, and this code is of {now['commit']}; all of "
            f"its runs must come from the registered commit without changes: {there}"
        )


def code() -> dict[str, str]:
    """Return ``commit`` of this code, which ends with "+" if there may be changes, and ``code``, a digest of files.

    The files are those of the package and the configs of runs, such as recipes.
    """
    places = (path.relative_to(config.CONFIGS) for path in config.CONFIGS.rglob("*.yaml"))
    own = {each.as_posix(): (config.CONFIGS / each).read_bytes() for each in places if each.parts[0] not in NOT_OF_RUNS}
    files = record.digest_of_sources(own | {"": provenance.code().encode()})
    return {"commit": campaign_file.commit_of(provenance.git(), files), "code": files}


def read(name: str, words: Sequence[str] = (), config_dir: str | None = None) -> Question:
    """Return the campaign ``name``, with the changes of ``words``: keys of the campaign, and overrides of all runs.

    Raises: ConfigError for an unknown name and for a mistake in the file or in the words.
    """
    path, typed = config.file(GROUP, name, config_dir), overrides(typed=words)
    try:
        stated, claims, of_runs = campaign_file.read_content(read_yaml(path), typed)
        shared = overrides({"threads": 1}, stated.runs, typed=of_runs)
        question = Question(name, typed, shared, config_dir, stated, claims)
        question.refuse_managed((*question.words, *question.tuning_words), [question.rate, *stated.ladder])
        _check(question)
        return question
    except (ValueError, TypeError, OSError) as error:  # ConfigError is a ValueError, too
        raise config.ConfigError(f"campaign {name}: {error}") from None


def _check(question: Question) -> None:
    """Raise ConfigError or ValueError unless runs can be composed and fit the rules."""
    campaign, grid = question.campaign, question.campaign.grid
    for value in (value for values in (grid, *campaign.ladder.values()) for value in values):
        checks.positive("a rate of the grid, or a value of the ladder,", value)
    if campaign.tolerance is None:
        selection.tune(grid, {}, campaign.mode, campaign.seeds.tune)  # checks the grid
    if campaign.tolerance is not None and (sorted({*grid}) != list(grid) or len(grid) < 3):
        raise config.ConfigError(f"tune.over.{question.rate}: a stable range needs at least three rates, ascending")
    if campaign.tolerance is None and campaign.tuned_by.metric != campaign.score.metric:
        raise config.ConfigError(
            f"tune.by is about {campaign.tuned_by.metric} and final.score about {campaign.score.metric}; rates are "
            "chosen by the metric of the claims"
        )
    if not question.content.final.score and question.target.split == "valid":
        metrics = f"final.score='valid {question.target.metric}' or 'test {question.target.metric}'"
        raise config.ConfigError(f"write {metrics}: this task reports validation data, which also choose the rates")
    folders = {question.relative_folder("final", norm, grid[0], 0): norm for norm in campaign.every_arm}
    if twice := [norm for norm in campaign.every_arm if norm not in folders.values()]:
        same = folders[question.relative_folder("final", twice[0], grid[0], 0)]
        raise config.ConfigError(f"norms: {twice[0]} and {same} have the same runs; leave one out")
    if campaign.is_tuned and campaign.rules != campaign_file.OCTAVE_RULES:
        rate, step = selection.scale(grid), selection.OCTAVE  # the rules may ask for more rates
        for value in map(rate, (-step * selection.EXTENSIONS, 1, step * (len(grid) - 1 + selection.EXTENSIONS))):
            try:
                question.relative_folder("final", campaign.every_arm[0], value, 0)
            except ValueError as error:
                raise config.ConfigError(
                    f"tune.over.{question.rate}: the rules may ask for {value:g}, and {error}"
                ) from None
    question.timings()
