"""Attention worked out, learned and questioned on matrices small enough to read."""

from . import why as why
