"""VLLMService as users and the operator see it: models of spec and status, conditions, the generated CRD."""
