"""Commands about all services of a cluster: their table, and the kill switch."""
