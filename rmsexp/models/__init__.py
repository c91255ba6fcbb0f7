"""The paper's models. Each takes its norm as an argument, names its sites, and never asks which norm it has."""
