"""Renderings of episodes for training."""
