"""The rows of the guardrail catalogue, by the part of the operator that applies them. Data only."""
