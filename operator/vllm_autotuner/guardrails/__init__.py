"""Guardrails: policies that allow, hold or deny a proposed change, each with a reason and a message. Pure."""
