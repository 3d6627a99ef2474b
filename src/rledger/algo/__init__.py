"""Advantages, policy losses, KL and aggregation: pure tensor functions on ragged rows, one a file.

Legend for shapes: T tokens of all rows, B rows (trajectories), S segments.
"""
