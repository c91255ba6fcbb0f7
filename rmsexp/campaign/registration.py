"""The registration of a campaign: its rules and the commit of its code, written down before its first tuning run.

So the registration can be made public hours before the first final run. Tuning and final runs come from one commit;
only runs that another campaign has done before may be of an earlier one. Rules that change afterwards are named in the
verdicts.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from pathlib import Path

from rmsexp import config
from rmsexp.campaign import campaign_file
from rmsexp.campaign.campaign_file import NO_GIT, Registered
from rmsexp.campaign.question import Question
from rmsexp.system import atomic, clock
from rmsexp.system.command_line import LONGEST_WITH_PATHS, ReportedError, config_dir_words, value_word
from rmsexp.train import provenance

NOT_OF_RUNS = ("campaign", "item", "sweep")  # groups of configs that say which runs are made, not what a run does


class OtherCommitError(ReportedError):
    """The campaign was registered at another commit than this one. The message has a command with paths."""

    longest = LONGEST_WITH_PATHS


def code() -> dict[str, str]:
    """Return the commit of this code and a digest of its files. The commit ends with "+" if there may be changes.

    The files are those of the package and the configs of runs, such as recipes.
    """
    git, digest = provenance.git(), hashlib.sha256(provenance.code().encode())
    for path in sorted(config.CONFIGS.rglob("*.yaml")):
        place = path.relative_to(config.CONFIGS)
        if place.parts[0] not in NOT_OF_RUNS:
            digest.update(place.as_posix().encode() + b"\0" + path.read_bytes())
    files = digest.hexdigest()[:16]
    commit = f"{git['commit']}{'' if git['dirty'] is False else '+'}" if git["commit"] else f"{NO_GIT}{files}"
    return {"commit": commit, "code": files}


def read(question: Question) -> Registered | None:
    """Return how the campaign was registered, and what has changed since; None before the first run after the pilot.

    Raises: ValueError if the file is damaged.
    """
    stored = campaign_file.registration(question.folder)
    if stored is None:
        return None
    changed = campaign_file.changed_keys(stored.rules, json.loads(json.dumps(question.rules())))
    return Registered(stored.digest, stored.commit, stored.date, ", ".join(changed) or None)


def register(question: Question, own: dict[str, str]) -> None:
    """Register the campaign unless that was done. Only one worker at a time may call this.

    ``own``: the result of :func:`code`.

    Raises: OtherCommitError if the campaign was registered with other code; ValueError if the file is damaged.
    """
    stored = campaign_file.registration(question.folder)
    if stored is None:
        rules = question.rules()
        content = {"digest": campaign_file.digest(rules), "date": clock.now(), "rules": rules}
        atomic.write_json(question.folder / campaign_file.REGISTRATION, content | own)
        return
    commit, now = (name.removesuffix("+") for name in (stored.commit, own["commit"]))
    of_commits = not any(name.startswith(NO_GIT) for name in (commit, now))
    if commit != now or stored.code not in (None, own["code"]):
        # relative paths would be others there
        folder = None if question.config_dir is None else str(Path(question.config_dir).absolute())
        words = [value_word("results", question.results.absolute()), *config_dir_words(folder)]
        there = (
            f"git worktree add ../rmsexp-{commit[:7]} {commit}, and repeat the command there with {shlex.join(words)}"
        )
        raise OtherCommitError(
            f"{question.name} was registered at commit {stored.commit} with other code than this, which is of "
            f"{own['commit']}; all of its runs must come from the same code: "
            + (there if of_commits and commit != now else "restore it, or begin anew in another results folder")
        )
