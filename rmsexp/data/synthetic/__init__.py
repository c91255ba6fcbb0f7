"""Built-in data: small stand-ins for the paper's data sets, made from a seed alone."""
