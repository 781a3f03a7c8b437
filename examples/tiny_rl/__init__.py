"""A complete RL loop on one CPU: a tiny policy learns from rewards computed in slots."""
