"""The main job as a story: six acts on the embedded control plane, each checked, each visible."""
