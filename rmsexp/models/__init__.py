"""The paper's models. Each is given a norm, names the sites that the norm is applied at, and runs with any norm."""
