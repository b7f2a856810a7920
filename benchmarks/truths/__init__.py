"""Recordings of a real engine whose truth is known, and how often the right class is named."""
