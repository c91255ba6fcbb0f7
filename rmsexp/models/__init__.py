"""The models of the tasks. Each takes a norm as an argument; its code is the same for every norm."""
