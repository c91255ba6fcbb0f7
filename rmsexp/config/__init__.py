"""The config of a run: composed from a command line, checked, and the name of the run's folder."""

from __future__ import annotations

from rmsexp.config.identity import Job as Job
from rmsexp.config.identity import check_one_setting as check_one_setting
from rmsexp.config.identity import differences as differences
from rmsexp.config.identity import digest as digest
from rmsexp.config.identity import job as job
from rmsexp.config.schema import LARGEST_SEED as LARGEST_SEED
from rmsexp.config.schema import MOST_THREADS as MOST_THREADS
from rmsexp.config.schema import ConfigError as ConfigError
from rmsexp.config.schema import DataConfig as DataConfig
from rmsexp.config.schema import LoggerConfig as LoggerConfig
from rmsexp.config.schema import RunConfig as RunConfig
from rmsexp.config.schema import expanded as expanded
from rmsexp.config.schema import flatten as flatten
from rmsexp.config.schema import plain_values as plain_values
from rmsexp.config.schema import respelled as respelled
from rmsexp.config.schema import results_folder as results_folder
from rmsexp.config.words import CONFIGS as CONFIGS
from rmsexp.config.words import compose as compose
from rmsexp.config.words import expand_home as expand_home
from rmsexp.config.words import file as file
from rmsexp.config.words import from_dotlist as from_dotlist
from rmsexp.config.words import from_words as from_words
from rmsexp.config.words import is_for_sweeps as is_for_sweeps
from rmsexp.config.words import norm_words as norm_words
from rmsexp.config.words import options as options
from rmsexp.config.words import papers_scale as papers_scale
from rmsexp.config.words import parse as parse
from rmsexp.config.words import read as read
from rmsexp.config.words import unknown as unknown
