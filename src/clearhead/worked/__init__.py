"""Attention worked out, learned and questioned on matrices small enough to read."""
