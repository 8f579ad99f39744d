"""The jobs API."""
