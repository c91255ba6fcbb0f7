"""Doing runs: one (runner), one on several processes (joint_runner), many (worker)."""
