"""What can be seen of a gateway from outside: metrics for Prometheus, and logs that say for whom and in which trace."""
