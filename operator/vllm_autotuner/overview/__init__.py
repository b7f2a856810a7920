"""What people are shown of VLLMServices: rows, GPU-hours and HTML, shared by commands and the operator's web page."""
