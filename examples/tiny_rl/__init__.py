"""A whole RL loop on one CPU: a tiny policy learns from rewards that are read out of slots."""
