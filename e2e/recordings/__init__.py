"""Recordings of the real vLLM in states that a diagnosis must tell apart.

Apart from the tests that read them: making one takes minutes and the real engine, reading one takes neither.
"""
