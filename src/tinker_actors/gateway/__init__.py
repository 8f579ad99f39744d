"""The gateway: one multi-tenant HTTP service over shared base models, policies and jobs."""

DEFAULT_ROOT = "runs/service"
"""The folder of all that a service keeps, unless another is named."""
