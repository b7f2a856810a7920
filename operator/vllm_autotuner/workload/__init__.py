"""From an effective configuration to the Deployment and Service that serve it. Pure."""
