"""The paper's tables and figures (its items) as data: which runs an item needs, and how it is laid out.

An item is a file ``configs/item/<name>.yaml`` with the keys of :class:`Item`.
"""

from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from rmsexp import config
from rmsexp.records.frames.comparable import Comparison
from rmsexp.records.frames.load import Records
from rmsexp.system.readers import read_yaml, typed_of

GROUP = "item"
TIME = "time"  # the quantity of columns with the time of training steps


@dataclass
class Group:
    """Rows of a table, or curves of a figure, that share the overrides of their runs, and so their setting.

    Attributes:
        norms: the norm, with options as in ``prms+p=0.5``, by the name of its row in the paper.
        label: what the paper writes in the first column of these rows, such as "Th"; empty: it has no such column.
        framework: of the paper's numbers, as in ``numbers.csv``.
        absent: why these rows have no runs; empty if they have.
    """

    norms: dict[str, str]
    runs: dict[str, Any] = field(default_factory=dict)
    label: str = ""
    framework: str = ""
    absent: str = ""


@dataclass
class Column:
    """A column of a table.

    Attributes:
        heading: its heading in the paper, with the unit.
        over: the heading that the paper has over this one and its neighbours; empty: it has none.
        quantity: split and metric, such as "test bleu", or ``TIME``.
        data: the paper's name of the data of its numbers, as in ``numbers.csv``; empty: any.
        decimals: the number of decimals of a metric.
        steps: the number of training steps that a time is given for.
    """

    heading: str
    quantity: str
    over: str = ""
    data: str = ""
    decimals: int = 1
    steps: int = 1000

    @property
    def name(self) -> str:
        """Both headings in one line."""
        return f"{self.over} {self.heading}".strip()

    @property
    def split(self) -> str:
        return self.quantity.partition(" ")[0]

    @property
    def metric(self) -> str:
        """The name of the metric in records and in ``numbers.csv``."""
        return "seconds_per_1k_steps" if self.quantity == TIME else self.quantity.partition(" ")[2]


@dataclass
class Panel:
    """A panel of a figure.

    Attributes:
        quantity: split and metric, such as "valid bleu".
        title: the heading of the panel in the paper, such as "(a)".
        x: the x axis; not used with ``draw: p_sweep``, whose x axis is p.
        steps: the number of steps that the paper draws; None: all.
        label: the paper's name of the metric, such as "error rate", if the panel shows it as it is recorded; empty: the
            metric has its usual name and unit.
    """

    quantity: str
    title: str = ""
    x: Literal["step", "time", "epoch"] = "step"
    steps: int | None = None
    label: str = ""


@dataclass
class Item:
    """A table or figure of the paper. The keys of its file are the fields, except the name, which is the file's.

    Attributes:
        title: the name of the item in the paper, such as "Table 2", which is also its name in ``numbers.csv``.
        draw: how it is drawn: a table, curves, or an analysis of :mod:`rmsexp.analysis`.
        timed: whether the training steps of its norms are timed, interleaved.
        at: further overrides of the runs at a scale, by the name of the scale.
        groups: its rows or curves; ``columns``: of a table; ``panels``: of a figure.
    """

    name: str
    title: str
    caption: str
    draw: Literal["table", "curves", "invariance", "hidden_stats", "p_sweep"] = "table"
    timed: bool = False
    at: dict[str, dict[str, Any]] = field(default_factory=dict)
    groups: list[Group] = field(default_factory=list)
    columns: list[Column] = field(default_factory=list)
    panels: list[Panel] = field(default_factory=list)

    @property
    def has_runs(self) -> bool:
        """Whether the item needs runs; a table of times alone does not."""
        return self.draw != "table" or any(column.quantity != TIME for column in self.columns)


class Found(NamedTuple):
    """What the records have of a group.

    Attributes:
        setting: such as "rnnsearch/demo".
        series: our series of each row, by the name of the row in the paper.
        records: those of its runs that have ended.
        missing: the folders of its other runs, below the results.
        comparison: its interleaved times; None if there are none.
    """

    setting: str
    series: dict[str, str]
    records: Records
    missing: list[str]
    comparison: Comparison | None


class Part(NamedTuple):
    """A group of an item, with what the records have of it; ``found`` is None if the group has no runs."""

    group: Group
    found: Found | None


def options(config_dir: str | None = None) -> list[str]:
    """Return the names of all items, sorted by the part before the number, such as "table", then by the number."""
    return sorted(config.options(GROUP, config_dir), key=lambda name: (name.rstrip("0123456789"), len(name), name))


def read(name: str, config_dir: str | None = None) -> Item:
    """Return the item of a name. Raises: ConfigError for an unknown name and for a mistake in the file."""
    path = config.file(GROUP, name, config_dir)
    try:
        return typed_of(path.name, Item, {"name": name} | read_yaml(path), refuse_unknown=True)
    except (ValueError, OSError) as error:
        raise config.ConfigError(f"item {name}: {error}") from None
