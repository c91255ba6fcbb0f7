"""Synthetic data: small built-in substitutes for the paper's data sets, generated from a seed."""
